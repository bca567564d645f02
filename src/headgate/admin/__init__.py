"""What operators do: entities, stored limits, namespaces, usage, export and import."""
