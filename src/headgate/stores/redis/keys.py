"""How things are named in Redis. Everything of one entity shares a hash tag, so in a cluster its
buckets, their part of the index and their usage live in one slot."""

from __future__ import annotations

import functools

from headgate.core.levels import Level
from headgate.core.limits import SEPARATOR
from headgate.core.record import BucketKey
from headgate.stores.redis.client.cluster import tag_in_slot

PREFIX = "hg"


def tag(namespace: str, entity_id: str) -> str:
    """Names hold neither braces nor the separator, so the tag is unique for the two."""
    return "{" + namespace + SEPARATOR + entity_id + "}"


def bucket(key: BucketKey) -> str:
    return f"{PREFIX}:b:{tag(key.namespace, key.entity_id)}{SEPARATOR}{key.resource}"


def bucket_index(namespace: str, slot: int, slots: int) -> str:
    """The index of a namespace's buckets, in a cluster of those in one slot; see listing.lua.

    No entity's id is empty or holds a separator, so the tag is never that of an entity.
    """
    stem = namespace + SEPARATOR + SEPARATOR
    return f"{PREFIX}:i:{{{stem if slots == 1 else tag_in_slot(stem, slot)}}}"


def usage_index(namespace: str, entity_id: str) -> str:
    """The set of an entity's usage rows; some may have expired."""
    return f"{PREFIX}:i:{tag(namespace, entity_id)}:u"


def usage(key: BucketKey) -> str:
    """What usage rows of a bucket begin with; the month follows."""
    return f"{PREFIX}:u:{tag(key.namespace, key.entity_id)}{SEPARATOR}{key.resource}{SEPARATOR}"


def once(namespace: str, entity_id: str, name: str) -> str:
    return f"{PREFIX}:o:{tag(namespace, entity_id)}{SEPARATOR}{name}"


def bucket_key(text: str) -> BucketKey:
    """The bucket a key names: `hg:b:{namespace#entity}#resource`."""
    inner, resource = text.split("{", 1)[1].split("}" + SEPARATOR, 1)
    namespace, entity_id = inner.split(SEPARATOR)
    return BucketKey(namespace, entity_id, resource)


def usage_parts(text: str) -> tuple[BucketKey, int]:
    """The bucket and month a usage row is about: `hg:u:{namespace#entity}#resource#month`."""
    stem, month = text.rsplit(SEPARATOR, 1)
    return bucket_key(stem), int(month)


# --------------------------------------------------------------------------------------------------
# How the catalog and the audit are named in Redis.
#
# All of a namespace's catalog shares the hash tag `{namespace id}` and so one slot of a cluster:
#
#     hg:n:{ns}       the head: state, name, version, …         hg:e:{ns}       entity id -> entity
#     hg:l:{ns}       entity#resource -> stored limits          hg:x:{ns}       the index
#                     ##plan -> plan
#     hg:a:{ns}#id    the audit of one entity or level          hg:g:{ns}       that of everybody
#     hg:d:{ns}       name -> small text                        hg:t:{ns}       their ends
#
# The index is a sorted set with every score 0, which makes it an ordered list of texts. It holds
# `e#id` per entity, `c#parent#id` per child, `l#entity#resource` per level of an entity, and for
# levels with limits `d#resource` (defaults) and `r#resource#entity`. Plans are `p#plan`, and
# `m#plan#entity` leads to the entities that refer to one. No name holds a `#`, and `#` sorts before
# everything that a name can hold, so entries sort as their names do.
#
# Which namespaces there are is kept under the tag `{hg}`, which is no namespace id.

NAMES = PREFIX + ":names:{hg}"  # name -> the active namespace of that name
IDS = PREFIX + ":ids:{hg}"  # id -> namespace, in whatever state
META = PREFIX + ":meta:{hg}"

EVERYTHING = PREFIX + ":*"
EVERY_AUDIT = PREFIX + ":a:*"
EVERY_LOG = PREFIX + ":g:*"
EVERY_USAGE = PREFIX + ":u:*"


def _key(kind: str, namespace: str) -> str:
    return f"{PREFIX}:{kind}:{{{namespace}}}"


head = functools.partial(_key, "n")
entities = functools.partial(_key, "e")
levels = functools.partial(_key, "l")
index = functools.partial(_key, "x")
expiring = functools.partial(_key, "d")
expiring_ends = functools.partial(_key, "t")
log = functools.partial(_key, "g")


def audit(namespace: str, audit_id: str) -> str:
    return _key("a", namespace) + SEPARATOR + audit_id


def audit_id(stream: str) -> str:
    """The entity or level whose audit a stream is."""
    return stream.partition(SEPARATOR)[2]


def entity_keys(namespace: str) -> str:
    """Buckets, usage and whatever else has the tag of an entity."""
    return f"{PREFIX}:*:{{{namespace}{SEPARATOR}*"


def usage_of_namespace(namespace: str) -> str:
    return f"{PREFIX}:u:{{{namespace}{SEPARATOR}*"


def level_field(level: Level) -> str:
    return SEPARATOR.join((level.entity_id or "", level.resource or ""))


def plan_field(name: str) -> str:
    """No level has a field of two separators: names of resources have none."""
    return SEPARATOR + SEPARATOR + name


def entry(*names: str) -> str:
    return SEPARATOR.join(names)


def last_name(entry: str) -> str:
    return entry.rpartition(SEPARATOR)[2]


def span(*names: str, after: str | None = None) -> tuple[str, str]:
    """From where to where the entries reach that begin with these names; `after` skips some."""
    stem = SEPARATOR.join(names)
    first = f"[{stem}{SEPARATOR}" if after is None else f"({stem}{SEPARATOR}{after}"
    return first, f"({stem}$"  # $ is the character after #
