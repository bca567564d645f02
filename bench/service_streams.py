"""Load over HTTP/2: h2load, several requests at a time on each connection."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.service_load import Figures, Load

STREAMS = 8


def has_h2load() -> bool:
    return shutil.which("h2load") is not None


def put_on_streams(url: str, load: Load, connections: int, seconds: float) -> Figures:
    """The first of the load's bodies, for that long; answers other than 2xx count as failed."""
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "body", Path(folder) / "log"
        body.write_bytes(load.bodies[0])
        done = subprocess.run(
            ["h2load", "-t1", f"-c{connections}", f"-m{STREAMS}", f"-D{max(1, round(seconds))}",
             "-d", str(body), "-H", "content-type: application/json", f"--log-file={log}",
             url + load.path],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        answers = [line.split("\t") for line in log.read_text(encoding="ascii").splitlines()]
    times_ms = sorted(int(took_us) / 1000 for _, _, took_us in answers)
    rate = re.search(r"finished in \S+ ([\d.]+) req/s", done.stdout)
    if rate is None or not times_ms:
        raise SystemExit(f"h2load said something else than expected:\n{done.stdout}")
    return Figures(
        len(times_ms),
        float(rate[1]),
        times_ms[len(times_ms) // 2],
        times_ms[int(len(times_ms) * 0.99)],
        sum(not status.startswith("2") for _, status, _ in answers),
    )
