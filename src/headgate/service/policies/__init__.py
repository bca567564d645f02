"""Policies: which limits a request is checked against, read from a file and watched."""
