"""Keys: what they look like, and that no two things share one."""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.core.errors import Damaged
from headgate.core.history import WINDOW_TYPES, window_time
from headgate.stores.dynamodb import schema
from proof.size import sized

EXAMPLES = settings(max_examples=sized(30, 100, 1000))
LETTERS = string.ascii_letters
ALNUM = LETTERS + string.digits


def words(first: str, rest: str, size: int) -> st.SearchStrategy[str]:
    return st.builds(str.__add__, st.sampled_from(first), st.text(rest, max_size=size - 1))


ids = st.text(ALNUM + "_-", min_size=11, max_size=11)
entities = words(ALNUM, ALNUM + "_.-:@", 31)
resources = words(LETTERS, ALNUM + "_.-/:", 21)
names = words(ALNUM, ALNUM + "_.-", 21)
shards = st.integers(0, 4096)
types = st.sampled_from(WINDOW_TYPES)
times = st.integers(0, 4_000_000_000_000)
starts = times.map(window_time)


def test_keys_are_as_documented() -> None:
    ns = "abcdefghijk"
    assert schema.pk_system(ns) == "abcdefghijk/SYSTEM#"
    assert schema.pk_system() == "_/SYSTEM#"
    assert schema.pk_resource(ns, "gpt-4") == "abcdefghijk/RESOURCE#gpt-4"
    assert schema.pk_entity(ns, "user-1") == "abcdefghijk/ENTITY#user-1"
    assert schema.pk_bucket(ns, "user-1", "gpt-4", 3) == "abcdefghijk/BUCKET#user-1#gpt-4#3"
    assert schema.pk_audit(ns, "$SYSTEM") == "abcdefghijk/AUDIT#$SYSTEM"
    assert schema.STATE == "#STATE"
    assert schema.META == "#META"
    assert schema.VERSION == "#VERSION"
    assert (schema.sk_config(), schema.sk_config("gpt-4")) == ("#CONFIG", "#CONFIG#gpt-4")
    assert schema.sk_audit("1-2") == "#AUDIT#1-2"
    assert schema.sk_namespace("team") == "#NAMESPACE#team"
    assert schema.sk_nsid(ns) == "#NSID#abcdefghijk"
    usage = schema.sk_usage("gpt-4", "hourly", "2024-01-01T14:00:00Z")
    assert usage == "#USAGE#gpt-4#hourly#2024-01-01T14:00:00Z"
    assert schema.pk_parent(ns, "org") == "abcdefghijk/PARENT#org"
    assert schema.gsi1_sk("user-1") == "CHILD#user-1"
    assert schema.pk_resource(ns, "gpt-4") == "abcdefghijk/RESOURCE#gpt-4"
    assert schema.gsi2_sk_bucket("user-1", 0) == "BUCKET#user-1#0"
    assert schema.gsi3_pk_entity_config(ns, "gpt-4") == "abcdefghijk/ENTITY_CONFIG#gpt-4"
    assert schema.pk_entity(ns, "user-1") == "abcdefghijk/ENTITY#user-1"
    assert schema.gsi3_sk_bucket("gpt-4", 0) == "BUCKET#gpt-4#0"


@EXAMPLES
@given(ids, entities, resources, shards)
def test_a_bucket_s_key_tells_whose_it_is(
    ns: str, entity_id: str, resource: str, shard: int
) -> None:
    found = schema.parse_bucket_pk(schema.pk_bucket(ns, entity_id, resource, shard))
    assert found == (ns, entity_id, resource, shard)


@pytest.mark.parametrize(
    "text",
    ["", "x", "ns/ENTITY#a", "ns/BUCKET#a#r", "ns/BUCKET#a#r#", "ns/BUCKET#a#r#x",
     "ns/BUCKET#a#r#-1", "ns/BUCKET#a#r#1#2", "ns/BUCKET#a#r#1\n", "ns/BUCKET#a#r#²"],
)  # fmt: skip
def test_what_is_no_bucket_s_key_is_not_taken_for_one(text: str) -> None:
    with pytest.raises(Damaged):
        schema.parse_bucket_pk(text)


