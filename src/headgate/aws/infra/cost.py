"""What a table and its aggregator cost a month, estimated from the load.

The units per call are those that the tests of the store and the aggregator count. What is assumed
rather than counted is a constant here, with its reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from headgate.core.errors import ValidationError
from headgate.core.plan import ENTRIES_MAX
from headgate.core.plan_cache import TTL_SECONDS_MAX

# --------------------------------------------------------------------------------------------------
# The prices that AWS publishes for us-east-1, on demand, without free tiers; in US dollars.

PRICED_ON = "2025-07"
REGION = "us-east-1"

_NUMBER = re.compile(r"(0|[1-9][0-9]{0,8})(\.[0-9]{1,12})?")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by name; `with_overrides` replaces those you do not pay."""

    million_writes: float = 0.625
    million_reads: float = 0.125  # strongly consistent, up to 4 KB
    gb_month: float = 0.25
    gb_month_restorable: float = 0.20
    million_runs: float = 0.20
    gb_second: float = 0.0000133334  # of a function on arm64
    alarm_month: float = 0.10

    def with_overrides(self, own: Mapping[str, str]) -> Prices:
        """These prices with some replaced; a ValidationError names the one that is wrong."""
        known = [field.name for field in fields(self)]
        for name, value in own.items():
            if name not in known:
                raise ValidationError("price", name, f"is none; there are: {', '.join(known)}")
            if not _NUMBER.fullmatch(value):
                raise ValidationError(
                    "price", f"{name}={value}", "must be dollars in digits, such as 0.7125"
                )
        return replace(self, **{name: float(value) for name, value in own.items()})

    @property
    def own(self) -> dict[str, float]:
        """Those that are not the published ones."""
        mine = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: usd for name, usd in mine.items() if usd != getattr(PUBLISHED, name)}


PUBLISHED = Prices()


MONTH_S = 730 * 3600
MONTH_DAYS = MONTH_S / 86_400
MOST = 10**9

LIMITS_PER_UNIT = 8  # with usual names their numbers fit the kilobyte of one write unit
QUOTA_PART = 4 / 3  # of a limit's room: six with cron and a zone fit, seven by the calendar
COLD_READS = 4  # of a generation: the entity, its two levels, its bucket, each up to 4 KB
COMMON_READS = 2  # the resource's level and the system's, where they are not known
NEW_BUCKET_UNITS = 4  # the item and its entries in three indexes
NEW_ROW_UNITS = 3  # a usage row and its entries in two indexes
PARTITION_WRITES = 1000  # a second; a partition has a shard of the stream
BATCH_MAX = 2500  # records of two limits, before and after, in the 6 MB that a run is given
HELD_MAX = 2000  # buckets and hours a process holds before it adds them to usage itself
LOCAL_WINDOWS = 3  # it always adds the hour, the day and the month
RUN_S = 0.05  # a run's own time, beside its writes
WRITE_S = 0.005  # one write of a run, after another
BUCKET_BYTES = 1000  # an item of two limits with its index entries
ROW_BYTES = 900  # a usage row with its marks and index entries
GB = 10**9
WINDOWS_A_MONTH = {"hourly": 730.0, "daily": MONTH_DAYS, "monthly": 1.0}
ALARMS = 6


@dataclass(frozen=True, slots=True)
class Load:
    """How a table is used: acquires a second, spread evenly over entities and resources."""

    rps: float
    entities: int
    limits: int = 2
    quotas: int = 0  # of these limits: an item says their schedules, so fewer fit a write unit
    resources: int = 1
    levels: int = 1  # 2 where entities cascade to a parent
    parents: int = 0  # how many there are then; 0: each entity has its own, the dearest
    adjusted: float = 0.0  # the share of acquires that adjust or settle afterwards
    refused: float = 0.0  # the share of demands that are refused
    retried: float = 0.0  # writes that fail and are repeated, for each bucket taken from; see docs
    renewals_a_day: float = 1.0  # how often a bucket expires idle and is made anew
    windows: tuple[str, ...] = ("hourly", "daily")
    aggregator: bool = True
    batch_window_s: int = 60
    processes: int = 10  # each reads the configuration; without an aggregator they count usage
    config_ttl_s: float = 60.0  # how long each trusts it before it looks whether it has changed
    cache_entries: int = ENTRIES_MAX  # of the URL: entities on resources that each remembers
    changes_a_day: float = 1.0  # of the configuration: after one, it is read again
    starts_a_day: float = 1.0  # of each process, which knows nothing then
    memory_mb: int = 256
    usage_days: int = 90
    pitr: bool = False
    alarms: bool = True

    def __post_init__(self) -> None:
        for name in ("rps", "renewals_a_day", "changes_a_day", "starts_a_day"):
            _check(name, getattr(self, name), 0, MOST, float)
        _check("config_ttl_s", self.config_ttl_s, 0, TTL_SECONDS_MAX, float)
        whole = ("entities", "limits", "resources", "usage_days", "processes", "cache_entries")
        for name in whole:
            _check(name, getattr(self, name), 1, MOST, int)
        _check("quotas", self.quotas, 0, self.limits, int)
        _check("parents", self.parents, 0, MOST, int)
        _check("batch_window_s", self.batch_window_s, 0, 300, int)
        _check("levels", self.levels, 1, 2, int)
        _check("memory_mb", self.memory_mb, 128, 10_240, int)
        _check("adjusted", self.adjusted, 0, 100, float)
        _check("refused", self.refused, 0, 1, float)
        _check("retried", self.retried, 0, 12, float)
        if not self.windows or not set(self.windows) <= set(WINDOWS_A_MONTH):
            offered = ", ".join(WINDOWS_A_MONTH)
            raise ValidationError("windows", self.windows, f"must be some of {offered}")

    @property
    def generations(self) -> tuple[int, ...]:
        """How many buckets the entities have, and their parents."""
        kinds = (self.entities, self.parents or self.entities)
        return tuple(kind * self.resources for kind in kinds[: self.levels])


