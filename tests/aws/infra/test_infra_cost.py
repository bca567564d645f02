"""The calculator adds up, and the figures in the documentation are its own."""

from __future__ import annotations

import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from headgate import ValidationError
from headgate.aws.infra import Load, cost
from headgate.aws.infra.cost import (
    HELD_MAX,
    MONTH_S,
    PRICED_ON,
    PUBLISHED,
    REGION,
    Prices,
    expected_distinct,
    expected_misses,
)
from headgate.stores.dynamodb.ledger import HOURS_MAX
from tests.cli.kit import invoke, told

PAGE = Path(__file__).parents[3] / "docs/reference/cost.md"


def _lines(load: Load) -> dict[str, float]:
    return {line.what: line.units for line in cost(load).lines}


@pytest.mark.parametrize(
    ("more", "what", "factor"),
    [
        ({}, "acquires", 1),
        ({}, "refusals", 0),
        ({"levels": 2}, "acquires", 2),
        ({"limits": 8}, "acquires", 1),
        ({"limits": 9}, "acquires", 2),
        ({"refused": 0.25}, "acquires", 0.75),
        ({"refused": 0.5}, "refusals", 0.5),  # a read each
        ({"refused": 0.5}, "undone takes", 0),
        ({"refused": 0.5, "levels": 2}, "refusals", 0.5),
        ({"refused": 0.5, "levels": 2}, "undone takes", 1),  # of the other bucket, and back
        ({"retried": 0.5, "levels": 2}, "failed writes", 1),
        ({"refused": 0.5, "adjusted": 2.0}, "adjustments", 1),  # two writes for each that passed
    ],
    ids=str,
)
def test_units_for_each_call(more: dict[str, Any], what: str, factor: float) -> None:
    found = _lines(Load(rps=10, entities=5, **more))
    assert found[what] == pytest.approx(factor * 10 * MONTH_S)


def test_counting_many_entities_is_never_more_than_one_write_per_change_and_window() -> None:
    found = cost(Load(rps=1000, entities=10**7, renewals_a_day=0))
    writes = _lines(Load(rps=1000, entities=10**7, renewals_a_day=0))
    new_rows = 2 * 2 * writes["acquires"]  # at most: every change begins its rows
    assert writes["usage rows"] <= 2 * writes["acquires"] + new_rows
    assert found.usage_writes_per_1000 > 1900
    assert cost(Load(rps=1000, entities=1, batch_window_s=1)).usage_writes_per_1000 < 20


def test_a_longer_batch_is_cheaper() -> None:
    prices_by_window = [
        cost(Load(rps=50, entities=100, batch_window_s=s)).usd for s in (1, 5, 30, 60)
    ]
    assert prices_by_window == sorted(prices_by_window, reverse=True)
    assert len(set(prices_by_window)) == 4


def test_without_an_aggregator_processes_write() -> None:
    assert HELD_MAX == HOURS_MAX
    few = _lines(Load(rps=100, entities=100, aggregator=False))
    assert "aggregator runs" not in few
    per_hour = 3 * 10 * 100  # windows, processes, buckets
    assert few["usage rows"] == pytest.approx(per_hour * 730, rel=0.3)
    more = _lines(Load(rps=100, entities=100, aggregator=False, processes=20))
    assert more["usage rows"] > few["usage rows"]


def test_parents_have_buckets_and_usage_of_their_own() -> None:
    for aggregator in (True, False):
        load = {"rps": 1, "entities": 500, "levels": 2, "aggregator": aggregator}
        usage = [_lines(Load(**load, parents=many))["usage rows"] for many in (1, 50, 500)]
        assert usage == sorted(usage)
        assert usage[2] > 1.8 * usage[0]
        assert _lines(Load(**load))["usage rows"] == usage[2], "each its own, unless it is said"
    renewed = [_lines(Load(**load, parents=many))["new buckets"] for many in (50, 500)]
    assert renewed[0] == pytest.approx(renewed[1] * 550 / 1000)


def test_misses_of_a_cache_in_which_the_oldest_makes_room() -> None:
    rng, room, draws = random.Random(9), 60, 20_000
    for generations in ((100,), (400,), (400, 20), (50, 200)):
        cache: dict[tuple[int, int], None] = {}
        misses = 0
        for _ in range(draws):
            for place, kinds in enumerate(generations):
                one = place, rng.randrange(kinds)
                misses += one not in cache
                cache.setdefault(one)
                if len(cache) > room:
                    del cache[next(iter(cache))]
        assert expected_misses(generations, draws, room) == pytest.approx(misses, rel=0.02)
    assert expected_misses((30, 20), draws, room) == pytest.approx(50)
    assert expected_misses((1000,), 10, room) == pytest.approx(expected_distinct(1000, 10))


def test_what_failed_writes_add_at_most_is_told_where_nobody_said_how_many() -> None:
    load = {"rps": 100, "entities": 10}
    acquires = 100 * MONTH_S / 1e6 * PUBLISHED.million_writes
    for processes, part in ((1, 0), (2, 0.5), (10, 0.9)):
        most = cost(Load(**load, processes=processes)).failed_usd_max
        assert most == pytest.approx(acquires * part)
    assert cost(Load(**load, retried=0.1)).failed_usd_max == 0
    words = ["cost", "--rps", "100", "--entities", "10"]
    assert f"up to ${acquires * 0.9:,.2f} more" in invoke(*words).out
    assert told(*words)["failed_usd_max"] == round(acquires * 0.9, 2)
    for said in (["--retried", "0.4"], ["--processes", "1"]):
        assert "failed writes; say" not in invoke(*words, *said).out


