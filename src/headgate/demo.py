"""Try headgate in a terminal: `python -m headgate.demo [URL]`.

A small conversation with a limiter on the embedded store, until the service takes this place.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

from headgate import HeadgateError, Limit, SyncRateLimiter

URL = "sqlite:///headgate-demo.db"
LIMITS = [Limit.per_minute("rpm", 10), Limit.per_minute("tpm", 1000)]
HELP = """\
  take KEY [RPM [TPM]]   spend, e.g.  take alice 1 200
  check KEY [RPM [TPM]]  would it pass? spends nothing
  show KEY               what is left, and why these limits
  limit KEY LIMIT…       e.g.  limit alice 'rpm:100/min:150'
  usage KEY              this hour, day and month
  reset KEY              fill the bucket
  quit"""


class Demo:
    """Words to calls; each answer is a few lines of text."""

    def __init__(self, limiter: SyncRateLimiter) -> None:
        self.limiter = limiter
        self.words: dict[str, Callable[..., str]] = {
            "take": self.take,
            "check": self.check,
            "show": self.show,
            "limit": self.limit,
            "usage": self.usage,
            "reset": self.reset,
            "help": lambda: HELP,
        }

    def answer(self, line: str) -> str:
        try:
            word, *rest = shlex.split(line)
            known = self.words.get(word)
            return f"unknown word {word!r}\n{HELP}" if known is None else known(*rest)
        except (HeadgateError, ValueError) as error:
            return f"  no: {error}"
        except TypeError:
            return HELP

    def take(self, key: str, rpm: str = "1", tpm: str = "0") -> str:
        with self.limiter.acquire(key, "demo", {"rpm": int(rpm), "tpm": int(tpm)}):
            return f"  taken; left: {self.limiter.available(key, 'demo')}"

    def check(self, key: str, rpm: str = "1", tpm: str = "0") -> str:
        verdict = self.limiter.check(key, "demo", {"rpm": int(rpm), "tpm": int(tpm)})
        if verdict.allowed:
            return "  would pass"
        return f"  would be refused; retry after {verdict.retry_after_seconds:g} s"

    def show(self, key: str) -> str:
        return f"  left: {self.limiter.available(key, 'demo')}\n{self.limiter.explain(key, 'demo')}"

    def limit(self, key: str, *limits: str) -> str:
        self.limiter.set_limits(key, [Limit.parse(text) for text in limits], resource="demo")
        return self.show(key)

    def usage(self, key: str) -> str:
        shots, _ = self.limiter.get_usage_snapshots(key, "demo")
        rows = [f"  {s.window_type:8} {s.window_start}  {dict(s.counters)}" for s in shots]
        return "\n".join(rows) or "  nothing yet"

    def reset(self, key: str) -> str:
        self.limiter.reset_bucket(key, "demo", principal="demo")
        return f"  left: {self.limiter.available(key, 'demo')}"


def main(arguments: list[str]) -> int:
    url = arguments[0] if arguments else URL
    out = sys.stdout
    with SyncRateLimiter(url, limits=LIMITS) as limiter:
        demo = Demo(limiter)
        out.write(f"headgate on {url}: 10 requests and 1000 tokens a minute per key\n{HELP}\n")
        while True:
            out.write("> ")
            out.flush()
            line = sys.stdin.readline()
            if not line or line.strip() in ("quit", "exit"):
                out.write("\n")
                return 0
            if line.strip():
                out.write(demo.answer(line) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
