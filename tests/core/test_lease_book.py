"""What a lease holds, what it may give back, and that a late refund makes no burst."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Demand, adjust_record, decide
from headgate.core.errors import ValidationError
from headgate.core.lease import DEBITS_MAX, LeaseAccount
from headgate.core.limits import AMOUNT_MAX, Limit
from headgate.core.plan import merge_demands
from headgate.core.record import BucketKey, Terms, cells_of, new_record
from tests.core.kit import DAY_MS, LAW

NOW_MS = 1_700_000_000_000
RPM, TPM = Limit.custom("rpm", 100, 7, 9), Limit.custom("tpm", 5_000, 1, 60)
BOTH = Terms((RPM.spec, TPM.spec))
ONLY_RPM = Terms((RPM.spec,))


def key(entity_id: str) -> BucketKey:
    return BucketKey("ns", entity_id, "gpt-4")


def book_of(*demands: Demand, keep: bool = False) -> LeaseAccount:
    return LeaseAccount(None, None, demands, NOW_MS, keep)  # type: ignore[arg-type]


def credits_of(demands: list[Demand]) -> dict[str, dict[str, int]]:
    return {demand.key.entity_id: dict(demand.named()) for demand in demands}


def change(book: LeaseAccount, name: str, milli: int, at_ms: int) -> list[Demand]:
    """What the flows do with a debit that is taken, or a credit; what they would send."""
    spread = book.spread({name: milli})
    if milli >= 0:
        book.debit(spread, at_ms)
        return book.demands_for(spread)
    return book.give_back(spread)


changes = st.lists(st.tuples(st.integers(0, 5_000), st.integers(-30, 30)), max_size=8)


def noted(book: LeaseAccount, story: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Notes each change as the flows do, never below zero; what stands, told token by token.

    A debit is one mark per token, so a credit rubs out the last marks.
    """
    times_ms, marks = [NOW_MS], [0] * 10
    for gap_ms, tokens in story:
        bounded = max(tokens, -len(marks))
        times_ms.append(times_ms[-1] + gap_ms)
        change(book, "rpm", tokens * 1_000, times_ms[-1])
        marks = marks[:bounded] if bounded < 0 else marks + [len(times_ms) - 1] * bounded
    return [(times_ms[mark], marks.count(mark) * 1_000) for mark in sorted(set(marks))]


@LAW
@given(changes, st.integers(0, 20_000))
def test_a_refund_is_each_standing_debit_less_what_has_refilled_since(
    story: list[tuple[int, int]], age_ms: int
) -> None:
    book = book_of(Demand(key("a"), ONLY_RPM, (10_000,)))
    standing = noted(book, story)
    held = sum(milli for _, milli in standing)
    assert book.held_milli("rpm") == held
    assert book.consumed == {"rpm": held // 1_000}
    now_ms = NOW_MS + sum(gap_ms for gap_ms, _ in story) + age_ms
    per_ms = Fraction(7_000, 9_000)
    refund = sum(max(0, milli - math.floor(per_ms * (now_ms - at))) for at, milli in standing)
    expected = {"a": {"rpm": -refund}} if refund else {}
    assert credits_of(book.refunds(now_ms)) == expected
    book.settled = {"rpm"}
    assert book.refunds(now_ms) == []


others = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 60)), max_size=6)


@LAW
@given(st.integers(0, 100), others, st.integers(1, 100), others)
def test_a_late_refund_makes_no_burst_the_bucket_would_not_have_had(
    used: int, before: list[tuple[int, int]], tokens: int, story: list[tuple[int, int]]
) -> None:
    """Beside a bucket that never saw the lease: after the refund it stands no higher, but for less
    than a millitoken. That much may have been under way, and whoever tries again gets it."""
    record, now_ms = new_record(ONLY_RPM, NOW_MS - DAY_MS), NOW_MS - DAY_MS
    for gap_ms, amount in before:
        now_ms += gap_ms
        record = adjust_record(record, Demand(key("a"), ONLY_RPM, (amount * 1_000,)), now_ms)
    without = adjust_record(record, Demand(key("a"), ONLY_RPM, (used * 1_000,)), NOW_MS)
    demand = Demand(key("a"), ONLY_RPM, (tokens * 1_000,))
    leased, book, now_ms = adjust_record(without, demand, NOW_MS), book_of(demand), NOW_MS
    for gap_ms, amount in story:
        now_ms += gap_ms
        other = Demand(key("a"), ONLY_RPM, (amount * 1_000,))
        verdict, (after,) = decide([other], [leased], now_ms)
        if verdict.allowed:
            leased = after
            without = adjust_record(without, other, now_ms)
    for refund in book.refunds(now_ms):
        leased = adjust_record(leased, refund, now_ms)
    (mine,), (theirs,) = cells_of(leased), cells_of(without)
    for later_ms in (now_ms, now_ms + 1, now_ms + 10_007, now_ms + DAY_MS):
        assert mine.level_milli(later_ms) <= theirs.level_milli(later_ms) + 1


