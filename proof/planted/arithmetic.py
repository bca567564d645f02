"""Faults in the arithmetic of a bucket, its record and the decision."""

from __future__ import annotations

from proof.planted.fault import Mutant

MUTANTS = [
    Mutant(
        "refill is rounded up",
        "refilled_milli",
        "return elapsed_ms * rate.amount_milli // rate.period_ms",
        "return div_ceil(elapsed_ms * rate.amount_milli, rate.period_ms)",
        ("tests/stores/test_contract.py::test_contract[memory-looking_changes_nothing-blocking]",),
    ),
    Mutant(
        "a wait is rounded down",
        "calculate_retry_after",
        "    missing = wanted_milli - tokens_milli\n"
        "    return epoch_ms + div_ceil(missing * rate.period_ms, rate.amount_milli) - now_ms",
        "    missing = wanted_milli - tokens_milli\n"
        "    return epoch_ms + missing * rate.period_ms // rate.amount_milli - now_ms",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_lone_caller_who_waits_gets_in-blocking]",
        ),
    ),
    Mutant(
        "a wait is one millisecond too long",
        "calculate_retry_after",
        "    missing = wanted_milli - tokens_milli\n"
        "    return epoch_ms + div_ceil(missing * rate.period_ms, rate.amount_milli) - now_ms",
        "    missing = wanted_milli - tokens_milli\n"
        "    return epoch_ms + div_ceil(missing * rate.period_ms, rate.amount_milli) - now_ms + 1",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_refusal_is_true_and_its_wait_the_least-blocking]",
        ),
    ),
    Mutant(
        "a level may pass the brim",
        "refill_bucket",
        "return min(rate.capacity_milli, tokens_milli + arrived)",
        "return tokens_milli + arrived",
        ("tests/core/test_bucket.py::test_what_passes_the_brim_is_gone",),
    ),
    Mutant(
        "a debit on a bucket that ran over is swallowed",
        "force_consume",
        "    epoch_ms, tokens_milli = restart_if_full(tokens_milli, epoch_ms, now_ms, rate)\n"
        "    return restart_if_full(",
        "    return restart_if_full(",
        (
            "tests/core/test_bucket.py::test_credits_stop_at_the_brim_and_debits_do_not_stop_at_zero",
        ),
    ),
    Mutant(
        "a clock that is behind moves the epoch back",
        "restart_if_full",
        "return max(now_ms, epoch_ms), rate.capacity_milli",
        "return now_ms, rate.capacity_milli",
        ("tests/core/test_bucket.py::test_S12_a_clock_that_is_behind_moves_no_stored_time_back",),
    ),
    Mutant(
        "exactly what is there is not enough",
        "would_refill_satisfy",
        "return wanted_milli <= refill_bucket(tokens_milli, epoch_ms, now_ms, rate)",
        "return wanted_milli < refill_bucket(tokens_milli, epoch_ms, now_ms, rate)",
        ("tests/core/test_bucket.py::test_wait_is_what_the_oracle_finds_by_bisection",),
    ),
    Mutant(
        "a change of pace hands out a full bucket",
        "carry_over",
        "    started_ms = under_way * new.period_ms // (old.period_ms * new.amount_milli)\n"
        "    return moment_ms - started_ms, level",
        "    return moment_ms, new.capacity_milli",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_larger_limit_hands_out_no_full_bucket-blocking]",
        ),
    ),
    Mutant(
        "a larger capacity is filled at once",
        "carry_over",
        "return moment_ms, min(level, new.capacity_milli)",
        "return moment_ms, new.capacity_milli",
        (
            "tests/stores/test_contract.py::test_contract[memory-any_change_only_lowers_the_level-blocking]",
        ),
    ),
    Mutant(
        "a change of pace mints what was under way",
        "carry_over",
        "    return moment_ms - started_ms, level\n",
        "    return epoch_ms, level\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-any_change_only_lowers_the_level-blocking]",
        ),
    ),
    Mutant(
        "a change of pace loses what was under way",
        "carry_over",
        "    return moment_ms - started_ms, level\n",
        "    return moment_ms, level\n",
        (
            "tests/core/test_config_change.py::test_flapping_does_not_starve_a_slow_limit_whose_speed_is_what_changes",
        ),
    ),
    Mutant(
        "the epoch moves with every take",
        "decision.take",
        "                cells[at + TOKENS] = tokens - wanted\n",
        "                cells[at], cells[at + TOKENS] = now_ms, level - wanted\n",
        ("proof/machines/test_machines_local.py::TestMemory::runTest",),
    ),
    Mutant(
        "the epoch of a lone limit moves with every take",
        "_take_one",
        "        tokens -= wanted\n",
        "        epoch_ms, tokens = now_ms, level - wanted\n",
        ("tests/core/test_record.py::test_a_limit_gives_alone_what_it_gives_beside_another",),
    ),
    Mutant(
        "idle time past the brim is kept",
        "_take_one",
        "\n    if level >= capacity and wanted <= capacity:\n"
        "        epoch_ms = max(epoch_ms, now_ms)\n"
        "        tokens = capacity - wanted\n"
        "    elif wanted <= level and wanted <= capacity:\n",
        "\n    if wanted <= level:\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-idling_never_doubles_the_burst-blocking]",
        ),
    ),
    Mutant(
        "a demand takes the last token and one more",
        "_take_one",
        "\n    elif wanted <= level and wanted <= capacity:\n",
        "\n    elif wanted <= level + 1000 and wanted <= capacity:\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_new_bucket_is_full_and_admits_exactly_its_capacity-blocking]",
        ),
    ),
    Mutant(
        "a refusal keeps what it took from the first bucket",
        "decision.decide",
        "return _mark_stale(Verdict(False, demands, held, now_ms)), held",
        "return _mark_stale(Verdict(False, demands, held, now_ms)), [*after, *held[len(after) :]]",
        ("tests/core/test_traps.py::test_two_callers_do_not_both_get_the_last_token",),
    ),
    Mutant(
        "a dry run looks at the first bucket alone",
        "judge",
        "allowed = all(fits(record, demand, now_ms) for demand, record in pairs)",
        "allowed = any(fits(record, demand, now_ms) for demand, record in pairs)",
        ("tests/flows/test_acquire.py::test_acquire_many_is_all_or_none[blocking-memory]",),
    ),
    Mutant(
        "a soft limit refuses",
        "decision.take",
        "            elif not soft:\n                return None",
        "            else:\n                return None",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_soft_limit_never_refuses-blocking]",
        ),
    ),
    Mutant(
        "a limit beside others gives the last token and one more",
        "decision.take",
        "            elif wanted <= level and wanted <= capacity:\n",
        "            elif wanted <= level + 1000 and wanted <= capacity:\n",
        ("tests/core/test_record.py::test_a_limit_gives_alone_what_it_gives_beside_another",),
    ),
    Mutant(
        "what is consumed is not counted in an adjustment",
        "adjust_record",
        "            if metered:\n                cells[at + CONSUMED] += count",
        "            if metered and debit > 0:\n                cells[at + CONSUMED] += count",
        (
            "tests/stores/test_contract.py::test_contract[memory-consumption_is_debits_less_credits-blocking]",
        ),
    ),
    Mutant(
        "the shortest of several waits is told",
        "longest_wait_ms",
        "return max(known, default=0) if len(known) == len(waits) else None",
        "return min(known, default=0) if len(known) == len(waits) else None",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_refusal_is_true_and_its_wait_the_least-blocking]",
        ),
    ),
    Mutant(
        "an older version of the limits wins",
        "apply_terms",
        "    if not terms.own and terms.version < held.version:\n        return record\n",
        "",
        ("tests/stores/test_contract.py::test_contract[memory-the_newest_version_wins-blocking]",),
    ),
    Mutant(
        "a limit that vanishes is forgotten, debt and all",
        "_apply_new_terms",
        "dormant = _dormant_cells(list(before.values()), SPECS_MAX - len(terms.specs), now_ms)",
        "dormant: list[LimitCell] = []",
        (
            "tests/stores/test_contract.py::test_contract[memory-debt_survives_a_change_of_limits-blocking]",
        ),
    ),
    Mutant(
        "a changed limit begins full",
        "_apply_new_terms",
        "        if cell is None:\n            cells += (now_ms, spec.capacity_milli, 0, 0)",
        "        if cell is None or cell.spec != spec:\n"
        "            cells += (now_ms, spec.capacity_milli, 0, 0)",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_larger_limit_hands_out_no_full_bucket-blocking]",
        ),
    ),
    Mutant(
        "an override is not remembered to be older than the newest version",
        "Terms.extend",
        "        newest = max(self.version, version)\n",
        "        newest = self.version\n",
        (
            "tests/core/test_config_change.py::test_the_newest_version_is_remembered_across_an_override",
        ),
    ),
    Mutant(
        "a record expires while it is in debt",
        "record.full_at_ms",
        "        missing = capacity - record[at + TOKENS]\n",
        "        missing = min(capacity, capacity - record[at + TOKENS])\n",
        ("tests/core/test_expiry.py::test_full_at_is_when_every_limit_is_full_and_no_earlier",),
    ),
    Mutant(
        "a record expires as soon as its fastest limit is full",
        "record.full_at_ms",
        "latest_ms = max(latest_ms, epoch_ms - (-missing * period_ms // amount))",
        "latest_ms = epoch_ms - (-missing * period_ms // amount)",
        ("tests/core/test_expiry.py::test_full_at_is_when_every_limit_is_full_and_no_earlier",),
    ),
    Mutant(
        "an allowance that never refills expires",
        "record.full_at_ms",
        "            if amount == 0:\n                return None\n",
        "            if amount == 0:\n                at += STRIDE\n                continue\n",
        ("tests/core/test_expiry.py::test_S8_a_rate_of_zero_never_expires_in_use",),
    ),
    Mutant(
        "errors: a passed soft limit counts as a violation",
        "RateLimitExceeded.violations",
        "return [status for status in self.statuses if status.refuses]",
        "return [status for status in self.statuses if status.exceeded]",
        ("tests/flows/test_acquire.py::test_a_refusal_is_of_the_hard_limits_only",),
    ),
]
