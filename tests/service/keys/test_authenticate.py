"""The door asks the shelf, remembers for a while within bounds, and never lets doubt pass."""

from __future__ import annotations

import asyncio
import hmac

import pytest

from headgate.core.errors import StoreDenied, Unreachable
from headgate.service.keys import authenticate as keys_door
from headgate.service.keys.access import ApiCaller, DenyReason, Refusal
from headgate.service.keys.authenticate import Authenticator
from headgate.service.keys.key import Grant, Key, KeyScope, MintedKey, mint
from tests.service.keys.kit import MemoryKeys

GRANT = Grant(frozenset({KeyScope.CHECK}), "default")


class CountingShelf(MemoryKeys):
    asked = 0
    trouble: Exception | None = None

    async def get(self, key_id: str) -> Key | None:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return await super().get(key_id)


class Doorway:
    def __init__(self, *, ttl_ms: int = 1000, **bounds: int) -> None:
        self.now_ms = 0
        self.store = CountingShelf()
        self.authenticator = Authenticator(self.store, lambda: self.now_ms, ttl_ms=ttl_ms, **bounds)

    def mint(self, grant: Grant = GRANT) -> MintedKey:
        minted = mint(grant, now_ms=self.now_ms)
        asyncio.run(self.store.put(minted.key))
        return minted

    def come(self, text: str | None, need: KeyScope = KeyScope.CHECK) -> ApiCaller | Refusal:
        found = asyncio.run(self.authenticator.authenticate(text))
        if isinstance(found, Refusal):
            return found
        return found.refusal_for(need, "default", "user:1") or found


def test_a_good_key_is_asked_for_once_per_ttl() -> None:
    way = Doorway()
    minted = way.mint()
    assert way.come(minted.text) == ApiCaller(f"key:{minted.key.id}", GRANT)
    way.now_ms = 999
    way.come(minted.text)
    assert way.store.asked == 1
    way.now_ms = 1000
    way.come(minted.text)
    assert way.store.asked == 2


def test_each_way_to_be_turned_away() -> None:
    way = Doorway()
    good, other = way.mint(), way.mint()
    wrong = f"hg_{good.key.id}_{other.text.split('_', 2)[2]}"
    assert way.come(None) == way.come("") == Refusal(DenyReason.NO_KEY)
    assert way.come("Bearer x") == Refusal(DenyReason.MALFORMED)
    assert way.come(mint(GRANT, now_ms=0).text) == Refusal(DenyReason.UNKNOWN)
    assert way.come(wrong) == Refusal(DenyReason.WRONG_SECRET)
    assert way.come(good.text, KeyScope.ADMIN) == Refusal(DenyReason.SCOPE)
    assert isinstance(way.come(good.text), ApiCaller), "a wrong guess locks nobody out"


def test_revocation_is_in_force_within_the_ttl_and_at_once_where_it_was_made() -> None:
    way = Doorway()
    minted = way.mint()
    assert isinstance(way.come(minted.text), ApiCaller)
    asyncio.run(way.store.revoke(minted.key.id, "ann", 1))
    way.now_ms = 999
    assert isinstance(way.come(minted.text), ApiCaller), "another process may still remember it"
    way.now_ms = 1000
    assert way.come(minted.text) == Refusal(DenyReason.REVOKED)

    again = way.mint()
    way.come(again.text)
    asyncio.run(way.store.revoke(again.key.id, "ann", 1))
    way.authenticator.forget(again.key.id)
    assert way.come(again.text) == Refusal(DenyReason.REVOKED)


def test_the_time_of_an_entry_counts_from_before_the_shelf_was_asked() -> None:
    """A slow shelf must not lengthen the life of what it said at the beginning."""
    way = Doorway()
    minted = way.mint()

    class Slow(CountingShelf):
        async def get(self, key_id: str) -> Key | None:
            way.now_ms += 900
            return minted.key

    way.authenticator.store = Slow()
    assert isinstance(way.come(minted.text), ApiCaller)
    asyncio.run(way.store.revoke(minted.key.id, None, 1))
    way.authenticator.store = way.store
    way.now_ms = 1000
    assert way.come(minted.text) == Refusal(DenyReason.REVOKED)


def test_unknown_keys_are_remembered_apart_and_within_a_bound() -> None:
    way = Doorway(known_max=4, unknown_max=16)
    good = way.mint()
    way.come(good.text)
    asked = way.store.asked
    for _ in range(200):
        assert way.come(mint(GRANT, now_ms=0).text) == Refusal(DenyReason.UNKNOWN)
    assert way.authenticator._unknown.stats().size <= 16
    way.come(good.text)
    assert way.store.asked == asked + 200, "the good key was still remembered"
    stranger = mint(GRANT, now_ms=0).text
    asked = way.store.asked
    for _ in range(5):
        way.come(stranger)
    assert way.store.asked == asked + 1


def test_a_key_made_after_it_was_tried_works_within_the_ttl() -> None:
    way = Doorway()
    minted = mint(GRANT, now_ms=0)
    assert way.come(minted.text) == Refusal(DenyReason.UNKNOWN)
    asyncio.run(way.store.put(minted.key))
    assert way.come(minted.text) == Refusal(DenyReason.UNKNOWN)
    way.now_ms = 1000
    assert isinstance(way.come(minted.text), ApiCaller)


def test_a_shelf_that_does_not_answer_opens_nothing_and_is_not_remembered() -> None:
    way = Doorway()
    minted = way.mint()
    way.store.trouble = Unreachable("down")
    assert way.come(minted.text) == Refusal(DenyReason.UNAVAILABLE)
    assert Refusal(DenyReason.UNAVAILABLE).code == "STORAGE_UNAVAILABLE"
    way.store.trouble = None
    assert isinstance(way.come(minted.text), ApiCaller)


def test_a_shelf_that_denies_the_service_is_told_from_one_that_is_away() -> None:
    way = Doorway()
    minted = way.mint()
    way.store.trouble = StoreDenied("no right to read")
    found = way.come(minted.text)
    assert found == Refusal(DenyReason.DENIED)
    assert isinstance(found, Refusal)
    assert (found.code, found.trouble) == ("STORAGE_DENIED", way.store.trouble)


def test_every_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    real = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(keys_door.hmac, "compare_digest", compare)
    way = Doorway()
    minted, stranger = way.mint(), mint(GRANT, now_ms=0)
    way.come(minted.text)
    way.come(stranger.text)
    assert [pair[0] for pair in compared] == [minted.key.digest, stranger.key.digest]
    assert all(len(one) == len(other) for one, other in compared), "an unknown id costs the same"