@pytest.mark.parametrize("age_ms", [0, 1, 7, 999, 1000, 50_000])
def test_who_failed_and_tries_again_at_once_gets_in(age_ms: int) -> None:
    """The bucket was full: with the refund, and what has arrived since, it is full again."""
    terms = Terms((Limit.per_day("runs", 1).spec,), 1)
    demand = Demand(key("a"), terms, (1_000,))
    verdict, (record,) = decide([demand], [None], NOW_MS)
    assert verdict.allowed
    for refund in book_of(demand).refunds(NOW_MS + age_ms):
        record = adjust_record(record, refund, NOW_MS + age_ms)
    assert decide([demand], [record], NOW_MS + age_ms)[0].allowed


def test_a_refund_later_than_the_refill_gives_nothing_back() -> None:
    book = book_of(Demand(key("a"), BOTH, (3_000, 2_000)))
    assert credits_of(book.refunds(NOW_MS + 4_000)) == {"a": {"tpm": -(2_000 - 66)}}
    assert book.refunds(NOW_MS + 2 * 60_000) == []
    for clock_ms in (NOW_MS, NOW_MS - 50):  # also by a clock that was set back
        assert credits_of(book.refunds(clock_ms)) == {"a": {"rpm": -3_000, "tpm": -2_000}}


def test_what_is_settled_is_not_refunded() -> None:
    book = book_of(Demand(key("a"), BOTH, (1_000, 9_000)), Demand(key("b"), BOTH, (None, 9_000)))
    book.settled = {"tpm"}
    assert credits_of(book.refunds(NOW_MS)) == {"a": {"rpm": -1_000}}
    book.settled = {"tpm", "rpm"}
    assert book.refunds(NOW_MS) == []


def test_changes_go_to_the_buckets_that_were_asked_for_the_limit() -> None:
    user = Demand(key("user"), BOTH, (1_000, 500_000))
    ip = Demand(key("ip"), BOTH, (1_000, None))
    everyone = Demand(key("everyone"), ONLY_RPM, (1_000,))
    book = book_of(user, ip, everyone)
    assert credits_of(book.demands_for(book.spread({"tpm": 7_000}))) == {"user": {"tpm": 7_000}}
    assert credits_of(book.demands_for(book.spread({"rpm": -1_000, "tpm": 1}))) == {
        "user": {"rpm": -1_000, "tpm": 1},
        "ip": {"rpm": -1_000},
        "everyone": {"rpm": -1_000},
    }
    assert book.demands_for(book.spread({"tpm": 0})) == []
    assert book.demands_for({}) == []


def test_a_limit_nobody_asked_for_is_changed_on_every_bucket_that_has_it() -> None:
    book = book_of(
        Demand(key("user"), BOTH, (1_000, None)),
        Demand(key("parent"), BOTH, (1_000, None)),
        Demand(key("everyone"), ONLY_RPM, (1_000,)),
    )
    assert credits_of(book.demands_for(book.spread({"tpm": 9_000}))) == {
        "user": {"tpm": 9_000},
        "parent": {"tpm": 9_000},
    }
    change(book, "tpm", 9_000, NOW_MS)
    assert book.consumed == {"rpm": 1, "tpm": 9}
    refunds = credits_of(book.refunds(NOW_MS))
    assert refunds["user"] == refunds["parent"] == {"rpm": -1_000, "tpm": -9_000}


