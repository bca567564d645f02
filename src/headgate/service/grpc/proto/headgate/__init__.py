"""The messages of `headgate.v1`."""
