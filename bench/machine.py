"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib import metadata
from pathlib import Path

PEERS = ("limits", "throttled-py", "pyrate-limiter", "filelock")


def about() -> dict[str, str]:
    return {
        "cpu": f"{cpu_model()}, {os.cpu_count()} cores",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}, SQLite {sqlite3.sqlite_version}",
        "load": load(),
        "peers": ", ".join(f"{name} {version(name)}" for name in PEERS),
    }


def load() -> str:
    """The load average now; figures taken beside other work are noisier."""
    return " ".join(f"{average:.2f}" for average in os.getloadavg())


def version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def rss_bytes() -> int:
    """What this process holds of the machine's memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
