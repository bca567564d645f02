"""Faults in what Redis runs and in how keys are named there; killed on a real server."""

from __future__ import annotations

from proof.planted.fault import Mutant

MUTANTS = [
    Mutant(
        "redis: a page shows buckets that have expired",
        "listing.lua",
        "    if redis.call('EXISTS', key) == 1 then\n",
        "    if key then\n",
        (
            "tests/stores/redis/test_find.py::test_a_bucket_that_expired_is_skipped_and_no_longer_listed",
        ),
    ),
    Mutant(
        "redis: stale entries of an index stay",
        "listing.lua",
        "    redis.call('ZREM', index, entries_of(key))\n",
        "",
        (
            "tests/stores/redis/test_find.py::test_a_bucket_that_expired_is_skipped_and_no_longer_listed",
        ),
    ),
    Mutant(
        "redis: an index that nobody reads grows without end",
        "bucket.lua",
        "redis.call('ZRANDMEMBER', index, 2)",
        "{}",
        ("tests/stores/redis/test_find.py::test_an_index_that_nobody_reads_stays_small",),
    ),
    Mutant(
        "redis: buckets are not listed by resource",
        "bucket.lua",
        "redis.call('ZADD', index, 0, by_entity, 0, by_resource)",
        "redis.call('ZADD', index, 0, by_entity)",
        (
            "tests/stores/redis/test_find.py::test_a_page_costs_what_it_shows_whatever_else_is_stored",
        ),
    ),
    Mutant(
        "redis: a page in a cluster begins every part at the cursor",
        "RedisStore.find",
        "first if slot == start else begin",
        "first",
        ("tests/stores/redis/test_find.py::test_pages_are_whole_and_show_each_bucket_once",),
    ),
    Mutant(
        "redis: the part of an index is in a slot of its own",
        "tag_in_slot",
        "_suffixes()[slot ^ shift]",
        "_suffixes()[slot]",
        ("tests/stores/redis/test_find.py::test_there_is_a_tag_for_every_slot",),
    ),
    Mutant(
        "redis: the server's clock is left out",
        "bucket.lua",
        "    local time = redis.call('TIME')\n"
        "    return tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000)\n",
        "    return 0\n",
        (
            "tests/stores/redis/test_store.py::test_a_client_whose_clock_is_an_hour_off_changes_nothing",
        ),
    ),
    Mutant(
        "redis: refill is rounded up",
        "bucket.lua",
        "    local arrived = rest * whole + floor(rest * (a - whole * p) / p)\n"
        "    if periods < 0 then",
        "    local arrived = rest * whole + math.ceil(rest * (a - whole * p) / p)\n"
        "    if periods < 0 then",
        (
            "tests/stores/redis/test_contract.py::test_contract[a_refusal_is_true_and_its_wait_the_least-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: the usual case rounds refill up",
        "warm.lua",
        "local arrived = rest * whole + floor(rest * (a - whole * p) / p)",
        "local arrived = rest * whole + math.ceil(rest * (a - whole * p) / p)",
        (
            "tests/stores/redis/test_contract.py::test_contract[a_refusal_is_true_and_its_wait_the_least-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: the epoch moves with every take",
        "warm.lua",
        "                    epoch = epoch + periods * p\n",
        "                    epoch, tokens, arrived = now, tokens + arrived, 0\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[any_program_agrees_with_the_pure_model-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: the brim is no border",
        "warm.lua",
        "                if tokens + arrived >= capacity then\n",
        "                if tokens + arrived >= capacity * 2 then\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[any_program_agrees_with_the_pure_model-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: numbers are written with fourteen digits",
        "bucket.lua",
        "    return string.format('%.0f', number)\n",
        "    return tostring(number)\n",
        ("proof/machines/test_machines_redis.py::test_any_program_agrees_with_the_exact_model",),
    ),
    Mutant(
        "redis: a bucket in debt expires after an hour",
        "bucket.lua",
        "    local whole = math.ceil(longest * 1.000001) + MARGIN\n",
        "    local whole = math.min(HOUR, math.ceil(longest * 1.000001) + MARGIN)\n",
        ("tests/stores/redis/test_expiry.py::test_S7_it_outlives_its_debt[the first take]",),
    ),
    Mutant(
        "redis: an allowance that never refills expires",
        "bucket.lua",
        "            if limit.a == 0 then\n                return nil\n",
        "            if limit.a == 0 then\n                return MARGIN\n",
        (
            "tests/stores/redis/test_expiry.py::test_S8_what_never_refills_never_expires[the first take]",
        ),
    ),
    Mutant(
        "redis: the usual case lets an allowance expire",
        "warm.lua",
        "            if longest < 100000000000000 then\n",
        "            if longest == math.huge then longest = 0 end\n"
        "            if longest < 100000000000000 then\n",
        (
            "tests/stores/redis/test_expiry.py::test_S8_what_never_refills_never_expires[takes after it]",
        ),
    ),
    Mutant(
        "redis: a refusal keeps what it took",
        "consume.lua",
        "    if not refused then\n        taken(place, bucket)\n",
        "    if left[place] then\n        taken(place, bucket)\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[any_program_agrees_with_the_pure_model-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: an older version of the limits wins",
        "bucket.lua",
        "    if not demand.own and demand.version < newest then\n",
        "    if false then\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[the_newest_version_wins-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: a changed limit begins full",
        "bucket.lua",
        "after.cells[place] = same and entry.cell or carried(entry.cell, now, entry.limit, limit)",
        "after.cells[place] = same and entry.cell or\n"
        "                { epoch = now, tokens = limit.capacity, low = 0, high = 0 }",
        (
            "tests/stores/redis/test_contract.py::test_contract[a_larger_limit_hands_out_no_full_bucket-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: a credit makes the bucket it is for",
        "adjust.lua",
        "    if bucket.new and only_credits then\n",
        "    if false then\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[a_credit_on_a_missing_bucket_makes_no_ghost-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: a key used once is used again",
        "adjust.lua",
        "    if marked and tonumber(marked) > now then\n        return 0\n    end\n",
        "",
        (
            "tests/stores/redis/test_contract.py::test_contract[an_adjustment_with_a_key_is_applied_once-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: what was only counted stays counted",
        "bucket.lua",
        "    return limit.counted or limit.wanted\n",
        "    return limit.wanted\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[a_refund_of_a_passed_soft_limit_gives_nothing_back-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: an undo credits what a soft limit did not give",
        "RedisStore._undo",
        "credits_of(verdict), now_ms",
        "[one.inverse() for one in verdict.demands], now_ms",
        (
            "tests/stores/redis/test_contract.py::test_contract[an_undone_take_gives_back_only_what_it_took-cluster-blocking]",
        ),
    ),
    Mutant(
        "redis: a soft limit refuses",
        "consume.lua",
        "            elseif limit.soft then\n",
        "            elseif false then\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[a_soft_limit_never_refuses-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: slots that agreed keep what the others refused",
        "RedisStore._consume_apart",
        "            kept = await self._undo(outcomes, now_ms)\n",
        "            pass\n",
        (
            "tests/stores/redis/test_contract.py::test_contract[all_buckets_or_none-cluster-blocking]",
        ),
    ),
    Mutant(
        "redis: an entity's keys lie apart",
        "keys.tag",
        'return "{" + namespace + SEPARATOR + entity_id + "}"',
        'return "(" + namespace + SEPARATOR + entity_id + ")"',
        (
            "tests/stores/redis/test_contract.py::test_contract[peek_find_and_forget_agree-redis-blocking]",
        ),
    ),
    Mutant(
        "redis: a rate that cannot be exact is taken",
        "_reduced_rate",
        "    if period > PERIOD_MAX:\n",
        "    if period > 2**63:\n",
        (
            "tests/stores/redis/test_store.py::"
            "test_limits_that_cannot_be_exact_are_refused[too slow]",
        ),
    ),
    Mutant(
        "redis: a busy loop's own time counts as the server's silence",
        "LoopClock.now_s",
        "        return self._elapsed_s + min(self.loop.time() - self._ticked_s, self._late_s)\n",
        "        return self.loop.time()\n",
        (
            "tests/stores/redis/client/test_herd.py::"
            "test_a_loop_that_is_busy_before_it_dials_does_not_blame_the_server[redis_url]",
        ),
    ),
    Mutant(
        "redis: a dial that a busy loop interrupted is not tried again",
        "RedisConnection._connect",
        "late_s = self._clock.now_s() if isinstance(error, TimeoutError) else math.inf",
        "late_s = math.inf",
        (
            "tests/stores/redis/client/test_herd.py::"
            "test_a_loop_that_is_busy_while_it_dials_does_not_blame_the_server[redis_url]",
        ),
    ),
    Mutant(
        "redis: whoever misses a script sends all of it",
        "MissingScripts.retry",
        "        if again or now_s - sent_s > timeout_s:\n",
        "        if True:\n",
        (
            "tests/stores/redis/client/test_herd.py::"
            "test_a_script_that_everybody_misses_is_sent_a_few_times_at_most[tasks-redis_url]",
        ),
    ),
    Mutant(
        "redis: a list of buckets is not renewed by takes",
        "warm.lua",
        "                aged = aged or floor(epoch / 86400000) ~= floor(cells[cell] / 86400000)\n",
        "",
        (
            "tests/stores/redis/test_expiry.py::"
            "test_the_list_is_renewed_while_its_bucket_is_used[one bucket-off-redis_url]",
        ),
    ),
    Mutant(
        "redis: a list of buckets is not renewed by takes of several",
        "bucket.lua",
        "        bucket.aged = true\n",
        "        bucket.aged = false\n",
        (
            "tests/stores/redis/test_expiry.py::"
            "test_the_list_is_renewed_while_its_bucket_is_used[two buckets-off-redis_url]",
        ),
    ),
    Mutant(
        "redis: a list ends before a bucket that lives for years",
        "warm.lua",
        "            if not aged and longest > 8640000000 then",
        "            if false then",
        (
            "tests/stores/redis/test_expiry.py::"
            "test_a_bucket_that_lives_for_years_is_listed_for_years[off-redis_url]",
        ),
    ),
    Mutant(
        "redis: a list that must not end gets an end",
        "bucket.lua",
        "    if left == -1 then\n        return\n    elseif not life then\n",
        "    if not life then\n",
        (
            "tests/stores/redis/test_expiry.py::"
            "test_a_bucket_that_never_ends_is_listed_without_end[off-redis_url]",
        ),
    ),
    Mutant(
        "redis: a limit that cannot be exact is stored",
        "_level_writes",
        "    check_limits(after.limits)\n",
        "",
        (
            "tests/stores/redis/test_store.py::"
            "test_limits_that_cannot_be_exact_are_refused[too slow]",
        ),
    ),
    Mutant(
        "redis: a clock that was set back by years blocks for years",
        "bucket.lua",
        "        if cell.epoch > now + HOUR then ",
        "        if false then ",
        (
            "tests/stores/redis/test_store.py::"
            "test_a_clock_that_jumps_years_ahead_and_back_blocks_nothing[one limit-one bucket]",
        ),
    ),
    Mutant(
        "redis: a refusal after the clock was set back is not kept",
        "bucket.lua",
        "            cell.epoch, bucket.changed = now, true\n",
        "            cell.epoch = now\n",
        (
            "tests/stores/redis/test_store.py::"
            "test_a_clock_that_jumps_years_ahead_and_back_blocks_nothing[one limit-one bucket]",
        ),
    ),
    Mutant(
        "redis: an undo without an answer is a plain refusal",
        "RedisStore._consume_apart",
        "        raise_trouble(outcomes, kept, refused=refused)\n",
        "        raise_trouble(outcomes, None, refused=refused)\n",
        (
            "tests/stores/redis/test_store_hostile.py::test_an_undo_over_slots_without_an_answer_is_told",
        ),
    ),
]
