"""How everything is named in the table; no two things share a key.

A namespace's keys begin with its id and a `/`. The id has 11 characters and none of them is a `/`;
the registry's own id is `_`. Names never hold a `#`, so what is joined with `#` can be told apart.

    record            PK                                    SK
    entity            {ns}/ENTITY#{id}                      #META
    entity's limits   {ns}/ENTITY#{id}                      #CONFIG#{resource}
    usage             {ns}/ENTITY#{id}                      #USAGE#{resource}#{type}#{start}
    resource limits   {ns}/RESOURCE#{resource}              #CONFIG
    plan              {ns}/PLAN#{plan}                      #CONFIG
    system limits     {ns}/SYSTEM#                          #CONFIG   (and the namespace's state)
    bucket            {ns}/BUCKET#{id}#{resource}#{shard}   #STATE
    audit event       {ns}/AUDIT#{id}                       #AUDIT#{event id}
    caller's key      {ns}/ONCE#{digest}                    #ONCE
    small text        {ns}/DRAWER#{name}                    #KEPT
    namespace         _/SYSTEM#                             #NAMESPACE#{name}, #NSID#{ns}
    version           _/SYSTEM#                             #VERSION
    stream position   _/SYSTEM#                             #STREAM#{stream}#{shard}

    index   PK                            SK                                leads to
    GSI1    {ns}/PARENT#{id}              CHILD#{id}                        children
    GSI2    {ns}/RESOURCE#{resource}      BUCKET#{id}#{shard}               buckets of a resource
            {ns}/RESOURCE#{resource}      USAGE#{type}#{newest first}#{id}  usage of a resource
            {ns}/CONFIG#                  RESOURCE#{resource}               resources with limits
            {ns}/CONFIG#                  ENTITY#{resource}#{id}            … of some entity
            {ns}/CONFIG#                  PLAN#{plan}                       plans
            {ns}/DRAWER#                  {end}#{name}                      texts by their end
    GSI3    {ns}/ENTITY_CONFIG#{resource} {id}                              entities with limits
            {ns}/PLAN#{plan}              {id}                              entities on a plan
            {ns}/ENTITY#{id}              BUCKET#{resource}#{shard}         buckets of an entity
    GSI4    {ns}                          the item's PK                     all of a namespace
            {ns}                          {ns}/USAGE#{type}#{newest first}#{id}#{resource}
            {ns}                          {ns}/EVENT#{event id}             the audit log

Usage is in GSI4 under a key of its own: sorted as pages of usage are, and out of the way of whoever
lists entities, whose PK it has. So are audit events: their ids begin with the time, which makes the
log of a namespace one range of the index. An entry there costs what it did under the item's PK, so
the log costs no write; and the index takes an entry per event in any case, for purges.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from headgate.core.errors import Damaged, ValidationError
from headgate.core.limits import SEPARATOR, Spec
from headgate.core.record import Terms
from headgate.core.refill.resets import EVERY, schedule_of

REGISTRY = "_"  # the namespace id of what is known about namespaces; no namespace has it
NEXT = "$"  # the character after '#': it ends a range of keys that begin alike
JUST_AFTER = "!"  # sorts before everything a name can hold: name + '!' follows name at once
ORDER_BASE = 10**14  # a window's start is subtracted from it, so that the newest sorts first

KEY_BYTES_MAX = 300  # longer than every name; a sort key may have 1024 bytes

PK, SK = "PK", "SK"
GSI1, GSI2, GSI3, GSI4 = "GSI1", "GSI2", "GSI3", "GSI4"

META = "#META"
STATE = "#STATE"
CONFIG = "#CONFIG"
VERSION = "#VERSION"
USAGE = "#USAGE#"
AUDIT = "#AUDIT#"
NAMESPACE = "#NAMESPACE#"
NSID = "#NSID#"
ONCE = "#ONCE"
EXPIRING = "#KEPT"


class BucketPk(NamedTuple):
    """Whose bucket for what, and which shard of it."""

    namespace: str
    entity_id: str
    resource: str
    shard: int


class UsageSk(NamedTuple):
    resource: str
    window_type: str
    window_start: str


def pk_system(namespace: str = REGISTRY) -> str:
    return f"{namespace}/SYSTEM#"


def pk_resource(namespace: str, resource: str) -> str:
    return f"{namespace}/RESOURCE#{resource}"


def pk_entity(namespace: str, entity_id: str) -> str:
    return f"{namespace}/ENTITY#{entity_id}"


def pk_plan(namespace: str, plan: str) -> str:
    """Also of the index that leads to its entities."""
    return f"{namespace}/PLAN#{plan}"


def pk_bucket(namespace: str, entity_id: str, resource: str, shard: int) -> str:
    return f"{namespace}/BUCKET#{entity_id}#{resource}#{shard}"


def parse_bucket_pk(pk: str) -> BucketPk:
    """The parts pk_bucket was given; Damaged if it did not make this."""
    namespace, _, rest = pk.partition("/")
    parts = rest.split(SEPARATOR)
    if len(parts) != 4 or parts[0] != "BUCKET" or not (parts[3].isascii() and parts[3].isdigit()):
        raise Damaged(f"{pk!r} is no bucket's key; it was written by something else")
    return BucketPk(namespace, parts[1], parts[2], int(parts[3]))


def pk_audit(namespace: str, audit_id: str) -> str:
    """`audit_id` is an entity's or one like `$SYSTEM` or `$PLAN:name`; no entity's begins so."""
    return f"{namespace}/AUDIT#{audit_id}"


def pk_once(namespace: str, digest: str) -> str:
    return f"{namespace}/ONCE#{digest}"


def pk_expiring(namespace: str, name: str) -> str:
    return f"{namespace}/DRAWER#{name}"


def gsi2_pk_expiring(namespace: str) -> str:
    return f"{namespace}/DRAWER#"


def gsi2_sk_expiring(until_ms: int, name: str) -> str:
    return f"{max(0, until_ms):015d}#{name}"


def sk_config(resource: str | None = None) -> str:
    """Of the system or a resource, or (named) an entity's for that resource."""
    return CONFIG if resource is None else f"{CONFIG}#{resource}"


