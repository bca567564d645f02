"""From a request to demands: which buckets it touches and how much of each limit it takes.

All that a warm acquire reads of the configuration is here: a request plan, and the cache
that has it at hand. `plan_cache` says how they get there. In these two modules "plan" is short
for it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from headgate.core.decision import Amounts as DemandAmounts
from headgate.core.decision import Demand
from headgate.core.errors import DemandTooLarge, ValidationError
from headgate.core.levels import Lookup, Mode, OnUnavailable, Resolution
from headgate.core.limits import AMOUNT_MAX, parse_amount
from headgate.core.record import BucketKey, Terms
from headgate.core.refill.bucket import MILLI

DEMANDS_MAX = 64
SHARED_REQUEST_PLANS_MAX = 1024


class Each:
    """That much of every limit the entity's own bucket has, whatever their names."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: int) -> None:
        self.tokens = parse_amount("tokens", tokens)


class Tokens:
    """That much of the limit that `tokens` means where a caller names none.

    It is the only limit there is; limits on trial beside it, which refuse nobody, count along.
    Where there are several it is those that `counts` names, and where that names none of them
    either, it is an error, or with `every` all of them.
    """

    __slots__ = ("counts", "every", "tokens")

    def __init__(self, tokens: int, counts: Collection[str] = (), *, every: bool = False) -> None:
        self.tokens = parse_amount("tokens", tokens)
        self.counts = counts
        self.every = every


ONE_TOKEN = Tokens(1)
EACH_ONE = Each(1)


class Look:
    """A token of every limit must be there, and none is meant to be taken: for dry runs."""

    tokens = 0


LOOK = Look()


class Charge:
    """What is charged whatever is there, so no capacity bounds it: amounts by limit, or an amount
    of the limit that `Tokens` would mean. A negative amount gives back."""

    __slots__ = ("amounts", "counts", "every")

    def __init__(
        self,
        amounts: Mapping[str, int] | int,
        counts: Collection[str] = (),
        *,
        every: bool = False,
    ) -> None:
        given = {"tokens": amounts} if isinstance(amounts, int) else amounts
        for name, amount in given.items():
            parse_amount(str(name), amount, least=-AMOUNT_MAX)
        self.amounts = amounts
        self.counts = counts
        self.every = every

    @property
    def tokens(self) -> int:
        """All of it counted as one number."""
        return self.amounts if isinstance(self.amounts, int) else max(self.amounts.values())


def counted_limits(
    names: tuple[str, ...], refusing: int, asked: Tokens | Charge
) -> tuple[str, ...]:
    """The limits that tokens mean, of those there are; `refusing` of them are not on trial."""
    counted = tuple(name for name in names if name in asked.counts)
    if counted or asked.every or refusing < 2:
        return counted or names
    raise ValidationError(
        "tokens", asked.tokens,
        f"could mean each of several limits here: {', '.join(names)}; send amounts by limit name "
        f"instead, or have the policy say counts_tokens at the limit they mean",
    )  # fmt: skip


Amounts = Mapping[str, int] | Each | Tokens | Look | Charge


class LookDemand(Demand):
    """Parts of a request that look at one bucket look at the same token."""

    __slots__ = ()


class ChargeDemand(Demand):
    """Signed, as for `Store.adjust`: parts on one bucket add up to what it can hold or not."""

    __slots__ = ()


