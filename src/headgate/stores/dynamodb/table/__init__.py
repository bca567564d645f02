"""The table itself: what is asked of it, how it is created, how its schema moves on."""
