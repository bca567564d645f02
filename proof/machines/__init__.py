"""State machines: whatever is asked of a store, in whatever order, it answers as an exact model."""
