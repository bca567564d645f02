"""Layers: each is a Store that wraps a Store, and serves on every store. See `stack`."""
