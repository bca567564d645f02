"""How things are named in Redis. Everything of one entity shares a hash tag, so in a cluster its
buckets, their index and their usage live in one slot."""

from __future__ import annotations

from headgate.core.limits__names import SEPARATOR
from headgate.core.record import BucketKey

PREFIX = "hg"


def tag(namespace: str, entity_id: str) -> str:
    """Names hold neither braces nor the separator, so the tag is unique for the two."""
    return "{" + namespace + SEPARATOR + entity_id + "}"


def bucket(key: BucketKey) -> str:
    return f"{PREFIX}:b:{tag(key.namespace, key.entity_id)}{SEPARATOR}{key.resource}"


def bucket_index(namespace: str, entity_id: str) -> str:
    """The set of an entity's bucket keys; it outlives them, so some may have expired."""
    return f"{PREFIX}:i:{tag(namespace, entity_id)}"


def usage_index(namespace: str, entity_id: str) -> str:
    """The set of an entity's usage rows; some may have expired."""
    return bucket_index(namespace, entity_id) + ":u"


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
    inner, rest = text.split("{", 1)[1].split("}" + SEPARATOR, 1)
    namespace, entity_id = inner.split(SEPARATOR)
    resource, month = rest.rsplit(SEPARATOR, 1)
    return BucketKey(namespace, entity_id, resource), int(month)
