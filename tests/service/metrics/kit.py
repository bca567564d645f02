"""Metrics read back with the parser of Prometheus' own client."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def numbers(text: bytes) -> Numbers:
    """Every sample of a text, by its name and its labels in order."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
