"""The text is what Prometheus reads: checked with its own parser."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parsed

from headgate.service.metrics import (
    CONTENT_TYPE,
    Family,
    Histogram,
    WorkerMetrics,
    number_text,
    render_text,
)

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def numbers(text: bytes) -> Numbers:
    """Every sample of a text, read with Prometheus' own parser, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parsed(text.decode())
        for sample in family.samples
    }


def test_the_text_to_the_letter() -> None:
    asked = Family("counter", "asked_total", "How often,\nand \\ why.", ["who"])
    asked.series("ann").value += 3
    asked.series("bob").value += 1.5
    level = Family("gauge", "level", "Now.")
    times = Histogram("time_seconds", "Time.", (0.1, 1.0), "wire", ("rest",))
    for value in (0.1, 0.5, 7):
        times.by_value["rest"].observe(value)
    assert render_text([asked, level, times]).decode() == (
        "# HELP asked_total How often,\\nand \\\\ why.\n"
        "# TYPE asked_total counter\n"
        'asked_total{who="ann"} 3\n'
        'asked_total{who="bob"} 1.5\n'
        "# HELP level Now.\n"
        "# TYPE level gauge\n"
        "level 0\n"
        "# HELP time_seconds Time.\n"
        "# TYPE time_seconds histogram\n"
        'time_seconds_bucket{wire="rest",le="0.1"} 1\n'
        'time_seconds_bucket{wire="rest",le="1.0"} 2\n'
        'time_seconds_bucket{wire="rest",le="+Inf"} 3\n'
        'time_seconds_sum{wire="rest"} 7.6\n'
        'time_seconds_count{wire="rest"} 3\n'
    )
    assert CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_label_value_comes_back(one: str, other: str) -> None:
    family = Family("counter", "c_total", "x", ["a", "b"])
    family.series(one, other).value += 1
    (sample,) = [s for f in parsed(render_text([family]).decode()) for s in f.samples]
    assert sample.labels == {"a": one, "b": other}
    assert sample.value == 1


@given(st.one_of(st.floats(), st.integers(0, 2**53)))
def test_any_number_comes_back(value: float) -> None:
    back = float(number_text(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.lists(st.floats(0, 3)))
def test_a_histogram_counts_what_is_at_most_its_bound(values: list[float]) -> None:
    bounds = (0.5, 1.0, 2.0)
    times = Histogram("t", "x", bounds, "wire", ("rest",))
    for value in values:
        times.by_value["rest"].observe(value)
    found = numbers(render_text([times]))
    for bound in bounds:
        told = found["t_bucket", (("le", str(bound)), ("wire", "rest"))]
        assert told == sum(value <= bound for value in values)
    assert found["t_count", (("wire", "rest"),)] == len(values)
    assert found["t_bucket", (("le", "+Inf"), ("wire", "rest"))] == len(values)
    assert math.isclose(found["t_sum", (("wire", "rest"),)], sum(values))


def test_series_are_bounded_and_the_rest_is_other() -> None:
    family = Family("counter", "c_total", "x", ["a"], series_max=3)
    for number in range(100):
        family.series(f"v{number}").value += 1
    found = numbers(render_text([family]))
    assert len(found) == 4
    assert found["c_total", (("a", "other"),)] == 97


def test_the_labels_of_a_family_are_fixed() -> None:
    with pytest.raises(ValueError, match="labels"):
        Family("counter", "c_total", "x", ["a"]).series("one", "two")


class Worker:
    def __init__(self, directory: Path) -> None:
        self.asked = Family("counter", "asked_total", "x", ["a"])
        self.state = Family("gauge", "state", "x")
        self.times = Histogram("t", "x", (1.0,), "wire", ("rest",))
        self.board = WorkerMetrics(directory, [self.asked, self.state, self.times])


def test_workers_are_told_together_and_never_go_back(tmp_path: Path) -> None:
    one, two = Worker(tmp_path), Worker(tmp_path)
    key = ("asked_total", (("a", "x"),))
    one.asked.series("x").value += 5
    one.times.by_value["rest"].observe(0.5)
    one.state.series().value = 2
    assert numbers(one.board.render())[key] == 5
    one.asked.series("x").value += 1
    told = numbers(one.board.render())[key]
    two.asked.series("x").value += 2
    two.times.by_value["rest"].observe(3)
    found = numbers(two.board.render())
    assert found[key] == 8 >= told, "what one had told is not forgotten when two is asked"
    assert found["state", ()] == 2
    assert found["t_bucket", (("le", "1.0"), ("wire", "rest"))] == 1
    assert found["t_count", (("wire", "rest"),)] == 2
    del one
    assert numbers(two.board.render())[key] == 8, "a worker that ended still counts"


def test_a_torn_post_counts_nothing(tmp_path: Path) -> None:
    one = Worker(tmp_path)
    one.asked.series("x").value += 5
    (tmp_path / "9-torn.json").write_text('[{"name": "asked_t')
    assert numbers(one.board.render())["asked_total", (("a", "x"),)] == 5