def test_changes_are_parsed_at_the_door() -> None:
    book = book_of(Demand(key("a"), BOTH, (1_000, None)))
    assert book.parse_changes({"rpm": 2, "tpm": 0}) == {"rpm": 2_000, "tpm": 0}
    assert book.parse_changes({"rpm": -2}, signed=True) == {"rpm": -2_000}
    assert book.parse_changes({"tpm": -AMOUNT_MAX}, signed=True) == {"tpm": -AMOUNT_MAX * 1_000}
    with pytest.raises(ValidationError, match="rpm, tpm"):
        book.parse_changes({"rpd": 1})
    for bad, signed in ((-1, False), (-AMOUNT_MAX - 1, True)):
        with pytest.raises(ValidationError):
            book.parse_changes({"rpm": bad}, signed=signed)


def test_a_lease_without_buckets_holds_only_what_was_noted() -> None:
    """A bypassed or degraded acquire: any name may be changed, nothing is demanded."""
    book = book_of()
    assert book.parse_changes({"anything": 5}) == {"anything": 5_000}
    assert change(book, "anything", 5_000, NOW_MS) == []
    assert book.consumed == {"anything": 5}
    assert change(book, "anything", -9_000, NOW_MS) == []
    assert book.consumed == {"anything": 0}
    assert book.refunds(NOW_MS) == []


verbs = st.sampled_from(("take", "pass", "owe", "give", "give", "write", "lose"))
stories = st.lists(st.tuples(verbs, st.integers(1, 40)), max_size=12)


@LAW
@given(st.booleans(), stories, st.booleans())
def test_no_bucket_gets_back_what_it_did_not_give(
    passed: bool, story: list[tuple[str, int]], failed: bool
) -> None:
    """Whatever was taken, only counted, owed or lost: tokens that come back were taken, and all
    that the lease holds in the end is what is counted."""
    demand = Demand(key("a"), ONLY_RPM, (10_000,))
    book = LeaseAccount(
        None, None, (demand,), NOW_MS, False, untaken=[(0, "rpm")] if passed else []
    )  # type: ignore[arg-type]
    spot = (0, "rpm")
    taken, counted = 0 if passed else 10_000, 10_000
    for verb, tokens in story:
        milli = tokens * 1_000
        if verb in ("take", "pass", "owe"):
            book.debit({spot: milli}, NOW_MS, [spot] if verb == "pass" else [])
            taken += milli if verb == "take" else 0
            counted += 0 if verb == "owe" else milli
        if verb == "owe":
            book.owe({spot: milli})
        if verb in ("write", "lose") and book.owed:
            taken += book.owed[spot] if verb == "write" else 0
            counted += book.owed[spot] if verb == "write" else 0
            if verb == "lose":
                book.lose(book.owed)
            book.owed = None
        if verb == "give":
            for credit in book.give_back(book.spread({"rpm": -milli})):
                taken += dict(credit.named())["rpm"]
                counted += dict(credit.counts())["rpm"]
        owed = (book.owed or {}).get(spot, 0)
        assert 0 <= taken <= counted
        assert book.held_milli("rpm") == counted + owed
    if failed and not book.owed:
        for credit in book.refunds(NOW_MS):
            taken += dict(credit.named())["rpm"]
            counted += dict(credit.counts())["rpm"]
        assert (taken, counted) == (0, 0)


def test_what_a_soft_limit_only_counted_is_refunded_as_counted_at_any_age() -> None:
    demand = Demand(key("a"), BOTH, (3_000, 500_000))
    book = LeaseAccount(None, None, (demand,), NOW_MS, False, untaken=[(0, "tpm")])  # type: ignore[arg-type]
    (credit,) = book.refunds(NOW_MS + 4_000)
    assert dict(credit.named()) == {"tpm": 0}
    assert dict(credit.counts()) == {"tpm": -500_000}
    (credit,) = book.refunds(NOW_MS)
    assert dict(credit.named()) == {"rpm": -3_000, "tpm": 0}
    assert dict(credit.counts()) == {"rpm": -3_000, "tpm": -500_000}


