"""Entities, stored limits and namespaces as items of the table."""
