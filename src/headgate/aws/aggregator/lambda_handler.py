"""The Lambda function: a batch of the table's stream in, the records that failed out.

The event source mapping must report batch item failures. It then delivers again from the first
record that failed, and sends what keeps failing to its dead-letter queue. Records that were counted
the first time are known and are not counted again.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from headgate.aws.aggregator.open import open_aggregator
from headgate.aws.aggregator.process import Aggregator, BatchReport, settings_from
from headgate.core.runtime import run

# --------------------------------------------------------------------------------------------------
# A report as a line in CloudWatch's embedded metric format: printing it makes metrics.

NAMESPACE = "headgate"
DIMENSION = "Table"


def metric_line(report: BatchReport, table: str, now_ms: int) -> str:
    values = {
        "RecordsProcessed": report.counted + report.archived,
        "RecordsFailed": len(report.failures),
        "RecordsUnreadable": sum(one.unreadable for one in report.failures),
        "SnapshotsWritten": report.rows,
        "SnapshotsUnchanged": report.held_already,
        "Writes": report.writes,
        "AuditEventsArchived": report.archived,
        "ShardsSplit": report.splits,
    }
    described = {
        "Namespace": NAMESPACE,
        "Dimensions": [[DIMENSION]],
        "Metrics": [{"Name": name, "Unit": "Count"} for name in values],
    }
    line = {"_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [described]}, DIMENSION: table}
    return json.dumps(line | values, separators=(",", ":"))


# A batch has up to ten thousand records, and what fails one often fails all of them: the log shows
# the first few, the metric counts them all.
FAILURES_SHOWN_MAX = 10

_log = logging.getLogger("headgate.aggregator")
_lock = threading.Lock()
_opened: list[Aggregator] = []


def handle(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """The partial batch response that Lambda expects of readers of streams."""
    aggregator = _aggregator()
    report = run(aggregator.process(event.get("Records") or []))
    table = aggregator.table
    sys.stdout.write(metric_line(report, table.name, table.port.now_ms()) + "\n")
    return response(report)


def response(report: BatchReport) -> dict[str, Any]:
    for failure in report.failures[:FAILURES_SHOWN_MAX]:
        _log.error("record %s failed: %s", failure.sequence or "without a number", failure.why)
    failed = [{"itemIdentifier": failure.sequence} for failure in report.failures]
    return {"batchItemFailures": failed}


def _aggregator() -> Aggregator:
    """One per container: its connections outlive a call."""
    with _lock:
        if not _opened:
            settings = settings_from(os.environ)
            _log.setLevel(settings.log_level)
            _opened.append(open_aggregator(settings, blocking=True))
        return _opened[0]
