"""What AWS asks, as published for us-east-1, on demand, without free tiers; in US dollars."""

from __future__ import annotations

PRICED_ON = "2025-07"
REGION = "us-east-1"

MILLION_WRITES = 0.625
MILLION_READS = 0.125  # strongly consistent, up to 4 KB
GB_MONTH = 0.25
GB_MONTH_RESTORABLE = 0.20
MILLION_RUNS = 0.20
GB_SECOND = 0.0000133334  # of a function on arm64
ALARM_MONTH = 0.10