@dataclass(frozen=True, slots=True)
class CostItem:
    """One thing that is billed."""

    what: str
    units: float
    unit: str
    usd: float


@dataclass(frozen=True, slots=True)
class Cost:
    """A month: what is billed, what it comes to, and what usage history adds to the writes.

    `failed_usd_max` is not in it: what failed writes add at most, where the load did not say.
    """

    lines: tuple[CostItem, ...]
    usage_writes_per_1000: float
    failed_usd_max: float
    prices: Prices = PUBLISHED

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)

    def as_dict(self) -> dict[str, object]:
        return {
            "priced_on": PRICED_ON,
            "region": REGION,
            "own_prices": self.prices.own,
            "usd_per_month": round(self.usd, 2),
            "usage_writes_per_1000": round(self.usage_writes_per_1000, 1),
            "failed_usd_max": round(self.failed_usd_max, 2),
            "lines": [
                {"what": x.what, "units": round(x.units), "unit": x.unit, "usd": round(x.usd, 2)}
                for x in self.lines
            ],
        }


def cost(load: Load, prices: Prices = PUBLISHED) -> Cost:
    """The bill of a month under that load; see the constants above for what is assumed."""
    bill = _Bill(load, prices)
    asked = load.rps * MONTH_S
    acquired = asked * (1 - load.refused)
    room = load.limits + load.quotas * (QUOTA_PART - 1)
    item_units = math.ceil(round(room / LIMITS_PER_UNIT, 6))
    renewals = load.renewals_a_day * MONTH_DAYS
    renewed = sum(min(kinds * renewals, acquired) for kinds in load.generations)  # by acquires
    # A refusal is read; what an acquire took of the other bucket meanwhile is taken and given back.
    undone = asked * load.refused * (load.levels - 1) * 2
    lines = [
        bill.writes("acquires", acquired * load.levels * item_units),
        bill.writes("failed writes", acquired * load.retried * load.levels * item_units),
        bill.writes("adjustments", acquired * load.adjusted * load.levels * item_units),
        bill.writes("new buckets", renewed * (NEW_BUCKET_UNITS - 1)),
        *bill.configuration(),
        bill.reads("refusals", asked * load.refused),
        bill.writes("undone takes", undone * item_units),
    ]
    counted = bill.aggregator(acquired) if load.aggregator else bill.local(acquired)
    lines += [*counted, *bill.storage()]
    if load.alarms:
        lines.append(CostItem("alarms", ALARMS, "alarms", ALARMS * prices.alarm_month))
    per_1000 = 1000 * counted[0].units / acquired if acquired else 0.0
    # A write fails once, and only where another process has used the bucket since this one saw it.
    failed_max = 0.0 if load.retried else lines[0].usd * (1 - 1 / load.processes)
    return Cost(tuple(lines), per_1000, failed_max, prices)


def expected_distinct(kinds: float, draws: float) -> float:
    """How many different kinds are among `draws` random ones, on average."""
    if kinds <= 1:
        return min(1.0, draws)
    return kinds * -math.expm1(draws * math.log1p(-1 / kinds))


def expected_misses(generations: Sequence[float], draws: float, room: float) -> float:
    """How many miss a cache, empty at first, in which the oldest makes room: of so many random
    ones of each generation, which has so many kinds."""

    def met(draws: float) -> float:
        return sum(expected_distinct(kinds, draws) for kinds in generations)

    if met(draws) <= room:
        return met(draws)
    full = _where(met, room, draws)  # draws until there is no room
    # One of n kinds that stays for as long as a draws take is there with a chance of a / (n + a).
    stay = _where(lambda a: sum(n * a / (n + a) for n in generations), room, MOST * room)
    return room + (draws - full) * sum(n / (n + stay) for n in generations)