def test_nothing_costs_next_to_nothing() -> None:
    idle = cost(Load(rps=0, entities=1))
    assert idle.usd == pytest.approx(6 * PUBLISHED.alarm_month, abs=0.01)
    assert idle.usage_writes_per_1000 == 0
    assert cost(Load(rps=0, entities=1, alarms=False)).usd < 0.01


def test_different_ones_among_draws() -> None:
    assert expected_distinct(1, 0.5) == 0.5
    assert expected_distinct(1, 9) == 1
    assert expected_distinct(10, 1) == pytest.approx(1)
    assert expected_distinct(10, 10**6) == pytest.approx(10)
    assert expected_distinct(2, 2) == pytest.approx(1.5)


@pytest.mark.parametrize("bad", [
    {"rps": -1}, {"rps": True}, {"rps": float("nan")}, {"entities": 0}, {"entities": 1.5},
    {"levels": 3}, {"parents": -1}, {"refused": 1.1}, {"windows": ()}, {"windows": ("weekly",)},
    {"batch_window_s": 301}, {"memory_mb": 1}, {"processes": 0},
], ids=str)  # fmt: skip
def test_a_load_that_cannot_be(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Load(**{"rps": 1, "entities": 1, **bad})
    assert caught.value.field in bad


ROW = re.compile(
    r"^\| ([\d ]+) \| ([\d ]+) \| ([\d.]+) \| \$([\d ]+\.\d\d) \| \$([\d ]+\.\d\d) \|$", re.M
)


def test_the_figures_on_the_page() -> None:
    text = PAGE.read_text()
    rows = ROW.findall(text)
    assert len(rows) >= 5
    for rps, entities, writes, usd, without in rows:
        load = {"rps": _number(rps), "entities": _number(entities)}
        found = cost(Load(**load))
        alone = cost(Load(**load, aggregator=False))
        assert float(writes) == round(found.usage_writes_per_1000, 1), load
        assert _number(usd) == round(found.usd, 2), load
        assert _number(without) == round(alone.usd, 2), load


def test_the_prices_on_the_page() -> None:
    text = PAGE.read_text()
    assert PRICED_ON in text
    listed = dict(re.findall(r"^\| `(\w+)` \|.*\| \$([0-9.]+) \|$", text, re.MULTILINE))
    assert {name: float(usd) for name, usd in listed.items()} == asdict(PUBLISHED)


def test_own_prices_are_taken_instead_and_told() -> None:
    load = Load(rps=100, entities=10, pitr=True)
    for name in asdict(PUBLISHED):
        dearer = cost(load, PUBLISHED.with_overrides({name: "3.5"}))
        assert dearer.usd > cost(load).usd, name
        assert dearer.as_dict()["own_prices"] == {name: 3.5}
    assert cost(load).as_dict()["own_prices"] == {}
    free = Prices(**dict.fromkeys(asdict(PUBLISHED), 0.0))
    assert cost(load, free).usd == 0


@pytest.mark.parametrize(
    "own",
    [{"milion_writes": "1"}, {"gb_month": "-1"}, {"gb_month": "1e3"}, {"gb_month": "nan"},
     {"gb_month": ""}, {"gb_month": "1\n"}, {"gb_month": "٣"}],
    ids=str,
)  # fmt: skip
def test_a_price_that_is_none_is_named(own: dict[str, str]) -> None:
    [name] = own
    with pytest.raises(ValidationError, match="price") as refused:
        PUBLISHED.with_overrides(own)
    assert name in str(refused.value)


def test_the_command_says_of_when_the_prices_are_and_takes_others() -> None:
    words = ["cost", "--rps", "100", "--entities", "10"]
    own = ("--price", "million_writes=1.25")
    assert f"{REGION} as published in {PRICED_ON}" in invoke(*words).out
    assert "million_writes $1.25 as you say" in invoke(*words, *own).out
    found = told(*words, *own)
    assert found["priced_on"] == PRICED_ON
    assert found["own_prices"] == {"million_writes": 1.25}
    acquires = next(line for line in found["lines"] if line["what"] == "acquires")
    assert acquires["usd"] == round(100 * MONTH_S / 1e6 * 1.25, 2)
    for wrong in ("million_writes", "milion_writes=1", "gb_month=cheap"):
        refused = invoke(*words, "--price", wrong)
        assert refused.code != 0
        assert not refused.out


def _number(text: str) -> Any:
    bare = text.replace(" ", "")
    return float(bare) if "." in bare else int(bare)


def test_quotas_fill_a_write_unit_earlier() -> None:
    """As many as `test_a_bucket_fits_into_one_write_unit` counts, where each has a cron expression
    and a zone."""

    def units(limits: int, quotas: int) -> float:
        [line] = [
            line
            for line in cost(Load(rps=1, entities=10, limits=limits, quotas=quotas)).lines
            if line.what == "acquires"
        ]
        return line.units / MONTH_S

    assert [units(8, 0), units(6, 6), units(7, 7), units(7, 3), units(8, 1)] == [1, 1, 2, 1, 2]
    with pytest.raises(ValidationError, match="quotas"):
        Load(rps=1, entities=1, limits=2, quotas=3)
