"""The door asks the shelf, remembers for a while within bounds, and never lets doubt pass."""

from __future__ import annotations

import hmac

import pytest

from headgate.core.errors import StoreDenied, Unreachable
from headgate.service.keys import access as keys_door
from headgate.service.keys.access import ApiCaller, Authenticator, DenyReason, Refusal
from headgate.service.keys.key import Grant, Key, KeyScope, MintedKey, mint
from tests.service.keys.kit import MemoryKeys

GRANT = Grant(frozenset({KeyScope.CHECK}), "default")


class Doorway:
    def __init__(self, *, ttl_ms: int = 1000, **bounds: int) -> None:
        self.now_ms = 0
        self.store = MemoryKeys()
        self.authenticator = Authenticator(self.store, lambda: self.now_ms, ttl_ms=ttl_ms, **bounds)

    async def mint(self) -> MintedKey:
        minted = mint(GRANT, now_ms=self.now_ms)
        await self.store.put(minted.key)
        return minted

    async def come(self, text: str | None, need: KeyScope = KeyScope.CHECK) -> ApiCaller | Refusal:
        found = await self.authenticator.authenticate(text)
        if isinstance(found, Refusal):
            return found
        return found.refusal_for(need, "default", "user:1") or found


async def test_a_key_is_asked_for_once_per_ttl_found_or_not() -> None:
    way = Doorway()
    minted = mint(GRANT, now_ms=0)
    for _ in range(2):
        assert await way.come(minted.text) == Refusal(DenyReason.UNKNOWN)
        await way.store.put(minted.key)
    for now_ms, asked in ((1000, 2), (1999, 2), (2000, 3)):
        way.now_ms = now_ms
        assert await way.come(minted.text) == ApiCaller(f"key:{minted.key.id}", GRANT)
        assert way.store.asked == asked


async def test_each_way_to_be_turned_away() -> None:
    way = Doorway()
    good, other = await way.mint(), await way.mint()
    wrong = f"hg_{good.key.id}_{other.text.split('_', 2)[2]}"
    assert await way.come(None) == await way.come("") == Refusal(DenyReason.NO_KEY)
    assert await way.come("Bearer x") == Refusal(DenyReason.MALFORMED)
    assert await way.come(mint(GRANT, now_ms=0).text) == Refusal(DenyReason.UNKNOWN)
    assert await way.come(wrong) == Refusal(DenyReason.WRONG_SECRET)
    assert await way.come(good.text, KeyScope.ADMIN) == Refusal(DenyReason.SCOPE)
    assert isinstance(await way.come(good.text), ApiCaller), "a wrong guess locks nobody out"


async def test_revocation_is_in_force_within_the_ttl_and_at_once_where_it_was_made() -> None:
    way = Doorway()
    minted = await way.mint()
    assert isinstance(await way.come(minted.text), ApiCaller)
    await way.store.revoke(minted.key.id, "ann", 1)
    way.now_ms = 999
    assert isinstance(await way.come(minted.text), ApiCaller), (
        "another process may still remember it"
    )
    way.now_ms = 1000
    assert await way.come(minted.text) == Refusal(DenyReason.REVOKED)

    again = await way.mint()
    await way.come(again.text)
    await way.store.revoke(again.key.id, "ann", 1)
    way.authenticator.forget(again.key.id)
    assert await way.come(again.text) == Refusal(DenyReason.REVOKED)


async def test_the_time_of_an_entry_counts_from_before_the_shelf_was_asked() -> None:
    """A slow shelf must not lengthen the life of what it said at the beginning."""
    way = Doorway()
    minted = await way.mint()

    class Slow(MemoryKeys):
        async def get(self, key_id: str) -> Key | None:
            way.now_ms += 900
            return minted.key

    way.authenticator.store = Slow()
    assert isinstance(await way.come(minted.text), ApiCaller)
    await way.store.revoke(minted.key.id, None, 1)
    way.authenticator.store = way.store
    way.now_ms = 1000
    assert await way.come(minted.text) == Refusal(DenyReason.REVOKED)


async def test_unknown_keys_are_remembered_apart_and_within_a_bound() -> None:
    way = Doorway(known_max=4, unknown_max=16)
    good = await way.mint()
    await way.come(good.text)
    asked = way.store.asked
    for _ in range(200):
        assert await way.come(mint(GRANT, now_ms=0).text) == Refusal(DenyReason.UNKNOWN)
    assert way.authenticator._unknown.stats().size <= 16
    await way.come(good.text)
    assert way.store.asked == asked + 200, "the good key was still remembered"
    stranger = mint(GRANT, now_ms=0).text
    asked = way.store.asked
    for _ in range(5):
        await way.come(stranger)
    assert way.store.asked == asked + 1


async def test_a_shelf_that_does_not_answer_opens_nothing_and_is_not_remembered() -> None:
    """One that denies the service is told from one that is away."""
    way = Doorway()
    minted = await way.mint()
    for trouble, because, code in (
        (Unreachable("down"), DenyReason.UNAVAILABLE, "STORAGE_UNAVAILABLE"),
        (StoreDenied("no right to read"), DenyReason.DENIED, "STORAGE_DENIED"),
    ):
        way.store.trouble = trouble
        found = await way.come(minted.text)
        assert found == Refusal(because)
        assert isinstance(found, Refusal)
        assert found.code == code
        assert found.trouble is trouble
    way.store.trouble = None
    assert isinstance(await way.come(minted.text), ApiCaller)


async def test_every_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []
    real = hmac.compare_digest

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(keys_door.hmac, "compare_digest", compare)
    way = Doorway()
    minted, stranger = await way.mint(), mint(GRANT, now_ms=0)
    await way.come(minted.text)
    await way.come(stranger.text)
    assert [pair[0] for pair in compared] == [minted.key.digest, stranger.key.digest]
    assert all(len(one) == len(other) for one, other in compared), "an unknown id costs the same"
