"""Bad input gets its named error before any store call, and nothing is changed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from headgate import (
    EntityNotFoundError,
    HeadgateError,
    InvalidIdentifierError,
    InvalidNameError,
    Limit,
    OnUnavailable,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from headgate.testing import RecordingStore
from tests.flows.conftest import take

RPM = Limit.per_minute("rpm", 10)
BAD_AMOUNTS: list[Any] = [-1, 1.5, True, math.nan, math.inf, 2**60, "1", [1], {}, 10**30]
BAD_NAMES: list[Any] = ["", "a\n", "a\x00", "a#b", "-a", "a b", "ä", "x" * 257, 7, None, True, b"a"]


def recorded() -> tuple[SyncRateLimiter, RecordingStore]:
    limiter = SyncRateLimiter("memory://", limits=[RPM])
    store = RecordingStore(limiter.engine.store)
    limiter.engine.use(store)
    take(limiter, "ok", "api", {"rpm": 1})
    store.calls.clear()
    return limiter, store


@pytest.mark.parametrize("amount", BAD_AMOUNTS, ids=repr)
def test_amounts(amount: Any) -> None:
    limiter, store = recorded()
    for entity_id in ("ok", "new"):
        with pytest.raises(ValidationError) as caught:
            take(limiter, entity_id, "api", {"rpm": amount})
        assert caught.value.field == "rpm"
        with pytest.raises(ValidationError):
            limiter.check(entity_id, "api", {"rpm": amount})
        with pytest.raises(ValidationError):
            take(limiter, entity_id, "api", {"rpm": amount}, limits=[RPM])
    assert store.calls == []
    with limiter.acquire("ok", "api", {"rpm": 1}) as lease:
        store.calls.clear()
        for verb in (lease.consume, lease.release, lease.settle):
            with pytest.raises(ValidationError):
                verb(rpm=amount)
        if amount != -1:
            with pytest.raises(ValidationError):
                lease.adjust(rpm=amount)
    assert store.calls == []


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_names(name: Any) -> None:
    limiter, store = recorded()
    with pytest.raises(InvalidIdentifierError, match="entity_id"):
        take(limiter, name, "api", {"rpm": 1})
    with pytest.raises(InvalidNameError, match="resource"):
        take(limiter, "ok", name, {"rpm": 1})
    with pytest.raises((InvalidNameError, ValidationError)):
        Limit.per_minute(name, 1)
    with pytest.raises(InvalidIdentifierError):
        limiter.create_entity(name)
    with pytest.raises(InvalidIdentifierError):
        limiter.set_limits(name, [RPM])
    with pytest.raises(InvalidNameError):
        limiter.set_resource_defaults(name, [RPM])
    with pytest.raises(InvalidIdentifierError):
        limiter.available(name, "api")
    with pytest.raises(InvalidIdentifierError):
        Repository("memory://", namespace=name)
    assert store.calls == []


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if name is not None], ids=repr)
def test_a_bad_parent_is_named_as_such(name: Any) -> None:
    with SyncRepository("memory://") as repository:
        repository.create_entity("ok")
        for call in (
            lambda: repository.create_entity("new", parent_id=name),
            lambda: repository.set_parent("ok", name),
            lambda: repository.get_children(name),
        ):
            with pytest.raises(ValidationError) as caught:
                call()
            assert caught.value.field == "parent_id"


def test_a_missing_parent_is_named_as_such() -> None:
    with SyncRepository("memory://") as repository:
        repository.create_entity("ok")
        for call in (
            lambda: repository.create_entity("new", parent_id="nobody"),
            lambda: repository.set_parent("ok", "nobody"),
        ):
            with pytest.raises(EntityNotFoundError, match="parent_id='nobody'") as caught:
                call()
            assert (caught.value.entity_id, caught.value.field) == ("nobody", "parent_id")
        with pytest.raises(EntityNotFoundError) as caught:
            repository.set_parent("nobody", "ok")
        assert caught.value.field is None


def test_unhashable_names_are_validation_errors_too() -> None:
    limiter, _ = recorded()
    with pytest.raises(InvalidIdentifierError):
        take(limiter, ["a"], "api", {"rpm": 1})
    with pytest.raises(InvalidNameError):
        take(limiter, "a", {"x": 1}, {"rpm": 1})


@pytest.mark.parametrize(
    ("consume", "says"),
    [
        ({}, "asks for nothing"),
        ({"tpm": 1}, "is not a limit of ok on api; it has rpm"),
        ({"rpm": 1, "tpm": 1}, "is not a limit"),
        ({"rpm": None}, "must be an int"),
        ({7: 1}, "is not a limit"),
        (None, "must map limit names"),
        ([("rpm", 1)], "must map limit names"),
        ("rpm", "must map limit names"),
        (5, "must map limit names"),
    ],
)
def test_consume(consume: Any, says: str) -> None:
    limiter, store = recorded()
    with pytest.raises(ValidationError, match=says):
        take(limiter, "ok", "api", consume)
    with pytest.raises(ValidationError, match=says):
        limiter.check("ok", "api", consume)
    assert store.calls == []


@pytest.mark.parametrize(
    "limits", ["rpm", [], ["100/minute"], [RPM, RPM], RPM, 5, {"rpm": 1}, [RPM] * 17], ids=repr
)
def test_limits_argument(limits: Any) -> None:
    limiter, store = recorded()
    with pytest.raises(ValidationError):
        take(limiter, "ok", "api", {"rpm": 1}, limits=limits)
    if limits:
        with pytest.raises(ValidationError):
            SyncRateLimiter("memory://", limits=limits)
    with pytest.raises(ValidationError):
        limiter.set_limits("ok", limits)
    assert store.calls == []


@pytest.mark.parametrize(
    "url",
    [
        "nonsense", "http://x", "postgres://x", "memory", "memory://name", "memory://?x=1",
        "memory://?buckets_max=0", "memory://?buckets_max=many", "memory://?buckets_max=1&buckets_max=2",
        "sqlite://host/file.db", "sqlite:///", "sqlite:///:memory:", "sqlite:////",
        "sqlite:///missing-folder-xyz/a.db", "sqlite:///a.db?synchronous=maybe",
        "memory://?cache_entries=0", "memory://?cache_entries=10000001", "sqlite:///a.db?cache_entries=x",
        "sqlite:///a.db?timeout_ms=-1", "sqlite:///a.db?mode=ro", "x" * 5000, 7, "memory://[",
    ],
)  # fmt: skip
def test_urls(url: Any) -> None:
    with pytest.raises(ValidationError):
        SyncRateLimiter(url)


def test_choices() -> None:
    with pytest.raises(ValidationError, match="on_unavailable"):
        SyncRateLimiter("memory://", on_unavailable="allow")  # type: ignore[arg-type]
    limiter, _ = recorded()
    with pytest.raises(ValidationError, match="on_unavailable"):
        limiter.set_system_defaults([RPM], on_unavailable="block")  # type: ignore[arg-type]
    for also in ([], "x", 5):
        with pytest.raises(ValidationError, match="also"):
            take(limiter, "ok", "api", {"rpm": 1}, also=also)
    for requests in ([], "x", 5, [("a", "b")], [["a", "b", {}]], [("a", "api", {"rpm": 1})] * 65):
        with pytest.raises(ValidationError):
            with limiter.acquire_many(requests):  # type: ignore[arg-type]
                pass
    for metadata in ("x", {"x": math.nan}, {"x": {1, 2}}, {"x": "y" * 5000}):
        with pytest.raises(ValidationError, match="metadata"):
            limiter.create_entity("m", metadata=metadata)  # type: ignore[arg-type]
    for title in ("", "x" * 257, 7):
        with pytest.raises(ValidationError, match="name"):
            limiter.create_entity("m", name=title)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="cascade"):
        limiter.create_entity("m", cascade="yes")  # type: ignore[arg-type]
    assert limiter.get_entity("m") is None
    for ttl in (-1, "60", True, math.nan):
        with pytest.raises(ValidationError, match="config_cache_ttl"):
            SyncRepository("memory://", config_cache_ttl=ttl)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="other kind"):
        SyncRateLimiter(Repository("memory://"))  # type: ignore[arg-type]
    assert OnUnavailable.ALLOW.value == "allow"


def test_every_message_says_what_to_do() -> None:
    """What, why and what to do: no error is a bare word."""
    limiter, _ = recorded()
    errors: list[HeadgateError] = []
    for call in (
        lambda: take(limiter, "a#b", "api", {"rpm": 1}),
        lambda: take(limiter, "ok", "api", {"rpm": 11}),
        lambda: take(limiter, "ok", "api", {"rpm": 10}),
        lambda: SyncRateLimiter("redis2://x"),
        lambda: Limit.parse("lots"),
    ):
        with pytest.raises(HeadgateError) as caught:
            call()
        errors.append(caught.value)
    assert all(len(str(error)) > 40 for error in errors)
