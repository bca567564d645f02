"""Terms and records as the scripts read and write them, and which terms Redis can keep exactly."""

from __future__ import annotations

import datetime
import functools
import json
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from headgate.core.decision import Demand, is_credit_only
from headgate.core.errors import Damaged, ValidationError
from headgate.core.limits import SEPARATOR, Limit, Spec
from headgate.core.record import HOUR_MS, BucketKey, Record, Terms, after_clock_step
from headgate.core.refill.resets import SessionResets, schedule_of

EXACT_MAX = 2**52  # a script's numbers are doubles: whole up to 2^53, and sums of two stay below
PERIOD_MAX = math.isqrt(2**53)
AMOUNT_MAX_MILLI = 2**51
CONSUMED_UNIT = 10**15
DOUBLE = struct.Struct(">d")
NOTHING_WANTED = DOUBLE.pack(-1)
CELL_BYTES = 36
UNKNOWN_WINDOW = (1, 1)  # in which no moment is

# What reading a reply raises that is not of the form the scripts write.
GARBLED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


# A demand is one argument, which costs a script less than ten: fields that `struct` reads without
# making a table of them, and MessagePack behind them (ADR 14).
def packed_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">BI", 0xDB, len(raw)) + raw


def packed_number(number: int) -> bytes:
    return struct.pack(">Bd", 0xCB, number)


def packed_list(items: Sequence[bytes]) -> bytes:
    return struct.pack(">BI", 0xDD, len(items)) + b"".join(items)


def packed_amounts(amounts: Iterable[int | None]) -> list[bytes]:
    """As texts, since a script prints what it adds to usage; an empty one for none."""
    return [NO_AMOUNT if amount is None else packed_text(str(amount)) for amount in amounts]


NO_AMOUNT = packed_text("")


# What demands under the same terms have in common: what a bucket kept under them begins with, and
# how long that is; their version; `own`, a number; and each limit's name, its numbers, the rest of
# it but the amount, and a quota's schedule.
EncodedTerms = tuple[bytes, bytes, int, tuple[tuple[str, bytes, bytes, str | None], ...]]

CASCADED, PARTLY_CASCADED = 2, 4  # added to `own`: how much of the demand cascaded
COUNTED_APART, COUNTED_AS_ONE, COUNTED_BY_LIMIT = 0, 1, 2  # the first is never the usual case
ONES = "!"  # begins a field of usage that counts demands of one token of each limit it names
TOKEN_MILLI = 1000

_encoded: dict[int, tuple[Terms, EncodedTerms]] = {}
ENCODED_MAX = 4096


def encode_terms(terms: Terms) -> EncodedTerms:
    """Told apart by identity, which costs no hashing; an entry keeps its terms alive, so their id
    is theirs alone."""
    known = _encoded.get(id(terms))
    if known is not None:
        return known[1]
    if len(_encoded) >= ENCODED_MAX:
        _encoded.clear()
    values = {
        "version": terms.version,
        "own": terms.own,
        "specs": [spec.as_row() for spec in terms.specs],
        "sources": list(terms.sources),
    }
    text = json.dumps(values, separators=(",", ":"))
    limits = tuple(
        (
            spec.name,
            _packed_rate(spec),
            packed_text(spec.name) + packed_number(spec.soft + 2 * (spec.resets is not None)),
            spec.resets,
        )
        for spec in terms.specs
    )
    kept = packed_text(text) + packed_text("") + packed_number(0)
    offset = str(len(kept)).encode()
    start = struct.pack(">I", len(kept)) + kept + struct.pack(">B", len(offset)) + offset
    found = (start, packed_number(terms.version), int(terms.own), limits)
    _encoded[id(terms)] = (terms, found)
    return found


def _packed_rate(spec: Spec) -> bytes:
    """Capacity and rate; the capacity alone of a quota, whose window changes."""
    rate = _reduced_rate(spec)
    return struct.pack(">ddd", spec.capacity_milli, *rate)[: 24 if spec.resets is None else 8]


@functools.lru_cache(maxsize=1024)
def _packed_window(schedule: str, now_ms: int) -> bytes:
    """In place of a rate: the window of a quota at about this moment; see demand_of."""
    resets = schedule_of(schedule)
    if isinstance(resets, SessionResets):
        return struct.pack(">dd", -1, -resets.after_ms)
    start_ms, end_ms = (*resets.around(now_ms, 1, 2), *UNKNOWN_WINDOW)[:2]
    if start_ms <= 0:
        start_ms, end_ms = UNKNOWN_WINDOW
    return struct.pack(">dd", -start_ms, end_ms)


def check_limits(limits: Iterable[Limit]) -> None:
    """Refuses limits that cannot be kept exactly, when they are set and not at every check."""
    for limit in limits:
        _reduced_rate(limit.spec)


def _reduced_rate(spec: Spec) -> tuple[int, int]:
    """The rate in lowest terms, if every product the scripts form with it is exact."""
    divisor = math.gcd(spec.amount_milli, spec.period_ms)
    amount, period = spec.amount_milli // divisor, spec.period_ms // divisor
    if spec.capacity_milli > EXACT_MAX or amount > EXACT_MAX:
        raise ValidationError(
            spec.name, spec.capacity_milli // 1000,
            f"cannot be kept exactly in Redis: capacity and refill must be at most "
            f"{EXACT_MAX // 1000} tokens; count in larger units",
        )  # fmt: skip
    if period > PERIOD_MAX:
        raise ValidationError(
            spec.name, spec.period_ms // 1000,
            f"seconds cannot be kept exactly in Redis with this refill: in lowest terms the "
            f"period is {period} ms, at most {PERIOD_MAX} is exact; choose a rounder rate",
        )  # fmt: skip
    return amount, period


