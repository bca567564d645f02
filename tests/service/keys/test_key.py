"""A key's text, what is kept of it, what it may do, and how its caller is recognised: the
authenticator asks the store, remembers for a while within bounds, and never lets doubt pass."""

from __future__ import annotations

import hmac
import itertools

import pytest

from headgate.core.errors import StoreDenied, Unreachable, ValidationError
from headgate.service.decide.problems import Code
from headgate.service.keys import access
from headgate.service.keys.access import (
    DEV_CALLER,
    KEYS_NAMESPACE,
    ApiCaller,
    Authenticator,
    DenyReason,
    Refusal,
    caller_of,
    parse_san,
    sans_of,
)
from headgate.service.keys.key import (
    Grant,
    Key,
    KeyScope,
    MintedKey,
    digest_of,
    mint,
    parse_digest,
    parse_grant,
    parse_key_id,
    parse_key_name,
    parse_presented,
)
from tests.service.keys.kit import MemoryKeys

GRANT = Grant(frozenset({KeyScope.CHECK}), "default")


def test_a_minted_key_is_recognised_and_only_its_digest_is_kept() -> None:
    minted = mint(GRANT, name="checkout", principal="ann", now_ms=5)
    prefix, key_id, secret = minted.text.split("_", 2)
    assert (prefix, key_id) == ("hg", minted.key.id)
    assert len(secret) == 43, "256 bits"
    assert parse_presented(minted.text) == (key_id, minted.key.digest)
    key = minted.key
    assert (key.created_by, key.changed_by, key.created_ms) == ("ann", "ann", 5)
    for shown in (repr(minted), str(minted), repr(minted.key), f"{minted}"):
        assert secret not in shown
        assert minted.key.digest not in shown


def test_no_two_keys_are_alike_and_a_digest_fits_its_own_id_only() -> None:
    keys = [mint(GRANT, now_ms=0) for _ in range(200)]
    assert len({minted.text for minted in keys}) == len({minted.key.id for minted in keys}) == 200
    assert digest_of("a" * 12, "s" * 43) != digest_of("b" * 12, "s" * 43)


def test_what_is_no_key() -> None:
    good = "hg_abcdefghijkl_" + "s" * 43
    assert parse_presented(good) is not None
    for text in (
        "", "hg", "hg_", "hg__", None, 5, good.encode(), good[:-1], good + "s", good[:-1] + "\n",
        good + "\n", "HG" + good[2:], good.replace("abcdefghijkl", "ABCDEFGHIJKL"),
        good.replace("l_", "_"), " " + good, good.replace("s", "é"), good + "s" * 100_000,
    ):  # fmt: skip
        assert parse_presented(text) is None


@pytest.mark.parametrize(
    ("scopes", "namespace", "prefix"),
    [
        *[(scopes, "default", None)
          for scopes in ([], ["check", "write"], "check", ["CHECK"], [None], None)],
        *[(["check"], namespace, None) for namespace in ("a b", "**", None)],
        *[(["check"], "default", prefix) for prefix in ("", "a#", 5)],
    ],
)  # fmt: skip
def test_grants_that_are_refused(scopes: object, namespace: object, prefix: object) -> None:
    with pytest.raises(ValidationError):
        parse_grant(scopes, namespace, prefix)


def test_errors_never_repeat_what_could_be_a_secret() -> None:
    text = mint(GRANT, now_ms=0).text
    for parse in (parse_key_id, parse_digest, parse_key_name):
        with pytest.raises(ValidationError) as caught:
            parse(text)
        assert text not in str(caught.value) + repr(caught.value)


NEEDS = [*itertools.product(KeyScope, ("default", "other", None), ("team-a:1", "team-b:1", None))]


@pytest.mark.parametrize(("need", "namespace", "entity_id"), NEEDS)
def test_the_matrix(need: KeyScope, namespace: str | None, entity_id: str | None) -> None:
    """Every need against grants of every width; a narrow grant never reaches a wide thing."""
    each = ({KeyScope.CHECK}, {KeyScope.READ}, {KeyScope.ADMIN}, {KeyScope.READ, KeyScope.ADMIN})
    for scopes, bound, prefix in itertools.product(each, ("default", "*"), (None, "team-a:")):
        caller = ApiCaller("key:x", Grant(frozenset(scopes), bound, prefix))
        expected = None
        if bound not in ("*", namespace):
            expected = Refusal(DenyReason.NAMESPACE)
        elif prefix is not None and (entity_id is None or not entity_id.startswith(prefix)):
            expected = Refusal(DenyReason.ENTITY)
        elif need not in scopes:
            expected = Refusal(DenyReason.SCOPE)
        assert caller.refusal_for(need, namespace, entity_id) == expected


