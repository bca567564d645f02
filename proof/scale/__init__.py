"""Load far beyond one machine, on a virtual clock: the real stores and layers, a modelled cloud."""
