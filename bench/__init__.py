"""Benchmarks: `python -m bench memory` and `python -m bench sqlite`. Figures, never assertions."""