class Slot:
    """One bucket of a plan: its key, its terms and the most that can be asked of each limit."""

    __slots__ = ("bounds", "each_max", "key", "names", "refusing", "terms")

    names: tuple[str, ...]
    bounds: tuple[tuple[str, int], ...]
    each_max: int
    refusing: int  # how many of its limits are not on trial

    def __init__(self, key: BucketKey, terms: Terms, like: Slot | None = None) -> None:
        """`like` is a slot under the same terms."""
        self.key = key
        self.terms = terms
        if like is not None:
            self.names, self.bounds, self.each_max = like.names, like.bounds, like.each_max
            self.refusing = like.refusing
            return
        self.names = tuple(spec.name for spec in terms.specs)
        self.bounds = tuple(
            (spec.name, AMOUNT_MAX if spec.soft else spec.capacity_milli // MILLI)
            for spec in terms.specs
        )
        self.each_max = min((most for _, most in self.bounds), default=0)
        self.refusing = sum(not spec.soft for spec in terms.specs)


@dataclass(slots=True, eq=False, repr=False)
class RequestPlan:
    """What an acquire of one entity on one resource touches, ready for any amounts.

    The first slot is the entity's own bucket; it must know every limit that is asked for. The
    others are its parents', which take part in the limits they have.
    """

    slots: tuple[Slot, ...]
    resolutions: tuple[Resolution, ...]
    version: int
    on_unavailable: OnUnavailable | None
    bypass: bool
    is_disabled: bool = False  # then it is for charges only
    _one: Sequence[Demand] | None = None
    _latest: Sequence[Demand] | None = None

    def demands(self, consume: Amounts) -> Sequence[Demand]:
        """The demands for these amounts, checked: known names, whole numbers, within capacity."""
        # Demands are never changed, so those for one of each limit are made once, and those of the
        # latest amounts serve again where a caller asks for the same, as most do. The amounts are
        # checked against the bounds of each limit every time.
        if consume is ONE_TOKEN:
            if self._one is None:
                self._one = tuple(self.demands(Tokens(1)))
            return self._one
        slot = self.slots[0]
        if type(consume) is not dict and not isinstance(consume, Mapping):
            if type(consume) is not Tokens and type(consume) is not Each:
                return self._unlike_takes(consume)
            names, tokens = slot.names, consume.tokens
            if len(names) > 1 and type(consume) is Tokens:
                names = counted_limits(names, slot.refusing, consume)
            if names is slot.names and len(self.slots) == 1 and tokens <= slot.each_max:
                return [Demand(slot.key, slot.terms, (tokens * MILLI,) * len(names))]
            consume = dict.fromkeys(names, tokens)
        amounts: list[int | None] = []
        known = 0
        for name, most in slot.bounds:
            amount = consume.get(name)
            if amount is None:
                amounts.append(None)
            elif type(amount) is int and 0 <= amount <= most:
                amounts.append(amount * MILLI)
                known += 1
            else:
                raise too_large(slot.key, name, parse_amount(name, amount), most)
        if known != len(consume) or not known:
            raise unknown_limits(slot, consume)
        asked = tuple(amounts)
        latest = self._latest
        if latest is None or latest[0].amounts != asked:
            others = self._parent_demands(consume) if len(self.slots) > 1 else ()
            latest = self._latest = (Demand(slot.key, slot.terms, asked), *others)
        return latest

    def _unlike_takes(self, consume: object) -> list[Demand]:
        """The demands of a look or a charge."""
        if type(consume) is Look:
            return [LookDemand(one.key, one.terms, one.amounts) for one in self.demands(EACH_ONE)]
        if type(consume) is Charge:
            return self._charges(consume)
        raise ValidationError("consume", consume, "must map limit names to amounts")

    def _charges(self, consume: Charge) -> list[Demand]:
        own, amounts = self.slots[0], consume.amounts
        if isinstance(amounts, int):
            amounts = dict.fromkeys(counted_limits(own.names, own.refusing, consume), amounts)
        unknown = {name: one for name, one in amounts.items() if name not in own.terms.index}
        if unknown or not amounts:
            raise unknown_limits(own, unknown)
        demands: list[Demand] = []
        for slot in self.slots:
            asked = [amounts.get(name) for name in slot.names]
            if asked.count(None) < len(asked):
                line = tuple(None if amount is None else amount * MILLI for amount in asked)
                cascaded = None if slot is own else line
                demands.append(ChargeDemand(slot.key, slot.terms, line, cascaded=cascaded))
        return demands

    def _parent_demands(self, consume: Mapping[str, int]) -> list[Demand]:
        """Amounts are checked already, but for what the parents can hold."""
        demands = []
        for slot in self.slots[1:]:
            asked = [consume.get(name) for name in slot.names]
            if asked.count(None) < len(asked):
                amounts = tuple(None if amount is None else amount * MILLI for amount in asked)
                demand = Demand(slot.key, slot.terms, amounts, cascaded=amounts)
                demands.append(check_capacity(demand))
        return demands


class SharedRequestPlans:
    """Plans to copy for entities that have nothing of their own: the last one of each resource, and
    of each resource and named plan.

    Most entities only have defaults, or what their named plan gives, so their plans differ in the
    key of one bucket. Working out which level gives each limit takes much longer than copying the
    outcome, and copies share one Terms object, by whose identity stores recognise a bucket's
    limits. A copy is made only where the new lookup holds the very objects that the plan was made
    from (compared by identity: the catalog hands out the same ones until somebody changes them),
    the same configuration version and the same defaults; in every other case a plan is made from
    the start.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str | None], tuple[str, Lookup, object, RequestPlan]] = {}

    def copy(
        self, namespace: str, resource: str, lookup: Lookup, variant: object
    ) -> RequestPlan | None:
        kept = self._kept.get((resource, _plan_of(lookup)))
        if kept is None or not _is_common(lookup):
            return None
        of, like, by, plan = kept
        [standing], [model] = lookup.lineage, like.lineage
        if (
            standing.resource is not model.resource
            or standing.system is not model.system
            or standing.plan is not model.plan
            or (of, like.version) != (namespace, lookup.version)
            or by is not variant
        ):
            return None
        [slot] = plan.slots
        key = BucketKey(namespace, standing.entity_id, resource)
        slots = (Slot(key, slot.terms, slot),)
        return RequestPlan(slots, plan.resolutions, plan.version, plan.on_unavailable, plan.bypass)

    def keep(
        self, namespace: str, resource: str, lookup: Lookup, variant: object, plan: RequestPlan
    ) -> None:
        if _is_common(lookup) and plan.slots:
            if len(self._kept) >= SHARED_REQUEST_PLANS_MAX:
                self._kept.clear()
            self._kept[resource, _plan_of(lookup)] = (namespace, lookup, variant, plan)


def _plan_of(lookup: Lookup) -> str | None:
    plan = lookup.lineage[0].plan
    return None if plan is None else plan.name


def _is_common(lookup: Lookup) -> bool:
    """Whether its plan would be the same for any other entity that is on the same plan."""
    standing = lookup.lineage[0]
    return (
        len(lookup.lineage) == 1
        and standing.own is None
        and standing.own_default is None
        and (standing.entity is None or standing.entity.mode is Mode.NORMAL)
    )


def join_parts(parts: Sequence[Sequence[Demand]]) -> Sequence[Demand]:
    """The demands of all parts of a request together."""
    if len(parts) == 1:
        return parts[0]
    return merge_demands([demand for part in parts for demand in part])


def merge_demands(demands: Sequence[Demand]) -> list[Demand]:
    """Each bucket once: what several parts of a request want of it is added up, that which it is
    asked for itself apart from that which comes by cascade."""
    if len(demands) > DEMANDS_MAX:
        raise ValidationError(
            "demands", len(demands), f"touch more than {DEMANDS_MAX} buckets; ask for fewer at once"
        )
    seen: dict[str, dict[bool, Demand]] = {}
    for demand in demands:
        kinds = seen.setdefault(demand.key.text, {})
        kind = demand.cascaded is not None
        twin = kinds.get(kind)
        kinds[kind] = demand if twin is None else _sum(twin, demand)
    found: list[Demand] = []
    for kinds in seen.values():
        one, *other = kinds.values()
        found.append(check_capacity(join_halves(kinds[False], kinds[True])) if other else one)
    return found


def _sum(one: Demand, other: Demand) -> Demand:
    """Both asked for themselves, or both by cascade. Looks look at the same tokens."""
    _check_same_limits(one, other)
    if type(one) is LookDemand:
        each = zip(one.amounts, other.amounts, strict=True)
        return LookDemand(one.key, one.terms, tuple(b if a is None else a for a, b in each))
    amounts = _add(one.amounts, other.amounts)
    cascaded = None if one.cascaded is None else amounts
    if type(one) is ChargeDemand:
        return ChargeDemand(one.key, one.terms, amounts, cascaded=cascaded)
    parts = _add_parts(one, other)
    return check_capacity(Demand(one.key, one.terms, amounts, parts=parts, cascaded=cascaded))


def join_halves(own: Demand, cascaded: Demand) -> Demand:
    """What one bucket is asked for itself and by cascade, as one demand."""
    _check_same_limits(own, cascaded)
    counted: DemandAmounts | None = None
    if own.counted or cascaded.counted:
        counted = _add(own.counted or own.amounts, cascaded.counted or cascaded.amounts)
    return type(own)(
        own.key, own.terms, _add(own.amounts, cascaded.amounts), counted,
        _add_parts(own, cascaded), cascaded.cascaded, (own, cascaded),
    )  # fmt: skip


def _check_same_limits(one: Demand, other: Demand) -> None:
    if one.terms.specs != other.terms.specs:
        raise ValidationError(
            "limits", one.key.text, "is asked for twice with different limits; give it one set"
        )


def _add(one: DemandAmounts, other: DemandAmounts) -> DemandAmounts:
    return tuple(
        a if b is None else b if a is None else a + b for a, b in zip(one, other, strict=True)
    )


def _add_parts(one: Demand, other: Demand) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(_part_counts(one), _part_counts(other), strict=True))


def _part_counts(demand: Demand) -> tuple[int, ...]:
    return demand.parts or tuple(int(amount is not None) for amount in demand.amounts)


def check_capacity(demand: Demand) -> Demand:
    """The demand, if its bucket can ever hold it; a charge is taken whatever it holds."""
    if type(demand) is ChargeDemand:
        return demand
    for spec, milli in zip(demand.terms.specs, demand.amounts, strict=True):
        if milli is not None and milli > spec.capacity_milli and not spec.soft:
            raise too_large(demand.key, spec.name, milli // MILLI, spec.capacity_milli // MILLI)
    return demand


def too_large(key: BucketKey, name: str, amount: int, capacity: int) -> DemandTooLarge:
    return DemandTooLarge(key.entity_id, key.resource, name, amount, capacity)


def unknown_limits(slot: Slot, consume: Mapping[str, int]) -> ValidationError:
    if not consume:
        return ValidationError(
            "consume", consume, f"asks for nothing; name some of {', '.join(slot.names)}"
        )
    known = ", ".join(slot.names)
    for name, amount in consume.items():
        if name not in slot.terms.index:
            return ValidationError(
                "consume", name,
                f"is not a limit of {slot.key.entity_id} on {slot.key.resource}; it has {known}",
            )  # fmt: skip
        parse_amount(str(name), amount)
    raise AssertionError("every name was known and every amount an amount")


# --------------------------------------------------------------------------------------------------
# A bounded cache whose entries live for a while; the clock is passed in.

Value = TypeVar("Value")

ENTRIES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often the cache of limits was asked, how often it had the answer, and what it holds."""

    hits: int
    misses: int
    size: int
    ttl_seconds: float


class Cache(Generic[Value]):
    """At most `entries_max` values, each for `ttl_ms`; the oldest entry makes room.

    What was looked up and not found is a value like any other (a negative entry).
    """

    __slots__ = ("_entries", "entries_max", "hits", "misses", "ttl_ms")

    def __init__(self, ttl_ms: int, entries_max: int = ENTRIES_MAX) -> None:
        self.ttl_ms = ttl_ms
        self.entries_max = entries_max
        self.hits = 0
        self.misses = 0
        self._entries: dict[Hashable, tuple[int, Value]] = {}

    def get(self, key: Hashable, now_ms: int) -> Value | None:
        entry = self._entries.get(key)
        if entry is not None and now_ms < entry[0]:
            self.hits += 1
            return entry[1]
        self.misses += 1
        return None

    def until_ms(self, key: Hashable) -> int:
        """Until when the value is fresh, for who has just got it."""
        return self._entries[key][0]

    def stale(self, key: Hashable) -> Value | None:
        """The value even past its time: better than nothing while its source is away."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def put(self, key: Hashable, value: Value, now_ms: int) -> None:
        if self.ttl_ms <= 0 or self.entries_max <= 0:
            return
        self._entries.pop(key, None)
        if len(self._entries) >= self.entries_max:
            self._make_room()
        self._entries[key] = (now_ms + self.ttl_ms, value)

    def _make_room(self) -> None:
        """The oldest sixteenth goes, at least one: the head of a dict is slow to find singly."""
        for key in list(self._entries)[: max(1, self.entries_max // 16)]:
            self._entries.pop(key, None)

    def drop(self, key: Hashable) -> None:
        self._entries.pop(key, None)

    def invalidate(self) -> None:
        self._entries.clear()

    def stats(self) -> CacheStats:
        return CacheStats(self.hits, self.misses, len(self._entries), self.ttl_ms / 1000)
