"""Everybody `bench peers` looks at, and who of them is installed."""

from __future__ import annotations

import contextlib
import importlib
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
LATE = (
    *MODULES.values(), "limits.storage", "limits.strategies", "redis", "redis.asyncio", "hiredis",
    "botocore.session", "urllib3", "boto3", "headgate.stores.redis", "headgate.stores.dynamodb",
)  # fmt: skip


def found(name: str) -> Subject:
    return next(subject for subject in ALL if subject.name == name)


def installed() -> list[Subject]:
    return [subject for subject in ALL if _has(subject.library)]


def _has(library: str) -> bool:
    module = MODULES.get(library)
    return module is None or importlib.util.find_spec(module) is not None


def preload() -> None:
    """Everything subjects import when they open: threads that import the same at once fail."""
    for name in LATE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
