"""What a child process does: `python -m bench.jobs JOB WORD…` answers with one line of JSON."""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    job, *words = sys.argv[1:]
    if job == "footprint":
        from bench import footprint

        answer = footprint.job(*words)
    elif job == "bound":
        from bench import bound

        answer = bound.job(*words)
    elif job == "peers":
        from bench import peers_crowds

        answer = peers_crowds.job(*words)
    else:
        from bench import sqlite_jobs

        answer = sqlite_jobs.job(*words)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # a peer's background thread must not keep a child alive


if __name__ == "__main__":
    main()
