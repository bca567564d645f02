"""S10: no two names share a key, in any store: 100 000 pairs of names that look alike.

Names are made of few letters and the characters that keys are put together with, so that a key
which forgets a border meets another within the first hundred.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate.core.errors import ValidationError
from headgate.core.limits import parse_entity_id, parse_namespace_id, parse_resource
from headgate.core.record import BucketKey
from headgate.service.decide.rules import entity_id_of
from headgate.stores.dynamodb import schema
from headgate.stores.redis import keys

PAIRS = 100_000

Names = tuple[str, str, str]


def names(rng: random.Random) -> Names:
    """A namespace id, an entity and a resource, as short and alike as names can be."""
    spaces = ("aaaaaaaaaaa", "aaaaaaaaaa_", "a-aaaaaaaaa")
    entity = rng.choice("a1") + "".join(rng.choices("a1:@._-", k=rng.randint(0, 4)))
    resource = "a" + "".join(rng.choices("a1:/._-", k=rng.randint(0, 4)))
    return rng.choice(spaces), entity, resource


@functools.cache
def pairs() -> list[tuple[Names, Names]]:
    rng = random.Random(10)
    return [(names(rng), names(rng)) for _ in range(PAIRS)]


BUILDERS: dict[str, Callable[[Names], Any]] = {
    "a bucket": lambda one: BucketKey(*one).text,
    "redis": lambda one: keys.bucket(BucketKey(*one)),
    "redis usage": lambda one: keys.usage(BucketKey(*one)) + "24300",
    "redis once": lambda one: keys.once(*one),
    "dynamodb": lambda one: schema.pk_bucket(*one, 0),
    "dynamodb shards": lambda one: schema.pk_bucket(*one, 1),
    "dynamodb limits": lambda one: (schema.pk_entity(*one[:2]), schema.sk_config(one[2])),
    "dynamodb usage": lambda one: (
        schema.pk_entity(*one[:2]), schema.sk_usage(one[2], "hourly", "2026-01-01T00:00:00Z"),
    ),
    "dynamodb index of a resource": lambda one: (
        schema.pk_resource(one[0], one[2]), schema.gsi2_sk_bucket(one[1], 0),
    ),
    "dynamodb index of an entity": lambda one: (
        schema.pk_entity(*one[:2]), schema.gsi3_sk_bucket(one[2], 0),
    ),
    "dynamodb audit": lambda one: (schema.pk_audit(*one[:2]), schema.sk_audit(one[2])),
    "dynamodb children": lambda one: (schema.pk_parent(*one[:2]), schema.gsi1_sk(one[2])),
    "dynamodb entities with limits": lambda one: (
        schema.gsi3_pk_entity_config(one[0], one[2]), one[1],
    ),
    "dynamodb usage of a namespace": lambda one: schema.gsi4_sk_usage(
        one[0], "hourly", 0, one[1], one[2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_two_names_never_share_a_key(builder: Callable[[Names], Any]) -> None:
    for one, other in pairs():
        assert (builder(one) == builder(other)) == (one == other), (one, other)


def test_the_names_are_names_and_keys_tell_them() -> None:
    rng = random.Random(11)
    for _ in range(2000):
        namespace, entity, resource = one = names(rng)
        assert (parse_namespace_id(namespace), parse_entity_id(entity)) == (namespace, entity)
        assert parse_resource(resource) == resource
        key = BucketKey(*one)
        assert BucketKey.from_text(key.text) == key
        assert keys.bucket_key(keys.bucket(key)) == key
        assert keys.usage_parts(keys.usage(key) + "24300") == (key, 24300)
        assert schema.parse_bucket_pk(schema.pk_bucket(*one, 3)) == (*one, 3)
        row = resource, "hourly", "2026-01-01T00:00:00Z"
        assert schema.parse_usage_sk(schema.sk_usage(*row)) == row


def test_records_of_different_kinds_never_share_a_key() -> None:
    """Whatever an entity is called, its bucket is not somebody's limits, usage or text."""
    rng = random.Random(12)
    seen: dict[Any, str] = {}
    # An index has keys of its own, so its name is part of them.
    kinds: dict[str, Callable[[Names], Any]] = {
        "entity": lambda one: (schema.pk_entity(*one[:2]), schema.META),
        "limits": BUILDERS["dynamodb limits"],
        "usage": BUILDERS["dynamodb usage"],
        "resource": lambda one: (schema.pk_resource(one[0], one[2]), schema.sk_config()),
        "system": lambda one: (schema.pk_system(one[0]), schema.sk_config()),
        "bucket": lambda one: (schema.pk_bucket(*one, 0), schema.STATE),
        "audit": lambda one: (schema.pk_audit(one[0], one[1]), schema.sk_audit("1-2-3")),
        "audit of a resource": lambda one: (
            schema.pk_audit(one[0], f"$RESOURCE:{one[2]}"), schema.sk_audit("1-2-3"),
        ),
        "once": lambda one: (schema.pk_once(one[0], one[1]), schema.ONCE),
        "text": lambda one: (schema.pk_expiring(one[0], one[1]), schema.EXPIRING),
        "namespace": lambda one: (schema.pk_system(), schema.sk_namespace(one[1])),
        "id": lambda one: (schema.pk_system(), schema.sk_nsid(one[0])),
        "version": lambda one: (schema.pk_system(), schema.VERSION),
        "resources": lambda one: (
            "GSI2", schema.gsi2_pk_configs(one[0]), schema.gsi2_sk_config(one[2]),
        ),
        "entities": lambda one: (
            "GSI2", schema.gsi2_pk_configs(one[0]), schema.gsi2_sk_config(one[2], one[1]),
        ),
        "buckets": lambda one: ("GSI2", *BUILDERS["dynamodb index of a resource"](one)),
        "texts": lambda one: (
            "GSI2", schema.gsi2_pk_expiring(one[0]), schema.gsi2_sk_expiring(5, one[1]),
        ),
        "entities with limits": lambda one: (
            "GSI3", schema.gsi3_pk_entity_config(one[0], one[2]), one[1],
        ),
        "buckets of an entity": lambda one: ("GSI3", *BUILDERS["dynamodb index of an entity"](one)),
    }  # fmt: skip
    for _ in range(5000):
        one = names(rng)
        for kind, builder in kinds.items():
            assert seen.setdefault(builder(one), kind) == kind


def test_two_who_are_limited_never_share_an_entity() -> None:
    rng = random.Random(13)

    def who() -> tuple[str, str]:
        scope = rng.choice(("user", "user.a", "ip", "u"))
        return scope, "".join(rng.choices("ae:@é#/ ", k=rng.randint(1, 5)))

    for _ in range(PAIRS):
        one, other = who(), who()
        assert (entity_id_of(*one) == entity_id_of(*other)) == (one == other)
    for _ in range(1000):
        one = who()
        assert parse_entity_id(entity_id_of(*one))


@pytest.mark.parametrize("border", ["#", "{", "}", "\x00"])
def test_a_border_is_in_no_name(border: str) -> None:
    for parse in (parse_entity_id, parse_resource):
        with pytest.raises(ValidationError):
            parse(f"a{border}b")
