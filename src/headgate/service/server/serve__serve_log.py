"""Logs: one JSON object a line on standard error, with nothing in it that callers sent."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

SERVER_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi")


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        found = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


def set_up_logs(level: str) -> None:
    """The server's own chatter is left out up to warnings: every request would be in it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("headgate").setLevel(level.upper())
    for name in SERVER_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.WARNING, getattr(logging, level.upper())))