def _where(grows: Callable[[float], float], value: float, most: float) -> float:
    """Between 0 and `most`, where a function that grows comes to the value."""
    low, high = 0.0, most
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if grows(middle) < value else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a load comes to at some prices, line by line."""

    load: Load
    prices: Prices

    def configuration(self) -> list[CostItem]:
        """What each process looks up, and its looks at the version: one when a TTL is over and
        somebody asks. What stands still is not read again, unless it had to make room."""
        load = self.load
        asked_per_s = load.rps / load.processes
        asked = asked_per_s * MONTH_S
        looks = asked_per_s and MONTH_S / (load.config_ttl_s + 1 / asked_per_s)
        per_lookup = COLD_READS * load.levels
        lookups = asked
        if load.config_ttl_s:
            spans = max(1.0, load.starts_a_day + load.changes_a_day) * MONTH_DAYS  # at least daily
            own = load.generations[:1]
            lookups = expected_misses(own, asked / spans, load.cache_entries) * spans
        else:
            looks, per_lookup = 0.0, per_lookup + COMMON_READS
        return [
            self.reads("cold lookups", load.processes * lookups * per_lookup),
            self.reads("configuration", load.processes * looks),
        ]

    def aggregator(self, acquired: float) -> list[CostItem]:
        """Its writes, one per bucket, window and run; new rows' index entries; and its runs."""
        load = self.load
        records = (1 + load.adjusted) * load.levels  # of each acquire: what follows is soon after
        changes = acquired * records
        per_second = changes / MONTH_S
        shards = max(1, math.ceil(per_second / PARTITION_WRITES))
        per_run = min(BATCH_MAX, max(1.0, per_second / shards * load.batch_window_s))
        runs = changes / per_run
        each = per_run / records
        met = sum(expected_distinct(kinds / shards, each) for kinds in load.generations)
        per_run_writes = met * len(load.windows)
        rows = sum(_rows_a_month(load, acquired, window) for window in load.windows)
        run_s = RUN_S + per_run_writes * WRITE_S
        gb_seconds = runs * run_s * load.memory_mb / 1024
        return [
            self.writes("usage rows", runs * per_run_writes + rows * (NEW_ROW_UNITS - 1)),
            CostItem("aggregator runs", runs, "runs", runs / 10**6 * self.prices.million_runs),
            CostItem(
                "aggregator time", gb_seconds, "GB-seconds", gb_seconds * self.prices.gb_second
            ),
        ]

    def local(self, acquired: float) -> list[CostItem]:
        """Each process adds what it holds of a bucket and an hour: when it makes room for another,
        the oldest first, or at last."""
        load = self.load
        hours = MONTH_S / 3600
        own = acquired / load.processes
        sent = expected_misses(load.generations, own / hours, HELD_MAX) * hours
        rows = sum(_rows_a_month(load, acquired, window) for window in WINDOWS_A_MONTH)
        units = sent * load.processes * LOCAL_WINDOWS + rows * (NEW_ROW_UNITS - 1)
        return [self.writes("usage rows", units)]

    def storage(self) -> list[CostItem]:
        load = self.load
        months = load.usage_days / MONTH_DAYS
        windows = load.windows if load.aggregator else tuple(WINDOWS_A_MONTH)
        buckets = sum(load.generations)
        kept = sum(buckets * max(1.0, WINDOWS_A_MONTH[window] * months) for window in windows)
        gb = (buckets * BUCKET_BYTES + kept * ROW_BYTES) / GB
        lines = [CostItem("storage", gb, "GB", gb * self.prices.gb_month)]
        if load.pitr:
            lines.append(CostItem("restorable", gb, "GB", gb * self.prices.gb_month_restorable))
        return lines

    def writes(self, what: str, units: float) -> CostItem:
        return CostItem(what, units, "write units", units / 10**6 * self.prices.million_writes)

    def reads(self, what: str, units: float) -> CostItem:
        return CostItem(what, units, "read units", units / 10**6 * self.prices.million_reads)


def _rows_a_month(load: Load, acquired: float, window: str) -> float:
    """How many usage rows of a window type begin: one per bucket and window that it is used in."""
    windows = WINDOWS_A_MONTH[window]
    return sum(expected_distinct(n, acquired / windows) * windows for n in load.generations)


def _check(name: str, value: object, least: float, most: float, kind: type) -> None:
    kinds = (int, float) if kind is float else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
        what = "a number" if kind is float else "a whole number"
        raise ValidationError(name, value, f"must be {what} from {least} to {most}")
