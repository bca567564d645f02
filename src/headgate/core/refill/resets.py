"""When a quota is reset: at the start of a calendar's day, week, month or year, by a cron
expression, or so long after its first use.

A quota is the bucket of `bucket.py` with another refill. With k resets between its epoch and t,
`R(t) = k * capacity`. So all that a bucket needs of a schedule is how many resets lie between two
moments, and when the n-th one after a moment is. Both are exact, in whole milliseconds.

A reset is at a wall time of a time zone. One that does not exist there, because clocks were set
ahead over it, happens at the first moment after the gap; one that exists twice, because they were
set back, happens once, at the first. Where a zone skips a whole day, the resets of that day and of
the next happen together, and both count.

Time zones come from the database of the machine (`zoneinfo`), so two processes may disagree about a
reset, in the days before and after a government changes its mind: whoever decides goes by the
schedule it knows. A reset that they place at two moments gives at most one capacity more, as two
resets would; neither gives it twice, because the take that meets it begins a new epoch.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any

from headgate.core.errors import ValidationError

EVERY = ("day", "week", "month", "year")
AFTER_SECONDS_MAX = 10 * 366 * 24 * 3600
CRON_LENGTH_MAX = 100
CRON_A_DAY_MAX = 24
CRON_YEARS_MAX = 10
SCHEDULES_KEPT_MAX = 1024
INSTANTS_MAX = 64

DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_WALL_EPOCH = datetime(1970, 1, 1)
EARLIEST_MS = (datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH) // _MS
LATEST_MS = (datetime(9000, 1, 1, tzinfo=UTC) - _EPOCH) // _MS  # no reset is later

_AVERAGED_FROM_MS = (datetime(2001, 1, 1, tzinfo=UTC) - _EPOCH) // _MS
_AVERAGED = 13  # resets: twelve windows, a year's months

_CRON = re.compile(r"[0-9A-Z*,/\-#]+(?: [0-9A-Z*,/\-#]+){4}")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+){0,3}")
ZONE_LENGTH_MAX = 64
_NOT_ZONES = ("localtime", "posixrules", "Factory", "posix/", "right/")  # they differ by machine


class Resets:
    """A schedule of resets; `text` says it, and equal texts are equal schedules.

    `every`, `cron` or `reset_after` is what it was made of, the others are None; so is `tz` for a
    session quota, which knows no calendar.
    """

    __slots__ = ("_window", "cron", "every", "reset_after", "text", "tz", "zone")

    every: str | None
    cron: str | None
    reset_after: int | None
    tz: str | None

    def __init__(self, text: str, tz: str | None) -> None:
        self.text = text
        self.every = self.cron = self.reset_after = None
        self.tz = tz
        self.zone = UTC if tz is None else _zone(tz)
        # The two resets around the moment that was looked at last: nearly all takes fall between
        # them, and then there is nothing to compute. One tuple, so threads see both or neither.
        self._window = (0, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Resets) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __reduce__(self) -> tuple[Callable[[str], Resets], tuple[str]]:
        return schedule_of, (self.text,)

    def __repr__(self) -> str:
        return f"Resets({self.text!r})"

    def to_dict(self) -> dict[str, Any]:
        """What it was made of, as `make_resets` takes it."""
        fields = ("every", "cron", "reset_after", "tz")
        return {name: getattr(self, name) for name in fields if getattr(self, name) is not None}

    def resets_between(self, epoch_ms: int, now_ms: int) -> int:
        """How many resets are after the epoch and not after now; none where now is earlier."""
        if now_ms <= epoch_ms:
            return 0
        start_ms, end_ms = self._window
        if not start_ms <= now_ms < end_ms:
            self._window = start_ms, end_ms = self._window_at(now_ms)
        if start_ms <= epoch_ms:
            return 0
        return _count_kept(self, self.zone, epoch_ms, min(start_ms, now_ms))

    def nth_after(self, epoch_ms: int, count: int) -> int | None:
        """When the reset is that is the n-th after the epoch; None where that is beyond all."""
        raise NotImplementedError

    def instants(self, after_ms: int, count: int) -> tuple[int, ...]:
        """The next so many resets after a moment, INSTANTS_MAX at most. Of a session quota these
        are the ends of the windows that follow each other if one began at that moment."""
        found = (self.nth_after(after_ms, n + 1) for n in range(min(count, INSTANTS_MAX)))
        return tuple(at_ms for at_ms in found if at_ms is not None)

    def around(self, now_ms: int, before: int, count: int) -> tuple[int, ...]:
        """So many resets in a row, of which at least `before` are not after now."""
        for _ in range(before):
            now_ms = self._window_at(now_ms)[0] - 1
        return self.instants(now_ms, count)

    def window_mark(self, at_ms: int) -> int:
        """A number for the window that a moment is in, which machines agree about whose time zone
        databases do not: what the clocks showed when it began, in milliseconds as if it were UTC.
        Of a session quota it is the moment itself."""
        return (_wall(self._window_at(at_ms)[0], self.zone) - _WALL_EPOCH) // _MS

    def mark_start_ms(self, mark: int) -> int:
        """When the window of that number began here."""
        return _mark_start_ms(self.zone, mark)

    def window_s(self, end_ms: int | None) -> int | None:
        """How many seconds the window has that ends with a reset, if there is one."""
        return None if end_ms is None else -(-(end_ms - self._window_at(end_ms - 1)[0]) // 1000)

    def local_text(self, at_ms: int) -> str:
        """A moment as the clocks of the zone show it, for people: 2026-12-01 00:00 Europe/Berlin.
        A session quota has no zone; its moments are those of UTC, the begun second as a whole."""
        at_s = -(-min(max(at_ms, EARLIEST_MS), LATEST_MS) // 1000)
        wall = _wall(at_s * 1000, self.zone)
        detail = "seconds" if wall.second else "minutes"
        return f"{wall.isoformat(' ', detail)} {self.tz or 'UTC'}"

    @property
    def average_s(self) -> int:
        """How long a window is on average, to compare quotas with each other and with limits."""
        first, *_, last = self.instants(_AVERAGED_FROM_MS, _AVERAGED)
        return max(1, (last - first) // 1000 // (_AVERAGED - 1))

    def _window_at(self, now_ms: int) -> tuple[int, int]:
        """The last reset that is not after now, and the next."""
        raise NotImplementedError

    def _count(self, epoch_ms: int, now_ms: int) -> int:
        raise NotImplementedError


class CalendarResets(Resets):
    """At the first moment of each day, week (Monday), month or year. Windows have numbers, and
    each question is arithmetic on them."""

    __slots__ = ()

    def __init__(self, every: str, tz: str) -> None:
        super().__init__(f"calendar {every} {tz}", tz)
        self.every = every

    def nth_after(self, epoch_ms: int, count: int) -> int | None:
        return self._start_ms(self._number(epoch_ms) + count)

    def _window_at(self, now_ms: int) -> tuple[int, int]:
        number = self._number(now_ms)
        start_ms, end_ms = self._start_ms(number), self._start_ms(number + 1)
        return EARLIEST_MS if start_ms is None else start_ms, end_ms or LATEST_MS

    def _count(self, epoch_ms: int, now_ms: int) -> int:
        return self._number(now_ms) - self._number(epoch_ms)

    def _number(self, now_ms: int) -> int:
        """The window that a moment is in, by its date. Where clocks are set back over midnight the
        old date comes once more, though its window is over; so the start of the next one counts."""
        now_ms = min(max(now_ms, EARLIEST_MS), LATEST_MS)
        day = _wall(now_ms, self.zone).date()
        number = {
            "day": day.toordinal(),
            "week": (day.toordinal() - 1) // 7,
            "month": day.year * 12 + day.month - 1,
            "year": day.year,
        }[str(self.every)]
        while (next_ms := self._start_ms(number + 1)) is not None and next_ms <= now_ms:
            number += 1
        return number

    def _start_ms(self, number: int) -> int | None:
        """When the window of that number begins."""
        try:
            if self.every == "day":
                first = date.fromordinal(number)
            elif self.every == "week":
                first = date.fromordinal(number * 7 + 1)
            elif self.every == "month":
                first = date(number // 12, number % 12 + 1, 1)
            else:
                first = date(number, 1, 1)
            at_ms = _instant_ms(datetime.combine(first, time()), self.zone)
        except (ValueError, OverflowError):  # further than dates go
            return None
        return at_ms if at_ms <= LATEST_MS else None


class CronResets(Resets):
    """At the wall times that a cron expression of five fields names.

    The expression is read by `cronsim` on wall times alone, so that what a change of clocks means
    is decided here, for all schedules alike. Resets are found in blocks of four weeks and kept.
    """

    __slots__ = ()

    def __init__(self, cron: str, tz: str) -> None:
        super().__init__(f"cron {cron} {tz}", tz)
        self.cron = cron

    def nth_after(self, epoch_ms: int, count: int) -> int | None:
        epoch_ms = min(max(epoch_ms, EARLIEST_MS), LATEST_MS)
        for number in _blocks_from(epoch_ms):
            block = self._block(number)
            place = bisect.bisect_right(block, epoch_ms) + count - 1
            if place < len(block):
                return block[place]
            count -= len(block) - bisect.bisect_right(block, epoch_ms)
        return None

    def _window_at(self, now_ms: int) -> tuple[int, int]:
        now_ms = min(max(now_ms, EARLIEST_MS), LATEST_MS)
        start_ms = EARLIEST_MS
        for number in _blocks_until(now_ms):
            block = self._block(number)
            place = bisect.bisect_right(block, now_ms)
            if place:
                start_ms = block[place - 1]
                break
        return start_ms, self.nth_after(now_ms, 1) or LATEST_MS

    def _count(self, epoch_ms: int, now_ms: int) -> int:
        found = 0
        for number in _blocks_from(min(max(epoch_ms, EARLIEST_MS), LATEST_MS)):
            block = self._block(number)
            found += bisect.bisect_right(block, now_ms) - bisect.bisect_right(block, epoch_ms)
            if (number + 1) * BLOCK_MS > now_ms:
                break
        return found

    def _block(self, number: int) -> tuple[int, ...]:
        return _cron_block(str(self.cron), self.zone, number)


class SessionResets(Resets):
    """So many seconds after the first use. A full bucket has no window; the take that follows
    begins one, and its epoch is that moment. While a debt is owed, windows follow each other."""

    __slots__ = ("after_ms",)

    def __init__(self, reset_after: int) -> None:
        super().__init__(f"session {reset_after}s", None)
        self.reset_after = reset_after
        self.after_ms = reset_after * 1000

    def resets_between(self, epoch_ms: int, now_ms: int) -> int:
        return max(0, now_ms - epoch_ms) // self.after_ms

    def nth_after(self, epoch_ms: int, count: int) -> int | None:
        return epoch_ms + count * self.after_ms

    def window_mark(self, at_ms: int) -> int:
        return at_ms

    def mark_start_ms(self, mark: int) -> int:
        return mark

    def window_s(self, end_ms: int | None) -> int | None:
        return self.reset_after


# --------------------------------------------------------------------------------------------------
# From words to schedules.


def make_resets(
    *,
    every: object = None,
    cron: object = None,
    reset_after: object = None,
    tz: object = None,
) -> Resets:
    """The schedule of exactly one of `every`, `cron` and `reset_after`, in a time zone."""
    given = [name for name in (every, cron, reset_after) if name is not None]
    if len(given) != 1:
        raise ValidationError(
            "quota", given, "needs exactly one of every='month', cron='0 0 1,15 * *' and "
            "reset_after=3600",
        )  # fmt: skip
    if reset_after is not None:
        if tz is not None:
            raise ValidationError("tz", tz, "has no meaning for reset_after; leave it out")
        return schedule_of(f"session {_parse_after(reset_after)}s")
    zone = "UTC" if tz is None else _parse_tz(tz)
    if every is not None:
        if every not in EVERY:
            raise ValidationError("every", every, f"must be one of {', '.join(EVERY)}")
        return schedule_of(f"calendar {every} {zone}")
    return schedule_of(f"cron {_parse_cron(cron)} {zone}")


@functools.lru_cache(maxsize=SCHEDULES_KEPT_MAX)
def schedule_of(text: str) -> Resets:
    """The schedule whose `text` this is; ValidationError where it is none."""
    kind, *words = text.split(" ") if isinstance(text, str) else [""]
    if kind == "calendar" and len(words) == 2 and words[0] in EVERY:
        return CalendarResets(words[0], _parse_tz(words[1]))
    if kind == "cron" and len(words) == 6:
        return CronResets(_parse_cron(" ".join(words[:5])), _parse_tz(words[5]))
    seconds = re.fullmatch(r"([1-9][0-9]{0,9})s", words[0], re.ASCII) if len(words) == 1 else None
    if kind == "session" and seconds is not None:
        return SessionResets(_parse_after(int(seconds[1])))
    raise ValidationError(
        "resets", text, "is no schedule; one is 'calendar month Europe/Berlin', "
        "'cron 0 0 1,15 * * UTC' or 'session 3600s'",
    )  # fmt: skip


def count_resets(text: str, epoch_ms: int, now_ms: int) -> int:
    """How many resets of the schedule are after the epoch and not after now."""
    return schedule_of(text).resets_between(epoch_ms, now_ms)


def _parse_after(value: object) -> int:
    if type(value) is not int:
        raise ValidationError("reset_after", value, "must be a whole number of seconds")
    if not 1 <= value <= AFTER_SECONDS_MAX:
        raise ValidationError("reset_after", value, f"must be 1 to {AFTER_SECONDS_MAX} seconds")
    return value


def _parse_tz(value: object) -> str:
    if not isinstance(value, str):
        raise ValidationError("tz", value, f"must be a str, not {type(value).__name__}")
    _zone(value)
    return value


@functools.lru_cache(maxsize=256)
def _zone(name: str) -> tzinfo:
    import zoneinfo  # only those who have quotas pay for it

    if name == "UTC":
        return UTC  # needs no database
    known = len(name) <= ZONE_LENGTH_MAX and _ZONE.fullmatch(name) is not None
    if known and not name.startswith(_NOT_ZONES):
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            pass
    raise ValidationError(
        "tz", name, "is no time zone this machine knows; write one like Europe/Berlin or UTC. "
        "Zones come with the operating system, or with: pip install tzdata",
    )  # fmt: skip


def _parse_cron(value: object) -> str:
    """The expression in capitals with single spaces, as `text` has it."""
    if not isinstance(value, str):
        raise ValidationError("cron", value, f"must be a str, not {type(value).__name__}")
    text = " ".join(value.upper().split())
    advice = "write five fields: minute, hour, day of the month, month, day of the week"
    if len(text) > CRON_LENGTH_MAX or _CRON.fullmatch(text) is None:
        raise ValidationError("cron", value, f"is no cron expression; {advice}")
    simulate, error_type = _cronsim(text)
    try:
        times = simulate(text, datetime(1999, 12, 31, 23, 59, 59))
        first = [at for at, _ in zip(times, range(CRON_A_DAY_MAX + 1), strict=False)]
    except error_type as error:
        raise ValidationError("cron", value, f"is no cron expression ({error}); {advice}") from None
    gaps = zip([datetime(2000, 1, 1), *first], first, strict=False)
    if len(first) <= CRON_A_DAY_MAX or any(
        later.year - earlier.year > CRON_YEARS_MAX for earlier, later in gaps
    ):
        raise ValidationError("cron", value, f"must come at least every {CRON_YEARS_MAX} years")
    # A quota that is reset more often is a limit per hour, or has fields in the wrong order; and
    # the resets of four weeks are found at once.
    if first[-1] - first[0] < timedelta(days=1):
        raise ValidationError(
            "cron", value, f"comes more than {CRON_A_DAY_MAX} times a day; {advice}, or use a "
            f"limit per hour or minute",
        )  # fmt: skip
    return text


def _cronsim(cron: str) -> tuple[Callable[[str, datetime], Iterator[datetime]], type[Exception]]:
    try:
        from cronsim import CronSim, CronSimError
    except ModuleNotFoundError as error:
        raise ValidationError(
            "cron", cron, f"needs a package that is not installed ({error.name}): "
            f"pip install 'headgate[cron]'",
        ) from None  # fmt: skip
    return CronSim, CronSimError


# --------------------------------------------------------------------------------------------------
# From wall times to moments.

BLOCK_MS = 28 * DAY_MS
BLOCKS_MAX = 1400  # more than a hundred years; a search that finds nothing ends there
BLOCKS_KEPT_MAX = 512
COUNTS_KEPT_MAX = 16_384
MARKS_KEPT_MAX = 4096
_MARGIN = timedelta(days=2)  # more than a wall clock is away from UTC, or jumps


def _wall(at_ms: int, zone: tzinfo) -> datetime:
    """What the clocks of the zone show at a moment."""
    return (_EPOCH + at_ms * _MS).astimezone(zone).replace(tzinfo=None)


def _instant_ms(wall: datetime, zone: tzinfo) -> int:
    """When the clocks of the zone show that for the first time, or have just been set past it."""
    at_ms = (wall.replace(tzinfo=zone) - _EPOCH) // _MS
    if _wall(at_ms, zone) == wall:
        return at_ms
    # It does not exist. Read with the offset of after the gap it is a moment before the gap, and
    # with that of before the gap one behind it; the border lies between, at a whole second.
    low_s = (wall.replace(tzinfo=zone, fold=1) - _EPOCH) // timedelta(seconds=1)
    high_s = at_ms // 1000
    while high_s - low_s > 1:
        middle_s = (low_s + high_s) // 2
        if _wall(middle_s * 1000, zone) > wall:
            high_s = middle_s
        else:
            low_s = middle_s
    return high_s * 1000


@functools.lru_cache(maxsize=MARKS_KEPT_MAX)
def _mark_start_ms(zone: tzinfo, mark: int) -> int:
    return _instant_ms(_WALL_EPOCH + mark * _MS, zone)


@functools.lru_cache(maxsize=COUNTS_KEPT_MAX)
def _count_kept(resets: Resets, zone: tzinfo, epoch_ms: int, start_ms: int) -> int:
    """How many resets are after the epoch and not after one of them. Kept, because some stores
    leave an epoch for years: 0.2 us instead of 15 of a calendar, and more of cron."""
    return resets._count(epoch_ms, start_ms)


def _blocks_from(at_ms: int) -> range:
    first = at_ms // BLOCK_MS
    return range(first, min(first + BLOCKS_MAX, LATEST_MS // BLOCK_MS))


def _blocks_until(at_ms: int) -> range:
    last = at_ms // BLOCK_MS
    return range(last, max(last - BLOCKS_MAX, EARLIEST_MS // BLOCK_MS), -1)


@functools.lru_cache(maxsize=BLOCKS_KEPT_MAX)
def _cron_block(cron: str, zone: tzinfo, number: int) -> tuple[int, ...]:
    """All resets of a block, in their order."""
    start_ms, end_ms = number * BLOCK_MS, (number + 1) * BLOCK_MS
    last = _wall(end_ms, zone) + _MARGIN
    simulate, _ = _cronsim(cron)
    found: list[int] = []
    for wall in simulate(cron, _wall(start_ms, zone) - _MARGIN):
        if wall > last:
            break
        at_ms = _instant_ms(wall, zone)
        if start_ms <= at_ms < end_ms:
            found.append(at_ms)
    return tuple(found)