def sk_usage(resource: str, window_type: str, window_start: str) -> str:
    """Windows of different types begin at the same moment, so the type is in the key."""
    return f"{USAGE}{resource}#{window_type}#{window_start}"


def parse_usage_sk(sk: str) -> UsageSk:
    parts = sk.removeprefix(USAGE).split(SEPARATOR)
    if not sk.startswith(USAGE) or len(parts) != 3:
        raise Damaged(f"{sk!r} is no usage row's key; see what else writes to this table")
    return UsageSk(*parts)


def sk_audit(event_id: str) -> str:
    return f"{AUDIT}{event_id}"


def parse_audit_sk(sk: str) -> str:
    """The id of the event."""
    return sk.removeprefix(AUDIT)


def gsi4_sk_audit(namespace: str, event_id: str) -> str:
    return f"{namespace}/EVENT#{event_id}"


def sk_namespace(name: str) -> str:
    return f"{NAMESPACE}{name}"


def sk_nsid(namespace: str) -> str:
    return f"{NSID}{namespace}"


def pk_parent(namespace: str, parent_id: str) -> str:
    return f"{namespace}/PARENT#{parent_id}"


def gsi1_sk(entity_id: str) -> str:
    return f"CHILD#{entity_id}"


def gsi2_sk_bucket(entity_id: str, shard: int) -> str:
    return f"BUCKET#{entity_id}#{shard}"


def gsi2_sk_usage(window_type: str, start_ms: int, entity_id: str) -> str:
    return f"USAGE#{window_type}#{newest_first(start_ms)}#{entity_id}"


def gsi2_pk_configs(namespace: str) -> str:
    return f"{namespace}/CONFIG#"


def gsi2_sk_config(resource: str, entity_id: str | None = None) -> str:
    return f"RESOURCE#{resource}" if entity_id is None else f"ENTITY#{resource}#{entity_id}"


def gsi2_sk_plan(plan: str) -> str:
    return f"PLAN#{plan}"


def gsi3_pk_entity_config(namespace: str, resource: str) -> str:
    return f"{namespace}/ENTITY_CONFIG#{resource}"


def gsi3_sk_bucket(resource: str, shard: int) -> str:
    return f"BUCKET#{resource}#{shard}"


def gsi4_sk_usage(
    namespace: str, window_type: str, start_ms: int, entity_id: str, resource: str
) -> str:
    place = f"{window_type}#{newest_first(start_ms)}#{entity_id}#{resource}"
    return f"{namespace}/USAGE#{place}"


