"""Faults in plans, leases and the flows of the engine."""

from __future__ import annotations

from proof.planted.fault import Mutant

MUTANTS = [
    Mutant(
        "a refund does not grow older",
        "_refund",
        "refilled = max(0, now_ms - debit.at_ms) * spec.amount_milli // spec.period_ms",
        "refilled = 0",
        ("tests/core/test_lease_book.py::test_a_refund_later_than_the_refill_gives_nothing_back",),
    ),
    Mutant(
        "a refund is cut by what has not arrived yet",
        "_refund",
        "refilled = max(0, now_ms - debit.at_ms) * spec.amount_milli // spec.period_ms",
        "refilled = -(-max(0, now_ms - debit.at_ms) * spec.amount_milli // spec.period_ms)",
        ("tests/core/test_lease_book.py::test_who_failed_and_tries_again_at_once_gets_in",),
    ),
    Mutant(
        "a credit undoes the oldest debit first",
        "undo_newest",
        "        debit = left.pop()\n        part = min(debit.milli, credit_milli)\n"
        "        if debit.milli > part:\n            left.append(",
        "        debit = left.pop(0)\n        part = min(debit.milli, credit_milli)\n"
        "        if debit.milli > part:\n            left.insert(0, ",
        ("tests/core/test_lease_book.py::test_credits_undo_the_newest_debit_first",),
    ),
    Mutant(
        "what is settled is refunded",
        "LeaseAccount.refunds",
        "                if self.settled is not None and spec.name in self.settled:\n"
        "                    continue\n",
        "",
        ("tests/core/test_lease_book.py::test_what_is_settled_is_not_refunded",),
    ),
    Mutant(
        "a lease gives back more than it holds",
        "undo_newest",
        "    return CreditResult(left, undone[True], undone[False])\n",
        "    return CreditResult(left, undone[True] + credit_milli, undone[False])\n",
        ("tests/core/test_lease_book.py::test_each_bucket_has_an_account_of_its_own",),
    ),
    Mutant(
        "a settlement adds up",
        "LeaseAccount.missing",
        "            ref: milli * times - total_milli(self.debits(ref))\n",
        "            ref: milli * times\n",
        (
            "tests/flows/test_acquire.py::test_settle_is_absolute_and_idempotent_and_survives_an_exception[blocking-memory]",
        ),
    ),
    Mutant(
        "a refund credits what a soft limit did not give",
        "LeaseAccount.debits",
        "        return (Debit(self.at_ms, amount, ref not in self.untaken),) if amount else ()\n",
        "        return (Debit(self.at_ms, amount),) if amount else ()\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_refund_of_a_passed_soft_limit_gives_nothing_back-blocking]",
        ),
    ),
    Mutant(
        "more of a passed soft limit counts as taken",
        "Settlements.consume",
        "        account.debit(wanted, now_ms, untaken)\n",
        "        account.debit(wanted, now_ms)\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_lease_gives_back_tokens_only_of_what_it_took-blocking]",
        ),
    ),
    Mutant(
        "an undo credits what a soft limit did not give",
        "credit_of",
        "        0 if amount and spec.name in overdrawn else amount\n",
        "        amount\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-what_is_taken_and_undone_leaves_no_trace-blocking]",
        ),
    ),
    Mutant(
        "what was only counted stays counted",
        "adjust_record",
        "                cells[at + CONSUMED] += count\n",
        "                cells[at + CONSUMED] += debit\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_refund_of_a_passed_soft_limit_gives_nothing_back-blocking]",
        ),
    ),
    Mutant(
        "no soft limit is ever passed",
        "Verdict.untaken",
        "            if record[TERMS].soft:\n                return self._untaken()",
        "            if record[TERMS].own:\n                return self._untaken()",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_refund_of_a_passed_soft_limit_gives_nothing_back-blocking]",
        ),
    ),
    Mutant(
        "a debit that was never written is refunded",
        "Settlements._write_owed",
        "            account.lose(owed)\n",
        "            pass\n",
        ("tests/flows/test_outage.py::test_a_debit_that_was_lost_for_good_is_not_refunded",),
    ),
    Mutant(
        "an owed debit is credited before it was written",
        "LeaseAccount.give_back",
        "            if owed:\n                self.owe({ref: -owed})\n",
        "            owed = 0\n",
        ("tests/core/test_lease_book.py::test_no_bucket_gets_back_what_it_did_not_give",),
    ),
    Mutant(
        "a parent of two counts once",
        "LeaseAccount._limit_refs",
        "        if len(set(times)) == 1:\n",
        "        if times:\n",
        (
            "tests/core/test_lease_book.py::test_a_bucket_that_parts_of_a_request_share_counts_for_each_of_them",
        ),
    ),
    Mutant(
        "a lease that ended is refunded again",
        "Settlements.leave",
        "        if account.closed:\n            return\n        account.closed = True\n",
        "",
        ("tests/flows/test_once_only.py::test_a_lease_that_was_refunded_is_not_refunded_again",),
    ),
    Mutant(
        "what is to be kept is refunded",
        "Settlements.leave",
        "        if failed and not account.keep:\n",
        "        if failed:\n",
        ("tests/flows/test_acquire.py::test_on_error_keep_keeps[blocking-memory]",),
    ),
    Mutant(
        "a failed block keeps what it took",
        "Settlements.leave",
        "        if failed and not account.keep:\n",
        "        if failed and account.keep:\n",
        ("tests/flows/test_acquire.py::test_an_exception_refunds[blocking-memory]",),
    ),
    Mutant(
        "a credit whose answer was lost is sent again",
        "Settlements._write",
        "            if lost is not None:\n                key = demands[0].key\n",
        "            if lost is not None:\n"
        "                await account.store.adjust(demands, self._store_ms(self._clock()))\n"
        "                key = demands[0].key\n",
        ("tests/flows/test_outage.py::test_a_credit_is_sent_once_and_its_loss_is_told",),
    ),
    Mutant(
        "a debit that failed is forgotten",
        "Settlements._debit",
        "            account.owe(debits)\n",
        "            pass\n",
        ("tests/flows/test_outage.py::test_a_debit_that_failed_is_owed_and_written_at_the_end",),
    ),
    Mutant(
        "who is cancelled before the block keeps what it took",
        "PendingAcquire.__aenter__",
        "            await self._undo_if_cancelled(lease)\n",
        "            await raise_if_cancelled()\n",
        (
            "tests/flows/test_cancellation_told.py::test_a_timeout_around_an_acquire_is_a_timeout_and_gives_back",
        ),
    ),
    Mutant(
        "a cancelled block is not refunded",
        "PendingAcquire.__aexit__",
        "finish(lease.settlements.leave(lease, kind is not None))",
        "finish(lease.settlements.leave(lease, kind is not None and issubclass(kind, Exception)))",
        ("tests/flows/test_cancellation_told.py::test_who_is_cancelled_in_the_block_gives_back",),
    ),
    Mutant(
        "a throttled key is let in as in an outage",
        "Engine.acquire",
        "        except Throttled as trouble:\n"
        '            self.notify("refused", requests[0][0], requests[0][1], str(trouble))\n'
        "            if demands:\n",
        "        except ZeroDivisionError as trouble:\n"
        '            self.notify("refused", requests[0][0], requests[0][1], str(trouble))\n'
        "            if demands:\n",
        (
            "tests/flows/test_outage.py::test_a_throttled_key_is_refused_even_when_outages_are_allowed",
        ),
    ),
    Mutant(
        "an outage lets everybody pass",
        "Engine._decide_degraded",
        "        if rule is OnUnavailable.BLOCK or not demands or isinstance(trouble, UndoLost):\n",
        "        if not demands:\n",
        ("tests/flows/test_outage.py::test_blocked_by_default",),
    ),
    Mutant(
        "while the store is away nothing is counted",
        "Engine._decide_degraded",
        "        verdict = await self._consume_or_peek(self.fallback, demands, now_ms, dry_run)\n",
        "        verdict = Verdict(True, (), (), now_ms)\n",
        ("tests/flows/test_outage.py::test_allow_is_labelled_counted_and_bounded",),
    ),
    Mutant(
        "a dry run consumes",
        "Engine._consume_or_peek",
        "        if not dry_run:\n            return await store.consume(demands, store_ms)\n",
        "        if dry_run:\n            return await store.consume(demands, store_ms)\n",
        (
            "tests/flows/test_rulings.py::test_an_outage_is_ruled_locally_or_refused[blocking-memory-True]",
        ),
    ),
    Mutant(
        "an outdated plan stays in the cache",
        "Engine._forget_plans",
        "            self.configs.outdated(demand.key.entity_id, demand.key.resource)\n",
        "            pass\n",
        (
            "tests/flows/test_once_only.py::test_an_outdated_plan_is_read_anew_at_the_next_call[blocking-memory]",
        ),
    ),
    Mutant(
        "what a bucket is asked twice counts once",
        "_sum",
        "        a if b is None else b if a is None else a + b\n",
        "        a if b is None else b if a is None else max(a, b)\n",
        ("tests/flows/test_acquire.py::test_acquire_many_is_all_or_none[blocking-memory]",),
    ),
    Mutant(
        "true is one token",
        "limits.parse_amount",
        "    if type(value) is not int:\n",
        "    if not isinstance(value, int):\n",
        ("tests/flows/test_rulings.py::test_each_is_a_whole_number[True]",),
    ),
    Mutant(
        "a demand that can never succeed is an ordinary refusal",
        "Plan.demands",
        "            elif type(amount) is int and 0 <= amount <= most:\n",
        "            elif type(amount) is int and 0 <= amount:\n",
        ("tests/flows/test_rulings.py::test_each_is_that_much_of_every_limit[blocking-memory]",),
    ),
    Mutant(
        "who comes later is served first",
        "wait_in_turn",
        "    if not queues.has_waiters(keys):\n",
        "    if queues is not None:\n",
        ("tests/flows/test_once_only.py::test_who_comes_while_others_wait_does_not_overtake_them",),
    ),
    Mutant(
        "the lowest level wins",
        "resolve",
        "            found.setdefault(limit.name, []).append((level, source, version, limit))\n",
        "            found.setdefault(limit.name, []).insert(0, (level, source, version, limit))\n",
        ("tests/flows/test_config.py::test_levels_override_limit_by_limit[blocking-memory]",),
    ),
]
