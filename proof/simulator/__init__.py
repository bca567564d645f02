"""A deterministic simulator: real limiters, layers and stores on a virtual clock, with faults.

Everything that happens follows from a scenario, a plain list of events, and a scenario follows from
a seed. So a run that breaks a promise can be repeated exactly, and shrunk to its shortest story.
"""
