"""Limits declared in a file: read it, compare it with what is stored, apply the difference."""
