"""From a request to demands: which buckets it touches and how much of each limit it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.core.bucket import MILLI
from headgate.core.decision import Demand, JointDemand
from headgate.core.errors import DemandTooLarge, DisabledError, ValidationError
from headgate.core.levels import Lookup, Mode, OnUnavailable, Resolution, resolve
from headgate.core.limits import AMOUNT_MAX, Limit, parse_amount
from headgate.core.record import BucketKey, Terms

DEMANDS_MAX = 64
SHARED_PLANS_MAX = 1024


class Each:
    """That much of every limit the entity's own bucket has, whatever their names."""

    __slots__ = ("tokens",)

    def __init__(self, tokens: int) -> None:
        self.tokens = parse_amount("tokens", tokens)


ONE_EACH = Each(1)


Amounts = Mapping[str, int] | Each


class Slot:
    """One bucket of a plan: its key, its terms and the most that can be asked of each limit."""

    __slots__ = ("bounds", "each_max", "key", "names", "terms")

    names: tuple[str, ...]
    bounds: tuple[tuple[str, int], ...]
    each_max: int

    def __init__(self, key: BucketKey, terms: Terms, like: Slot | None = None) -> None:
        """`like` is a slot under the same terms."""
        self.key = key
        self.terms = terms
        if like is not None:
            self.names, self.bounds, self.each_max = like.names, like.bounds, like.each_max
            return
        self.names = tuple(spec.name for spec in terms.specs)
        self.bounds = tuple(
            (spec.name, AMOUNT_MAX if spec.soft else spec.capacity_milli // MILLI)
            for spec in terms.specs
        )
        self.each_max = min((most for _, most in self.bounds), default=0)


class Plan:
    """What an acquire of one entity on one resource touches, ready for any amounts.

    The first slot is the entity's own bucket; it must know every limit that is asked for. The
    others are its parents', which take part in the limits they have.
    """

    __slots__ = ("_one", "bypass", "on_unavailable", "resolutions", "slots", "version")

    def __init__(
        self,
        slots: tuple[Slot, ...],
        resolutions: tuple[Resolution, ...],
        version: int,
        on_unavailable: OnUnavailable | None,
        bypass: bool,
    ) -> None:
        self.slots = slots
        self.resolutions = resolutions
        self.version = version
        self.on_unavailable = on_unavailable
        self.bypass = bypass
        self._one: Sequence[Demand] | None = None

    def demands(self, consume: Amounts) -> Sequence[Demand]:
        """The demands for these amounts, checked: known names, whole numbers, within capacity."""
        if consume is ONE_EACH:  # what most ask for is made once
            if self._one is None:
                self._one = tuple(self.demands(Each(1)))
            return self._one
        slot = self.slots[0]
        if type(consume) is not dict and not isinstance(consume, Mapping):
            if type(consume) is not Each:
                raise ValidationError("consume", consume, "must map limit names to amounts")
            if len(self.slots) == 1 and consume.tokens <= slot.each_max:
                line = (consume.tokens * MILLI,) * len(slot.names)
                return [Demand(slot.key, slot.terms, line)]
            consume = dict.fromkeys(slot.names, consume.tokens)
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
        first = Demand(slot.key, slot.terms, tuple(amounts))
        if len(self.slots) == 1:
            return [first]
        return [first, *self._parent_demands(consume)]

    def _parent_demands(self, consume: Mapping[str, int]) -> list[Demand]:
        """Amounts are checked already, but for what the parents can hold."""
        demands = []
        for slot in self.slots[1:]:
            amounts: list[int | None] = []
            asked = False
            for name, most in slot.bounds:
                amount = consume.get(name)
                if amount is None:
                    amounts.append(None)
                    continue
                if amount > most:
                    raise too_large(slot.key, name, amount, most)
                amounts.append(amount * MILLI)
                asked = True
            if asked:
                demands.append(Demand(slot.key, slot.terms, tuple(amounts)))
        return demands


class SharedPlans:
    """Plans to copy for entities that have nothing of their own: the last one of each resource.

    It serves as long as the very same stored limits come from the catalog.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, Lookup, object, Plan]] = {}

    def copy(self, namespace: str, resource: str, lookup: Lookup, variant: object) -> Plan | None:
        kept = self._kept.get(resource)
        if kept is None or not _is_common(lookup):
            return None
        of, like, by, plan = kept
        [standing], [model] = lookup.lineage, like.lineage
        if (
            standing.resource is not model.resource
            or standing.system is not model.system
            or (of, like.version) != (namespace, lookup.version)
            or by is not variant
        ):
            return None
        [slot] = plan.slots
        key = BucketKey(namespace, standing.entity_id, resource)
        slots = (Slot(key, slot.terms, slot),)
        return Plan(slots, plan.resolutions, plan.version, plan.on_unavailable, plan.bypass)

    def keep(
        self, namespace: str, resource: str, lookup: Lookup, variant: object, plan: Plan
    ) -> None:
        if _is_common(lookup) and plan.slots:
            if len(self._kept) >= SHARED_PLANS_MAX:
                self._kept.clear()
            self._kept[resource] = (namespace, lookup, variant, plan)


def _is_common(lookup: Lookup) -> bool:
    """Whether its plan would be the same for any other entity."""
    standing = lookup.lineage[0]
    return (
        len(lookup.lineage) == 1
        and standing.own is None
        and standing.own_default is None
        and (standing.entity is None or standing.entity.mode is Mode.NORMAL)
    )


def make_plan(
    namespace: str,
    resource: str,
    lookup: Lookup,
    defaults: Sequence[Limit],
    override: tuple[Limit, ...] | None,
    intern: Mapping[Terms, Terms],
    *,
    whole: bool = False,
) -> Plan:
    """The plan for a looked-up entity; an override replaces the entity's limits as a whole, and
    serves its parents where they have none."""
    fallback = override or defaults
    resolutions = tuple(resolve(one, resource, defaults, whole=whole) for one in lookup.lineage)
    own = resolutions[0]
    for one in resolutions:
        if one.mode is Mode.DISABLED:
            raise DisabledError(*one.mode_source.split(" ", 1))
    slots = []
    for place, (standing, resolution) in enumerate(zip(lookup.lineage, resolutions, strict=True)):
        key = BucketKey(namespace, standing.entity_id, resource)
        if override and place == 0:
            terms = Terms(tuple(limit.spec for limit in override), own=True)
        elif resolution.given:
            terms = Terms(
                tuple(limit.spec for limit in resolution.limits),
                lookup.version,
                sources=tuple(given.level for given in resolution.given),
            )
        elif place and fallback:
            terms = Terms(tuple(limit.spec for limit in fallback), own=True)
        elif place:
            continue
        elif own.mode is Mode.BYPASS:
            terms = Terms((), lookup.version)
        else:
            raise no_limits(standing.entity_id, resource)
        slots.append(Slot(key, intern.get(terms, terms)))
    return Plan(
        tuple(slots), resolutions, lookup.version, own.on_unavailable, own.mode is Mode.BYPASS
    )


def join_parts(parts: Sequence[Sequence[Demand]]) -> Sequence[Demand]:
    """The demands of all parts of a request together."""
    if len(parts) == 1:
        return parts[0]
    return merge_demands([demand for part in parts for demand in part])


def merge_demands(demands: Sequence[Demand]) -> list[Demand]:
    """Each bucket once: what several parts of a request want of it is added up."""
    if len(demands) > DEMANDS_MAX:
        raise ValidationError(
            "demands", len(demands), f"touch more than {DEMANDS_MAX} buckets; ask for fewer at once"
        )
    seen: dict[str, Demand] = {}
    for demand in demands:
        twin = seen.get(demand.key.text)
        seen[demand.key.text] = demand if twin is None else _sum(twin, demand)
    return list(seen.values())


def _sum(one: Demand, other: Demand) -> Demand:
    if one.terms.specs != other.terms.specs:
        raise ValidationError(
            "limits", one.key.text, "is asked for twice with different limits; give it one set"
        )
    amounts = tuple(
        a if b is None else b if a is None else a + b
        for a, b in zip(one.amounts, other.amounts, strict=True)
    )
    parts = tuple(a + b for a, b in zip(_part_counts(one), _part_counts(other), strict=True))
    return check_capacity(JointDemand(one.key, one.terms, amounts, parts))


def _part_counts(demand: Demand) -> tuple[int, ...]:
    return demand.parts or tuple(int(amount is not None) for amount in demand.amounts)


def check_capacity(demand: Demand) -> Demand:
    """The demand, if its bucket can ever hold it."""
    for spec, milli in zip(demand.terms.specs, demand.amounts, strict=True):
        if milli is not None and milli > spec.capacity_milli and not spec.soft:
            raise too_large(demand.key, spec.name, milli // MILLI, spec.capacity_milli // MILLI)
    return demand


def too_large(key: BucketKey, name: str, amount: int, capacity: int) -> DemandTooLarge:
    return DemandTooLarge(key.entity_id, key.resource, name, amount, capacity)


def no_limits(entity_id: str, resource: str) -> ValidationError:
    return ValidationError(
        "limits", None,
        f"are configured nowhere for {entity_id} on {resource}: pass limits=[…], give the limiter "
        f"defaults, or store some with set_limits, set_resource_defaults or set_system_defaults",
    )  # fmt: skip


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
