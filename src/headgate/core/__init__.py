"""The token bucket and the engine: no I/O, no event loop, no threads."""