def newest_first(time_ms: int) -> str:
    """Fifteen digits that sort against time; beyond what they can tell they stop."""
    return f"{min(max(ORDER_BASE - time_ms, 0), 10 * ORDER_BASE - 1):015d}"


def clip_cursor(cursor: str) -> str:
    """A caller's cursor as something a key can be compared with."""
    text = cursor.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.encode()[:KEY_BYTES_MAX].decode(errors="ignore")


def last_name(key: str) -> str:
    """What follows the last `#`."""
    return key.rpartition(SEPARATOR)[2]


# --------------------------------------------------------------------------------------------------
# Which limits a bucket's item holds, as one short text beside their numbers.
#
# rpm=e tpm=r! | old=m        core limits, each with its source and `!` if soft; then limits that
#                             are out of use and remembered. A leading `*` marks an override.
# tpm@month~Europe/Berlin=r   a quota: behind `@` its schedule, without `calendar`, blanks as `~`

LETTERS = {
    "entity": "e",
    "entity_default": "d",
    "plan_resource": "b",
    "plan": "p",
    "resource": "r",
    "system": "s",
    "limiter": "c",
    "override": "o",
    "remembered": "m",
}
SOURCES = {letter: source for source, letter in LETTERS.items()}
OWN = "*"
SOFT = "!"
DORMANT = "|"
SCHEDULE = "@"
BLANK = "~"  # neither a cron expression nor a time zone has one
CALENDAR = "calendar "

NO_REFILL = (0, 1000)  # amount and period of a quota, as its Spec has them
Numbers = tuple[tuple[int, int, int], ...]  # capacity, refill amount and period of each limit


@functools.lru_cache(maxsize=4096)
def layout_of(terms: Terms) -> str:
    core = len(terms.core.specs)
    parts = [OWN] if terms.own else []
    for place, (spec, source) in enumerate(zip(terms.specs, terms.sources, strict=True)):
        if place == core:
            parts.append(DORMANT)
        letter = LETTERS.get(source, source)
        parts.append(f"{spec.name}{_schedule(spec)}={letter}{SOFT if spec.soft else ''}")
    return " ".join(parts)


@functools.lru_cache(maxsize=4096)
def limits_in(layout: str) -> tuple[tuple[str, bool], ...]:
    """The limits in the order of the terms, and whether each is a quota."""
    parts = [part for part in layout.split() if part not in (OWN, DORMANT)]
    titles = [part.partition("=")[0].partition(SCHEDULE) for part in parts]
    return tuple((name, bool(found)) for name, found, _ in titles)


@functools.lru_cache(maxsize=4096)
def names_in(layout: str) -> tuple[str, ...]:
    return tuple(name for name, _ in limits_in(layout))


@functools.lru_cache(maxsize=4096)
def terms_from(layout: str, version: int, numbers: Numbers) -> Terms:
    """The terms that a layout and the limits' numbers describe."""
    parts = layout.split()
    own = parts[:1] == [OWN]
    limits = parts[own:]
    core = limits.index(DORMANT) if DORMANT in limits else len(limits)
    specs: list[Spec] = []
    sources: list[str] = []
    named = [part for part in limits if part != DORMANT]
    for part, rate in zip(named, numbers, strict=True):
        title, found, source = part.partition("=")
        name, _, schedule = title.partition(SCHEDULE)
        if not found:
            raise Damaged(f"{layout!r} is no layout of a bucket; it was written by something else")
        specs.append(Spec(name, *rate, source.endswith(SOFT), _resets(name, schedule)))
        letter = source.removesuffix(SOFT)
        sources.append(SOURCES.get(letter, letter))
    terms = Terms(
        tuple(specs[:core]), 0 if own else version, own=own, sources=tuple(sources[:core])
    )
    return terms.extend(tuple(specs[core:]), version)


def _schedule(spec: Spec) -> str:
    if spec.resets is None:
        return ""
    return SCHEDULE + spec.resets.removeprefix(CALENDAR).replace(" ", BLANK)


def _resets(name: str, schedule: str) -> str | None:
    """The text of a quota's schedule; Damaged where this machine knows no such schedule."""
    if not schedule:
        return None
    words = schedule.replace(BLANK, " ")
    try:
        return schedule_of(CALENDAR + words if words.startswith(EVERY) else words).text
    except ValidationError as error:
        raise Damaged(
            f"the limit {name} of a bucket is reset by {words!r}, which cannot be told here: "
            f"{error}"
        ) from error
