"""Faults in the layers."""

from __future__ import annotations

from proof.planted.fault import Mutant

MUTANTS = [
    Mutant(
        "breaker: half-open lets everybody through",
        "Circuit.enter",
        "            if self._probe_until_ms is not None and now_ms < self._probe_until_ms:\n"
        "                raise self._refusal(0)\n",
        "",
        (
            "tests/layers/test_breaker.py::test_a_probe_that_never_comes_back_blocks_for_a_bounded_time",
        ),
    ),
    Mutant(
        "breaker: one success closes it",
        "Circuit.note_success",
        "                if self._successes >= self._patience.successes_to_close:\n",
        "                if self._successes >= 1:\n",
        ("tests/layers/test_breaker.py::test_two_probes_close_it_one_failure_opens_it_again",),
    ),
    Mutant(
        "breaker: a throttled key counts as a failure",
        "Breaker.consume",
        "        except Unreachable as trouble:\n            circuit.note_failure(turn, trouble)\n"
        "            raise\n",
        "        except Exception as trouble:\n            circuit.note_failure(turn, trouble)\n"
        "            raise\n",
        ("tests/layers/test_breaker.py::test_what_is_not_an_outage_moves_nothing",),
    ),
    Mutant(
        "breaker: failures need not be in a row",
        "Circuit.note_success",
        "            self.failures = 0\n            self.calm = before is BreakerState.CLOSED\n",
        "            self.calm = before is BreakerState.CLOSED\n",
        ("tests/layers/test_breaker.py::test_failures_must_be_in_a_row",),
    ),
    Mutant(
        "breaker: a cancelled probe blocks the next",
        "Circuit.note_unknown",
        "            if turn == self.turn:\n                self._probe_until_ms = None\n",
        "            pass\n",
        ("tests/layers/test_breaker_flows.py::test_a_cancelled_probe_makes_room_for_the_next",),
    ),
    Mutant(
        "breaker: pauses do not grow",
        "Circuit._open",
        "        self._pause_ms = min(longer_ms, self._patience.open_ms_max)\n",
        "        self._pause_ms = self._patience.open_ms\n",
        (
            "tests/layers/test_breaker.py::test_the_pause_doubles_up_to_a_minute_and_starts_anew_once_closed",
        ),
    ),
    Mutant(
        "breaker: an answer from before it opened closes it",
        "Circuit.note_success",
        "            if turn < self._row_turn or before is BreakerState.OPEN:\n"
        "                return\n"
        "            self.failures = 0\n",
        "            if before is BreakerState.OPEN:\n                return\n"
        "            self.failures = 0\n",
        ("tests/layers/test_breaker.py::test_calls_sent_before_say_nothing_about_what_came_after",),
    ),
    Mutant(
        "breaker: calls that fail together count each",
        "Circuit.note_failure",
        "            self.turn += 1\n            if not self.failures:\n",
        "            if not self.failures:\n",
        (
            "tests/layers/test_breaker.py::test_calls_that_fail_together_count_once",
            "tests/layers/test_breaker.py::test_one_stall_is_not_an_outage_however_many_wait",
        ),
    ),
    Mutant(
        "breaker: only a call after the last failure ends the row",
        "Circuit.note_failure",
        "            if not self.failures:\n                self._row_turn = self.turn\n",
        "            self._row_turn = self.turn\n",
        (
            "tests/layers/test_breaker.py::test_a_call_that_began_after_a_failure_and_succeeds_ends_the_row",
        ),
    ),
    Mutant(
        "rejections: a credit is not noticed",
        "Rejections.adjust",
        "        finally:  # also where the answer was lost: the store may have done it\n"
        "            self._drop(demand.key for demand in demands)\n",
        "        finally:\n            pass\n",
        (
            "tests/layers/test_rejections.py::test_own_credits_debits_and_forgetting_are_seen_at_once",
        ),
    ),
    Mutant(
        "rejections: an answer from before a credit is kept",
        "Rejections._note",
        "                if self._dropped.get(text, 0) <= drops and not forget:\n",
        "                if not forget:\n",
        ("tests/layers/test_rejections.py::test_an_answer_from_before_a_credit_is_not_kept",),
    ),
    Mutant(
        "rejections: a state is trusted for ever",
        "Rejections._is_trusted",
        "        if not 0 <= local_ms - seen.sent_ms < self._trust_ms:\n            return False\n",
        "",
        (
            "tests/layers/test_rejections.py::test_a_credit_of_another_process_is_seen_within_a_second",
        ),
    ),
    Mutant(
        "rejections: the wait of the latest moment is told",
        "Rejections._build_refusal",
        "            elapsed_ms = max(0, local_ms - seen.received_ms - ROUNDING_MS)\n",
        "            elapsed_ms = local_ms - seen.received_ms + ROUNDING_MS\n",
        (
            "tests/layers/test_rejections_time.py::test_local_refusals_are_true_and_waits_never_too_short",
        ),
    ),
    Mutant(
        "rejections: other terms are judged by an old state",
        "Rejections._is_trusted",
        "        return core is demand.terms or bool(core == demand.terms)\n",
        "        return True\n",
        ("tests/layers/test_rejections.py::test_other_terms_are_the_stores_to_judge",),
    ),
    Mutant(
        "rejections: they grow without a bound",
        "rejections._put",
        "    if len(entries) >= entries_max:\n        del entries[next(iter(entries))]\n",
        "",
        ("tests/layers/test_rejections.py::test_it_is_bounded_and_keys_that_recover_leave",),
    ),
    Mutant(
        "prefetch: what is held goes back twice",
        "HeldTokens.empty",
        "        self.held = [0] * len(self.held)\n        return Demand(",
        "        return Demand(",
        (
            "tests/layers/test_prefetch.py::test_a_refusal_over_several_buckets_counts_what_is_held_here",
        ),
    ),
    Mutant(
        "prefetch: a chunk has no bound",
        "HeldTokens.ahead",
        "            more = min((used + wanted) * AIM_MS // elapsed_ms, 2 * used, room)\n",
        "            more = (used + wanted) * AIM_MS\n",
        ("tests/layers/test_prefetch.py::test_what_is_held_stays_below_the_published_share",),
    ),
    Mutant(
        "prefetch: what is old is served",
        "HeldTokens.is_fresh",
        "        return 0 <= local_ms - self.filled_ms < HOLD_MS\n",
        "        return True\n",
        (
            "tests/layers/test_prefetch.py::test_unused_tokens_come_back_when_touched_swept_or_closed",
        ),
    ),
    Mutant(
        "prefetch: serving takes nothing from the pot",
        "HeldTokens.serve",
        "                self.held[place] = held\n",
        "",
        (
            "tests/layers/test_prefetch.py::test_every_token_is_given_once_and_the_last_refusal_is_exact",
        ),
    ),
    Mutant(
        "prefetch: a refusal stands though tokens are held here",
        "Prefetch._consume_directly",
        "            if not credits:\n                return verdict\n",
        "            if verdict is not None:\n                return verdict\n",
        (
            "tests/layers/test_prefetch.py::test_a_refusal_over_several_buckets_counts_what_is_held_here",
        ),
    ),
    Mutant(
        "prefetch: nobody waits for another's call",
        "Prefetch._step",
        "            if self._pace is None or holding.turns.is_full:\n",
        "            if self._pace is not None:\n",
        ("tests/layers/test_prefetch_herd.py::test_a_herd_makes_two_calls",),
    ),
    Mutant(
        "prefetch: those who wait are no part of the chunk",
        "HeldTokens.ahead",
        "            waiting = max(0, self.turns.wanted(place) - held)\n",
        "            waiting = 0\n",
        ("tests/layers/test_prefetch_herd.py::test_a_herd_makes_two_calls",),
    ),
    Mutant(
        "prefetch: a filler that is cancelled keeps its turn",
        "Prefetch._fetch",
        "            with self._lock:\n                holding.turns.end(trouble)\n",
        "            if trouble is not None:\n                holding.turns.end(trouble)\n",
        (
            "tests/layers/test_prefetch_herd.py::test_a_cancelled_filler_is_followed_by_one_who_waited",
        ),
    ),
    Mutant(
        "prefetch: who gave up waiting is fetched for",
        "FlightWaiter.leave",
        "            self.turns.waiting.pop(self, None)\n",
        "",
        (
            "tests/layers/test_prefetch_herd.py::test_a_cancelled_waiter_takes_nothing_and_leaves_nothing",
        ),
    ),
    Mutant(
        "prefetch: all who wait meet the same trouble one after another",
        "shared_trouble",
        "    if isinstance(trouble, Throttled):\n",
        "    if not trouble.args:\n",
        ("tests/layers/test_prefetch_herd.py::test_trouble_is_everybodys_who_waited_for_the_call",),
    ),
    Mutant(
        "prefetch: a herd that wants more than there is gets nothing ahead",
        "HeldTokens.less",
        "            line.append(min(self.turns.wanted(place), most, left))\n",
        "            line.append(0)\n",
        (
            "tests/layers/test_prefetch_herd.py::test_a_bucket_with_less_than_the_herd_wants_gives_all_it_has",
        ),
    ),
    Mutant(
        "prefetch: time stands still for who waits",
        "Prefetch._in_turn",
        "                    now_ms = asked_ms + self._clock() - began_ms\n",
        "                    now_ms = asked_ms\n",
        ("tests/layers/test_prefetch_herd.py::test_the_time_of_a_caller_goes_on_while_it_waits",),
    ),
    Mutant(
        "shadow: it refuses",
        "Shadow._admit",
        "        return ShadowVerdict(verdict)\n",
        "        return verdict\n",
        ("tests/layers/test_stack.py::test_it_never_refuses_and_changes_nothing",),
    ),
    Mutant(
        "shadow: a lease gives back what nobody took",
        "ShadowVerdict.__init__",
        "        super().__init__(True, (), (), refusal.now_ms)\n",
        "        super().__init__(True, refusal.demands, refusal.records, refusal.now_ms)\n",
        (
            "tests/layers/test_limiter.py::test_in_shadow_nothing_is_refused_and_a_lease_gives_back_only_what_it_took",
        ),
    ),
]
