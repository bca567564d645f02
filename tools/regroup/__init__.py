"""Moves, merges and renames the modules of the package; to be deleted when that has landed."""
