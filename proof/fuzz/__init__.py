"""Anything at all before every parser: a value or the documented error, and never anything else."""