@EXAMPLES
@given(resources, types, starts)
def test_a_usage_row_s_key_tells_its_window(resource: str, kind: str, start: str) -> None:
    assert schema.parse_usage_sk(schema.sk_usage(resource, kind, start)) == (resource, kind, start)


def test_a_key_without_a_window_type_is_not_taken_for_a_usage_row() -> None:
    with pytest.raises(Damaged, match="no usage row"):
        schema.parse_usage_sk("#USAGE#gpt-4#2024-01-01T14:00:00Z")


KEYS: dict[str, tuple[Callable[..., str], Any]] = {
    "system": (schema.pk_system, (ids,)),
    "registry": (schema.pk_system, ()),
    "resource": (schema.pk_resource, (ids, resources)),
    "entity": (schema.pk_entity, (ids, entities)),
    "bucket": (schema.pk_bucket, (ids, entities, resources, shards)),
    "audit": (schema.pk_audit, (ids, entities)),
    "audit of a resource": (
        lambda ns, name: schema.pk_audit(ns, f"$RESOURCE:{name}"),
        (ids, resources),
    ),
    "parent": (schema.pk_parent, (ids, entities)),
    "configs": (schema.gsi2_pk_configs, (ids,)),
    "entity config": (schema.gsi3_pk_entity_config, (ids, resources)),
}
SORT_KEYS: dict[str, tuple[Callable[..., str], Any]] = {
    "meta": (lambda: schema.META, ()),
    "state": (lambda: schema.STATE, ()),
    "version": (lambda: schema.VERSION, ()),
    "config": (schema.sk_config, ()),
    "config of an entity": (schema.sk_config, (resources,)),
    "usage": (schema.sk_usage, (resources, types, starts)),
    "audit": (schema.sk_audit, (names,)),
    "namespace": (schema.sk_namespace, (names,)),
    "id": (schema.sk_nsid, (ids,)),
}


@pytest.mark.parametrize("family", [KEYS, SORT_KEYS], ids=["pk", "sk"])
@EXAMPLES
@given(data=st.data())
def test_two_different_things_never_have_one_key(family: Any, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(sorted(family))) for _ in range(2))
    made = {}
    for kind in (one, other):
        build, parts = family[kind]
        args = tuple(data.draw(part) for part in parts)
        made[kind, args] = build(*args)
    assert len(set(made.values())) == len(made)


@EXAMPLES
@given(st.lists(st.tuples(times, types, entities, resources), max_size=8))
def test_usage_sorts_newest_first_then_by_names(rows: list[tuple[int, str, str, str]]) -> None:
    for kind in WINDOW_TYPES:
        keys = [(schema.gsi4_sk_usage("n" * 11, kind, t, e, r), (-t, e, r)) for t, k, e, r in rows]
        assert [place for _, place in sorted(keys)] == sorted(place for _, place in keys)


@EXAMPLES
@given(st.lists(entities, unique=True), st.text())
def test_a_cursor_cuts_a_list_of_names_where_it_would_sort(found: list[str], cursor: str) -> None:
    bound = schema.clip_cursor(cursor) + schema.JUST_AFTER
    for name in found:
        if name == cursor or name.startswith(cursor):
            assert (name > bound) == (name > cursor)


def test_everything_fits_into_keys() -> None:
    """A partition key may have 2048 bytes, a sort key 1024."""
    entity_id, resource, ns = "e" * 256, "r" * 64, "n" * 11
    start = window_time(4_000_000_000_000)
    longest = [
        schema.pk_bucket(ns, entity_id, resource, 10**6),
        schema.pk_audit(ns, "$RESOURCE:" + resource),
        schema.sk_usage(resource, "monthly", start),
        schema.gsi4_sk_usage(ns, "monthly", 0, entity_id, resource),
        schema.gsi2_sk_config(resource, entity_id),
        f"{ns}/ENTITY#{schema.clip_cursor('é' * 5000)}!",
    ]
    assert max(len(text.encode()) for text in longest) < 1024


def test_all_the_characters_of_names_sort_after_those_that_bound_them() -> None:
    everything = {chr(n) for n in range(128) if re.match(r"[a-zA-Z0-9_.\-:@/]", chr(n))}
    bounds = (schema.JUST_AFTER, "#", schema.NEXT)
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert min(everything) > schema.NEXT
    assert max(everything) < "~"