def test_each_bucket_has_an_account_of_its_own() -> None:
    """Asked 4 and 9: one actual amount for both, and none gives more than it has."""
    book = book_of(Demand(key("x"), ONLY_RPM, (4_000,)), Demand(key("y"), ONLY_RPM, (9_000,)))
    assert book.consumed == {"rpm": 9}
    assert book.missing({"rpm": 6_000}) == {(0, "rpm"): 2_000, (1, "rpm"): -3_000}
    assert credits_of(change(book, "rpm", -5_000, NOW_MS)) == {
        "x": {"rpm": -4_000},
        "y": {"rpm": -5_000},
    }
    assert book.consumed == {"rpm": 4}
    assert credits_of(book.refunds(NOW_MS)) == {"y": {"rpm": -4_000}}


def test_a_bucket_that_parts_of_a_request_share_counts_for_each_of_them() -> None:
    """Two children and their parent: settling at what each asked changes nothing."""
    one, two = (Demand(key(name), ONLY_RPM, (3_000,)) for name in ("one", "two"))
    above = Demand(key("parent"), ONLY_RPM, (3_000,))
    book = book_of(*merge_demands([one, above, two, above]))
    assert book.consumed == {"rpm": 3}
    assert not any(book.missing({"rpm": 3_000}).values())
    assert credits_of(change(book, "rpm", 2_000, NOW_MS)) == {
        "one": {"rpm": 2_000},
        "parent": {"rpm": 4_000},
        "two": {"rpm": 2_000},
    }
    assert credits_of(book.refunds(NOW_MS))["parent"] == {"rpm": -10_000}


def test_a_lease_that_is_changed_for_hours_stays_small() -> None:
    book = book_of(Demand(key("a"), BOTH, (1000, 5000)))
    spot = (0, "tpm")
    for number in range(1000):
        book.debit({spot: 1000}, NOW_MS + number, {spot} if number % 3 == 0 else ())
    assert len(book.debits(spot)) <= DEBITS_MAX
    assert book.held_milli("tpm") == 5000 + 1000 * 1000
    counted = sum(debit.milli for debit in book.debits(spot) if not debit.taken)
    assert counted == 334 * 1000
    assert min(debit.at_ms for debit in book.debits(spot)) == NOW_MS
    book.revert({spot: 1000}, NOW_MS + 1)  # one that is part of another by now
    assert book.held_milli("tpm") == 5000 + 999 * 1000
    book.revert({spot: 1000}, NOW_MS + 998)
    assert book.held_milli("tpm") == 5000 + 998 * 1000
    assert sum(debit.milli for debit in book.debits(spot) if not debit.taken) == counted


MONTH = Limit.quota("month", 100, every="month", tz="Europe/Berlin")
SESSION = Limit.quota("session", 100, reset_after=3600)


@pytest.mark.parametrize(
    ("limit", "late_ms", "refund"),
    [
        (MONTH, 0, -30_000), (MONTH, 1_000, -30_000), (MONTH, 32 * DAY_MS, None),
        (SESSION, 0, -30_000), (SESSION, 2_400_000 - 1, -30_000), (SESSION, 2_400_000, None),
        (SESSION, 3_600_000, None),
    ],
)  # fmt: skip
def test_a_quota_gets_back_nothing_of_a_window_that_is_over(
    limit: Limit, late_ms: int, refund: int | None
) -> None:
    """The take comes twenty minutes into a session, so it ends forty minutes later."""
    terms = Terms((limit.spec,))
    begun = decide([Demand(key("a"), terms, (5_000,))], [None], NOW_MS - 1_200_000)[1]
    verdict, _ = decide([Demand(key("a"), terms, (30_000,))], begun, NOW_MS)
    book = LeaseAccount(None, None, verdict.demands, NOW_MS, False, verdict=verdict)  # type: ignore[arg-type]
    found = credits_of(book.refunds(NOW_MS + late_ms))
    assert found == ({} if refund is None else {"a": {limit.name: refund}})


def test_a_session_whose_beginning_nobody_knows_gets_nothing_back() -> None:
    """Of what was consumed later in the same lease only the window of the acquire is known."""
    terms = Terms((SESSION.spec,))
    assert book_of(Demand(key("a"), terms, (5_000,))).refunds(NOW_MS) == []