def test_foreign_looks_like_missing_and_all_bad_keys_look_alike() -> None:
    assert Refusal(DenyReason.NAMESPACE).code == Refusal(DenyReason.ENTITY).code == "NOT_FOUND"
    assert Refusal(DenyReason.SCOPE).code == "FORBIDDEN"
    bad = (DenyReason.NO_KEY, DenyReason.MALFORMED, DenyReason.UNKNOWN, DenyReason.WRONG_SECRET)
    others = (DenyReason.REVOKED, DenyReason.NO_CERTIFICATE, DenyReason.AMBIGUOUS_CERTIFICATE)
    assert {Refusal(because).code for because in bad + others} == {"UNAUTHENTICATED"}
    assert {Refusal(because).code for because in DenyReason} <= {code.value for code in Code}


def test_nobody_reaches_the_namespace_of_keys() -> None:
    for need in KeyScope:
        assert DEV_CALLER.refusal_for(need, KEYS_NAMESPACE, "x") == Refusal(DenyReason.NAMESPACE)
        assert DEV_CALLER.refusal_for(need, "default", None) is None
        assert DEV_CALLER.refusal_for(need, None, None) is None


PEER = {
    "subject": ((("commonName", "admin.internal"),),),
    "subjectAltName": (
        ("DNS", "Checkout.Internal"),
        ("URI", "spiffe://corp/checkout"),
        ("IP Address", "10.0.0.1"),
        ("othername", "<unsupported>"),
    ),
}


def test_names_of_a_certificate() -> None:
    names = ("DNS:checkout.internal", "URI:spiffe://corp/checkout", "IP:10.0.0.1")
    assert sans_of(PEER) == names
    assert sans_of(None) == sans_of({}) == ()
    flood = {"subjectAltName": tuple(("DNS", f"h{n}") for n in range(1000))}
    assert len(sans_of(flood)) == 64


def test_a_certificate_is_a_caller_where_exactly_one_name_is_in_the_table() -> None:
    table = {"URI:spiffe://corp/checkout": GRANT, "DNS:admin.internal": DEV_CALLER.grant}
    assert caller_of(sans_of(PEER), table) == ApiCaller("cert:URI:spiffe://corp/checkout", GRANT)
    assert caller_of((), table) == Refusal(DenyReason.NO_CERTIFICATE)
    assert caller_of(("DNS:else",), table) == Refusal(DenyReason.NO_CERTIFICATE)
    both = ("URI:spiffe://corp/checkout", "DNS:admin.internal")
    assert caller_of(both, table) == Refusal(DenyReason.AMBIGUOUS_CERTIFICATE)


def test_names_of_the_table_are_whole() -> None:
    assert parse_san("DNS:A.Example.") == "DNS:a.example"
    assert parse_san("URI:spiffe://Corp/X") == "URI:spiffe://Corp/X"
    for bad in ("DNS:*.example", "CN:x", "x", "DNS:", 5, None, "DNS:" + "x" * 600):
        with pytest.raises(ValidationError):
            parse_san(bad)


# --------------------------------------------------------------------------------------------------
# How a caller is recognised.


class Entry:
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
    way = Entry()
    minted = mint(GRANT, now_ms=0)
    for _ in range(2):
        assert await way.come(minted.text) == Refusal(DenyReason.UNKNOWN)
        await way.store.put(minted.key)
    for now_ms, asked in ((1000, 2), (1999, 2), (2000, 3)):
        way.now_ms = now_ms
        assert await way.come(minted.text) == ApiCaller(f"key:{minted.key.id}", GRANT)
        assert way.store.asked == asked


async def test_each_way_to_be_turned_away() -> None:
    way = Entry()
    good, other = await way.mint(), await way.mint()
    wrong = f"hg_{good.key.id}_{other.text.split('_', 2)[2]}"
    assert await way.come(None) == await way.come("") == Refusal(DenyReason.NO_KEY)
    assert await way.come("Bearer x") == Refusal(DenyReason.MALFORMED)
    assert await way.come(mint(GRANT, now_ms=0).text) == Refusal(DenyReason.UNKNOWN)
    assert await way.come(wrong) == Refusal(DenyReason.WRONG_SECRET)
    assert await way.come(good.text, KeyScope.ADMIN) == Refusal(DenyReason.SCOPE)
    assert isinstance(await way.come(good.text), ApiCaller), "a wrong guess locks nobody out"


async def test_revocation_is_in_force_within_the_ttl_and_at_once_where_it_was_made() -> None:
    way = Entry()
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


async def test_the_time_of_an_entry_counts_from_before_the_store_was_asked() -> None:
    """A slow store must not lengthen the life of what it said at the beginning."""
    way = Entry()
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
    way = Entry(known_max=4, unknown_max=16)
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


async def test_a_store_that_does_not_answer_opens_nothing_and_is_not_remembered() -> None:
    """One that denies the service is told from one that is away."""
    way = Entry()
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

    monkeypatch.setattr(access.hmac, "compare_digest", compare)
    way = Entry()
    minted, stranger = await way.mint(), mint(GRANT, now_ms=0)
    await way.come(minted.text)
    await way.come(stranger.text)
    assert [pair[0] for pair in compared] == [minted.key.digest, stranger.key.digest]
    assert all(len(one) == len(other) for one, other in compared), "an unknown id costs the same"
