"""A report as one line of CloudWatch's embedded metric format: printed, it becomes metrics."""

from __future__ import annotations

import json

from headgate.aws.aggregator.process import Report

NAMESPACE = "headgate"
DIMENSION = "Table"


def metric_line(report: Report, table: str, now_ms: int) -> str:
    values = {
        "RecordsProcessed": report.counted + report.archived,
        "RecordsFailed": len(report.failures),
        "RecordsUnreadable": sum(one.unreadable for one in report.failures),
        "SnapshotsWritten": report.rows,
        "SnapshotsUnchanged": report.held_already,
        "Writes": report.writes,
        "AuditEventsArchived": report.archived,
        "ShardsSplit": report.splits,
        "BucketsRefilled": report.refills,
    }
    described = {
        "Namespace": NAMESPACE,
        "Dimensions": [[DIMENSION]],
        "Metrics": [{"Name": name, "Unit": "Count"} for name in values],
    }
    line = {"_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [described]}, DIMENSION: table}
    return json.dumps(line | values, separators=(",", ":"))
