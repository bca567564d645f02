"""Everybody `bench peers` looks at, and who of them is installed."""

from __future__ import annotations

import importlib.util

from bench import peers_libraries, peers_ours, peers_zae
from bench.peers_gate import Subject

ALL = [*peers_ours.SUBJECTS, *peers_libraries.SUBJECTS, *peers_zae.SUBJECTS]
MODULES = {
    "limits": "limits",
    "throttled-py": "throttled",
    "pyrate-limiter": "pyrate_limiter",
    "zae-limiter": "zae_limiter",
}


def found(name: str) -> Subject:
    return next(subject for subject in ALL if subject.name == name)


def installed() -> list[Subject]:
    return [subject for subject in ALL if _has(subject.library)]


def _has(library: str) -> bool:
    module = MODULES.get(library)
    return module is None or importlib.util.find_spec(module) is not None