def packed_demand(demand: Demand, hour: str = "", now_ms: int = 0) -> bytes:
    """A demand as the scripts take it; see demand_of in bucket.lua. `hour` is what the fields begin
    with that its usage is counted in, `now_ms` is about what time it is there."""
    start, version, own, limits = encode_terms(demand.terms)
    partly = demand.cascaded is not None and not demand.is_cascaded
    if demand.cascaded is not None:
        own += PARTLY_CASCADED if partly else CASCADED
    ones: list[str] = []  # the limits, as long as one token of each is wanted and no more
    is_ones = True
    numbers: list[bytes] = []
    quotas: list[bytes] = []
    rest = [version, packed_number(own)]
    for (name, limit, more, resets), amount in zip(limits, demand.amounts, strict=True):
        if amount is not None and not -AMOUNT_MAX_MILLI <= amount <= AMOUNT_MAX_MILLI:
            raise ValidationError(
                name, amount // 1000,
                f"is more than Redis counts exactly; at most {AMOUNT_MAX_MILLI // 1000} at a time",
            )  # fmt: skip
        if amount == TOKEN_MILLI:
            ones.append(name)
        elif amount:
            is_ones = False
        if amount is None:
            rest += (more, NO_AMOUNT)
        else:
            rest += (more, packed_text(str(amount)))
        numbers.append(limit)
        if resets is not None:
            numbers.append(_packed_window(resets, now_ms))
            quotas.append(packed_text(resets))
        numbers.append(NOTHING_WANTED if amount is None else DOUBLE.pack(amount))
    rest += quotas
    is_ones = is_ones and bool(ones)
    field = (hour + ONES + SEPARATOR.join(ones) if is_ones else hour).encode()
    how = COUNTED_AS_ONE if is_ones else COUNTED_BY_LIMIT
    if demand.cascaded is not None:
        how = COUNTED_APART
    head = (start, struct.pack(">H", len(field)), field, struct.pack(">BB", how, len(limits)))
    if partly and demand.cascaded is not None:
        rest += packed_amounts(demand.cascaded)
    return b"".join((*head, *numbers, *rest))


def adjustment_args(demand: Demand) -> tuple[int, bytes]:
    """An adjustment as the script takes it: how, and the demand with what is counted apart."""
    how = int(is_credit_only(demand))
    if demand.counted is None:
        return how, packed_demand(demand)
    return how + 2, b"".join((packed_demand(demand), *packed_amounts(demand.counted)))


@functools.lru_cache(maxsize=4096)
def decode_terms(core: str, dormant: str, newest: int) -> Terms:
    """The terms a bucket is kept under, from their text."""
    values = json.loads(core)
    terms = Terms(
        _specs(values["specs"]),
        values["version"],
        own=values["own"],
        sources=tuple(values["sources"]),
    )
    return with_dormant(terms, dormant, newest)


@functools.lru_cache(maxsize=4096)
def with_dormant(terms: Terms, dormant: str, newest: int) -> Terms:
    """The terms, the limits a bucket remembers besides, and the newest version it has met."""
    if not dormant and not newest:
        return terms
    return terms.extend(_specs(json.loads(dormant or "[]")), newest)


def _specs(rows: Iterable[list[object]]) -> tuple[Spec, ...]:
    return tuple(Spec(*row) for row in rows)  # type: ignore[arg-type]


def cells_of_usual(raw: bytes) -> list[int]:
    """The cells in a usual reply: behind its moment four numbers a limit, each after its type."""
    limits = len(raw) // CELL_BYTES
    return [int(number) for number in struct.unpack_from(">" + "xd" * 4 * limits, raw, DOUBLE.size)]


def record_of(terms: Terms, numbers: Sequence[int], now_ms: int) -> Record:
    """A record from its cells. Usage is counted apart, so nothing in it is uncounted."""
    found: list[object] = [terms, now_ms // HOUR_MS, 0, None]
    for at in range(0, len(numbers), 4):
        consumed = numbers[at + 3] * CONSUMED_UNIT + numbers[at + 2]
        found += (numbers[at], numbers[at + 1], consumed, consumed)
    return tuple(found)


def record_from_list(values: list[Any] | None, now_ms: int) -> Record | None:
    """A record from a bucket's whole list; None for none."""
    if values is None:
        return None
    core, dormant, newest, *numbers = values
    return after_clock_step(record_of(decode_terms(core, dormant, newest), numbers, now_ms), now_ms)


def unreadable_bucket(key: BucketKey, error: Exception) -> Damaged:
    return Damaged(
        f"what Redis told of the bucket {key.text!r} cannot be read ({error!r}); something else "
        f"wrote it, or it is no Redis: forget that bucket, give headgate a database of its own"
    )


def packed_head(now_ms: int | None, hour_ms: int, rules: bytes = b"") -> bytes:
    """What a consume begins with."""
    return struct.pack(">dd", -1 if now_ms is None else now_ms, hour_ms) + rules


def hour_args(now_ms: int) -> tuple[int, int, str]:
    """An hour as the scripts take it: its start, its month since year 0, its fields' beginning."""
    hour = now_ms // HOUR_MS
    moment = datetime.datetime.fromtimestamp(hour * 3600, datetime.UTC)
    return hour * HOUR_MS, moment.year * 12 + moment.month - 1, f"{hour}:"
