"""Faults in the stores in memory, in SQLite and in DynamoDB, and in names."""

from __future__ import annotations

from proof.planted.fault import Mutant

MUTANTS = [
    Mutant(
        "dynamodb: an undo credits what a soft limit did not give",
        "DynamoStore._undo",
        "            credit_of(demand, result.overdrawn(demand, now_ms))\n",
        "            demand.inverse()\n",
        (
            "proof/model/test_contract.py::test_contract[an_undone_take_gives_back_only_what_it_took-blocking]",
        ),
    ),
    Mutant(
        "dynamodb: what was only counted stays counted",
        "adjust._part",
        "ShardAmount(amount, hold if amount else Hold.FREE, counts[name])",
        "ShardAmount(amount, hold if amount else Hold.FREE, amount)",
        (
            "proof/model/test_contract.py::test_contract[a_refund_of_a_passed_soft_limit_gives_nothing_back-blocking]",
        ),
    ),
    Mutant(
        "memory: a bucket in debt makes room",
        "MemoryStore._evict_if_full",
        "        if full_ms is None or full_ms > now_ms:\n            return False\n",
        "        if full_ms is None:\n            return False\n",
        ("tests/stores/memory/test_bound.py::test_a_bucket_in_use_is_never_forgotten",),
    ),
    Mutant(
        "memory: the bound gives way to whoever comes",
        "MemoryStore._make_room",
        "        if over > 0 and self._gives_way:\n",
        "        if over > 0:\n",
        ("tests/stores/memory/test_bound.py::test_a_bucket_in_use_is_never_forgotten",),
    ),
    Mutant(
        "memory: a key used once is used again",
        "MemoryStore._claim",
        "        self._once[name] = now_ms + ONCE_MS\n",
        "",
        (
            "tests/stores/test_contract.py::test_contract[memory-an_adjustment_with_a_key_is_applied_once-blocking]",
        ),
    ),
    Mutant(
        "memory: a credit makes the bucket it is for",
        "MemoryStore.adjust",
        "                if record is not None or not is_credit_only(demand)\n",
        "",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_credit_on_a_missing_bucket_makes_no_ghost-blocking]",
        ),
    ),
    Mutant(
        "sqlite: what was read is not locked",
        "SqliteStore.consume",
        "        return await self._port.call("
        "lambda connection: self._consume(connection, demands, now_ms))\n",
        "        moment_ms = self._clock() if now_ms is None else now_ms\n"
        "        found = await self._port.call(lambda c: self._found(c, demands, moment_ms))\n"
        "        verdict, after = decide(demands, found, moment_ms)\n"
        "        for demand, before, record in zip(demands, found, after, strict=True):\n"
        "            if needs_write(verdict, before, record):\n"
        "                await self._port.call(\n"
        "                    lambda c, key=demand.key, record=record, new=before is None:\n"
        "                    self._table.put(c, key, record, new=new))\n"
        "        return verdict\n",
        ("tests/stores/sqlite/test_async.py::test_tasks_share_one_bucket_exactly",),
    ),
    Mutant(
        "sqlite: an error half way keeps the first half",
        "SqliteConnection._attempt",
        '                    cursor.execute("ROLLBACK")',
        '                    cursor.execute("COMMIT")',
        ("tests/stores/sqlite/test_errors.py::test_errors_inside_a_call_undo_all_of_it",),
    ),
    Mutant(
        "sqlite: a refusal is written",
        "SqliteStore._decide",
        "            if needs_write(verdict, before, record):\n",
        "            if verdict.allowed:\n",
        (
            "tests/stores/test_contract.py::test_contract[sqlite-a_larger_limit_hands_out_no_full_bucket-blocking]",
        ),
    ),
    Mutant(
        "sqlite: a bucket in debt is swept",
        "BucketTable._sweep",
        "            if full_ms is not None and full_ms <= until_ms:\n",
        "            if full_ms is not None:\n",
        ("proof/machines/test_machines_local.py::TestSqlite::runTest",),
    ),
    Mutant(
        "sqlite: an allowance that never refills is swept",
        "BucketTable._sweep",
        "            if full_ms is not None and full_ms <= until_ms:\n",
        "            if full_ms is None or full_ms <= until_ms:\n",
        (
            "tests/stores/test_contract.py::test_contract[sqlite-an_allowance_that_never_refills_stays_spent-blocking]",
        ),
    ),
    Mutant(
        "sqlite: a key used once is used again",
        "bucket_table.claim",
        "    if row is not None and row[0] > now_ms:\n        return False\n",
        "",
        (
            "tests/stores/test_contract.py::test_contract[sqlite-an_adjustment_with_a_key_is_applied_once-blocking]",
        ),
    ),
    Mutant(
        "sqlite: the file cuts large numbers",
        "TermsCodec.row",
        "            str(list(record[CELLS:])),  # a list of ints prints as JSON\n",
        "            str([float(cell) for cell in record[CELLS:]]),\n",
        ("tests/stores/sqlite/test_schema.py::test_numbers_of_any_size_come_back",),
    ),
    Mutant(
        "sqlite: two entities share a row",
        "buckets.sql",
        "SELECT terms, hour, events, cells FROM buckets\n"
        "WHERE namespace = ? AND entity_id = ? AND resource = ?",
        "SELECT terms, hour, events, cells FROM buckets\n"
        "WHERE namespace = ? AND lower(entity_id) = lower(?) AND resource = ?",
        (
            "tests/stores/test_contract.py::test_contract[sqlite-names_never_touch_each_other-blocking]",
        ),
    ),
    Mutant(
        "names: a newline may follow",
        "limits._parse",
        "    if pattern.fullmatch(text) is None:\n",
        '    if re.match(f"^(?:{pattern.pattern})$", text) is None:\n',
        ("tests/core/test_traps.py::test_a_trailing_newline_is_not_part_of_a_name",),
    ),
    Mutant(
        "names: the separator is a letter",
        "ENTITY_PATTERN",
        'ENTITY_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\\-:@]*")',
        'ENTITY_PATTERN = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\\-:@#]*")',
        ("tests/flows/test_bad_input.py::test_names['a#b']",),
    ),
    Mutant(
        "names: keys are joined without a border",
        "BucketKey.__init__",
        'self.text = f"{namespace}{SEPARATOR}{entity_id}{SEPARATOR}{resource}"',
        'self.text = f"{namespace}{SEPARATOR}{entity_id}{resource}"',
        (
            "tests/stores/test_contract.py::test_contract[memory-peek_find_and_forget_agree-blocking]",
        ),
    ),
    Mutant(
        "names: identifiers are not escaped",
        "http_fields._PLAIN",
        '_PLAIN = re.compile(r"[a-zA-Z0-9_.\\-:]{1,128}")',
        '_PLAIN = re.compile(r"[a-zA-Z0-9_.\\-:@]{1,128}")',
        ("tests/service/decide/test_identity.py::test_readable_where_it_can_be",),
    ),
    Mutant(
        "limits: any text that begins like one is a limit",
        "Limit.parse",
        "found = _TEXT.fullmatch(text.strip())",
        "found = _TEXT.match(text.strip())",
        ("proof/fuzz/test_fuzz_words.py::test_what_follows_a_limit_is_not_overlooked[ x]",),
    ),
    Mutant(
        "sqlite: a deleted file is replaced without a word",
        "SqliteConnection._look",
        "            _log.error(\n",
        "            _log.debug(\n",
        (
            "tests/stores/sqlite/test_errors.py::"
            "test_a_file_that_is_gone_is_left_for_the_one_that_is_there_now[deletion]",
        ),
    ),
    Mutant(
        "a clock that was set back by years blocks for years",
        "mark_counted",
        "    return after_clock_step(tuple(cells), now_ms)\n",
        "    return tuple(cells)\n",
        (
            "tests/core/test_clock_steps.py::"
            "test_a_clock_that_jumps_years_ahead_and_back_blocks_nothing[sqlite-a minute]",
        ),
    ),
    Mutant(
        "a clock that was set back forgives debt",
        "after_clock_step",
        "            cells[at + EPOCH] = now_ms\n",
        "            cells[at + EPOCH], cells[at + TOKENS] = now_ms, max(0, cells[at + TOKENS])\n",
        ("tests/core/test_clock_steps.py::test_S7_debt_stays_debt_over_the_step[sqlite-a minute]",),
    ),
    Mutant(
        "a caller that is an hour behind moves stored times back",
        "after_clock_step",
        "    latest_ms = now_ms + CLOCK_STEP_MS\n",
        "    latest_ms = now_ms\n",
        ("tests/core/test_clock_steps.py::test_S12_a_clock_that_is_an_hour_behind_moves_no_epoch",),
    ),
    Mutant(
        "dynamodb: an undo without an answer is a plain refusal",
        "DynamoStore._consume_all",
        "        raise_trouble(found.values(), kept, refused=refused)\n",
        "        raise_trouble(found.values(), None, refused=refused)\n",
        (
            "tests/stores/dynamodb/protocol/test_interrupted.py::test_a_credit_whose_answer_is_lost_is_told[1-before-60000]",
        ),
    ),
    Mutant(
        "dynamodb: a read that is lost ends an undo",
        "Adjuster.adjust",
        "            except Unreachable as lost:",
        "            except AssertionError as lost:",
        (
            "tests/stores/dynamodb/protocol/test_interrupted.py::test_a_read_that_is_lost_during_an_undo_is_asked_again[1]",
        ),
    ),
    Mutant(
        "dynamodb: a transaction that may still arrive is planned anew",
        "flow.send",
        "    if lost is None or is_guarded or type(outcome) is dict:\n",
        "    if True:\n",
        (
            "tests/stores/dynamodb/protocol/test_interrupted.py::test_a_lost_transaction_is_never_planned_anew[answer0]",
        ),
    ),
    Mutant(
        "engine: a refusal that was not undone is an outage",
        "Engine._decide_degraded",
        " or not demands or isinstance(trouble, UndoLost):",
        " or not demands:",
        (
            "tests/flows/test_outage.py::test_a_refusal_that_could_not_be_undone_is_told_and_admits_nobody[OnUnavailable.ALLOW]",
        ),
    ),
    Mutant(
        "dynamodb: a shard that has paid its part lets pass what others still owe",
        "take.attempt",
        "    spare = expressions.SPARE_MILLI if seen.depth else 0\n",
        "    spare = 0\n",
        (
            "tests/stores/dynamodb/sharding/test_debts.py::test_nothing_passes_a_divided_bucket_until_its_wait_is_over[3]",
        ),
    ),
    Mutant(
        "dynamodb: a debt is divided by capacities",
        "divide_adjustment",
        "        shares = (_refill_weights(cells) if owing else None) or rooms\n",
        "        shares = rooms\n",
        (
            "tests/stores/dynamodb/sharding/test_debts.py::test_a_large_debt_is_paid_by_all_shards_at_one_moment",
        ),
    ),
    Mutant(
        "memory: a bucket is forgotten up to a second before it is full",
        "MemoryStore._evict_if_full",
        "        if full_ms is None or full_ms > now_ms:\n            return False\n",
        "        if full_ms is None or full_ms >= now_ms + 1000:\n            return False\n",
        (
            "tests/stores/memory/test_bound.py::test_a_bucket_makes_room_when_it_is_full_and_not_a_moment_earlier",
        ),
    ),
    Mutant(
        "memory: when a bucket is full is compared by the second",
        "MemoryStore._evict_if_full",
        "        if full_ms is None or full_ms > now_ms:\n            return False\n",
        "        if full_ms is None or full_ms // 1000 > now_ms // 1000:\n"
        "            return False\n",
        (
            "tests/stores/memory/test_bound.py::test_a_bucket_makes_room_when_it_is_full_and_not_a_moment_earlier",
        ),
    ),
    Mutant(
        "memory: a stand-in keeps usage history",
        "MemoryStore.__init__",
        "MemoryLedger(usage_rows_max=0 if gives_way else USAGE_ROWS_MAX)",
        "MemoryLedger()",
        ("tests/flows/test_outage.py::test_whatever_the_stand_in_keeps_is_bounded",),
    ),
    Mutant(
        "dynamodb: the band takes from slow limits",
        "band_milli",
        "    return band if band * period_ms <= amount_milli * BAND_REFILL_MS else 0\n",
        "    return band\n",
        (
            "tests/stores/dynamodb/protocol/test_contention.py::test_an_allowance_beside_a_limit_that_others_move_loses_nothing",
            "tests/stores/dynamodb/protocol/test_contention.py::test_a_monthly_limit_that_four_clients_move_loses_nothing",
        ),
    ),
    Mutant(
        "dynamodb: a take gives up on a limit that flips",
        "flow.ATTEMPTS_MAX",
        "ATTEMPTS_MAX = 12\n",
        "ATTEMPTS_MAX = 8\n",
        (
            "tests/stores/dynamodb/protocol/test_contention.py::test_a_limit_that_flips_between_attempts_is_taken_from_all_the_same",
        ),
    ),
    Mutant(
        "http1: more than one reply to one call is waited for",
        "ResponseReader._finish",
        "            if not self._until_close:\n"
        '                raise BadResponse("it sent more than one response to one request")\n',
        "            if not self._until_close:\n                return None  # type: ignore\n",
        (
            "tests/transport/test_http1.py::test_a_strict_reader_wants_a_length_and_nothing_more",
            "tests/stores/dynamodb/client/test_errors.py::test_replies_that_are_none",
        ),
    ),
    Mutant(
        "http1: of two lengths the first counts",
        "framing_of",
        "    if len(lengths) > 1 or _LENGTH",
        "    if _LENGTH",
        ("tests/transport/test_http1.py::test_what_cannot_be_used",),
    ),
    Mutant(
        "http1: 0x2 is a size",
        "_CHUNK",
        '_CHUNK = re.compile(rb"([0-9a-fA-F]{1,8})',
        '_CHUNK = re.compile(rb"([0-9a-fA-Fx]{1,8})',
        ("tests/transport/test_http1.py::test_what_cannot_be_used",),
    ),
    Mutant(
        "http1: a chunk ends wherever it likes",
        "ResponseReader._read_chunks",
        '            if self._buffer[after : after + 2] != b"\\r\\n":\n',
        "            if not self._buffer[after : after + 2]:\n",
        ("tests/transport/test_http1.py::test_what_cannot_be_used",),
    ),
    Mutant(
        "http1: a head may be a trailer",
        "ResponseReader._read_trailer",
        "        if _TRAILER.fullmatch(self._buffer, end, close) is None:\n",
        "        if _TRAILER.match(self._buffer, end, close) is None:\n",
        ("tests/transport/test_http1.py::test_what_cannot_be_used",),
    ),
    Mutant(
        "dynamodb: what nobody asked for begins the next reply",
        "AsyncHttpConnection.buffer_updated",
        "            self.hang_up()  # nobody asked",
        "            self._reader.feed(bytes(self._reused_buffer[:nbytes]))  # nobody asked",
        (
            "tests/stores/dynamodb/client/test_errors.py::test_what_nobody_asked_for_is_no_part_of_the_next_reply",
        ),
    ),
    Mutant(
        "dynamodb: what waits unread in an idle connection is the next reply",
        "idle_check",
        'select.POLLIN | getattr(select, "POLLRDHUP", 0)',
        'getattr(select, "POLLRDHUP", select.POLLIN)',
        (
            "tests/stores/dynamodb/client/test_errors.py::test_what_nobody_asked_for_is_no_part_of_the_next_reply",
        ),
    ),
    Mutant(
        "pool: a request with less time goes before all others",
        "AsyncHttpPool._wait",
        '            insort(self._waiting, call, key=attrgetter("send_by_s"))',
        "            self._waiting.appendleft(call)",
        ("tests/client/test_connections.py::test_who_has_the_least_time_is_next_in_line",),
    ),
    Mutant(
        "pool: what would hardly be answered is sent",
        "AsyncHttpPool.on_idle",
        "            if call.send_by_s <= self.loop.time():\n",
        "            if call.due_s <= self.loop.time():\n",
        (
            "tests/client/test_connections.py::test_a_connection_that_becomes_free_too_late_sends_nothing",
        ),
    ),
    Mutant(
        "ownership: a lock that another thread held stays locked in a forked child",
        "PerOwner.__init__",
        "        self.after_fork()\n        reset_after_fork(self)\n",
        "        self.after_fork()\n",
        (
            "tests/layers/test_fork.py::test_the_connections_of_a_child_do_not_wait_for_the_parents_lock",
        ),
    ),
    Mutant(
        "a take without an answer beside a key that is held back is a plain refusal",
        "raise_trouble",
        "    for trouble in [unknown, *troubles]:\n",
        "    for trouble in troubles:\n",
        (
            "tests/stores/dynamodb/protocol/test_interrupted.py::test_a_take_without_an_answer_is_told_before_other_trouble",
        ),
    ),
    Mutant(
        "what a bucket refused is admitted where another gave no answer",
        "raise_trouble",
        "    if lost is not None and (decided or unknown is None):\n",
        "    if lost is not None and unknown is None:\n",
        (
            "tests/stores/dynamodb/protocol/test_interrupted.py::test_a_take_without_an_answer_beside_a_refusal_is_no_outage[throttled]",
        ),
    ),
    Mutant(
        "engine: a store that denies counts as away",
        "Engine._decide_degraded",
        "        if isinstance(trouble, StoreDenied):\n"
        '            self.notify("denied", entity_id, resource, str(trouble))\n'
        "            raise trouble\n",
        "",
        ("tests/flows/test_outage.py::test_a_store_that_denies_is_not_away",),
    ),
    Mutant(
        "config: limits that were known hide a missing right",
        "Configs.cached_lookup",
        "            if stale is None or isinstance(trouble, StoreDenied):\n",
        "            if stale is None:\n",
        ("tests/flows/test_outage.py::test_limits_that_were_known_do_not_hide_a_missing_right",),
    ),
    Mutant(
        "dynamodb: denied access is an outage",
        "AccessRefused",
        "class AccessRefused(StoreDenied):\n",
        "class AccessRefused(NotApplied):\n",
        ("tests/stores/dynamodb/client/test_errors.py::test_who_is_not_let_in_learns_what_to_do",),
    ),
    Mutant(
        "sqlite: a file that may not be written is an outage",
        "translate",
        "    if code in _DENIED or (",
        "    if (",
        ("tests/stores/sqlite/test_errors.py::test_every_error_of_the_engine_becomes_ours",),
    ),
    Mutant(
        "catalog: an entity is made twice",
        "RecordsCatalog.create_entity",
        "        if seen.entity(entity.id) is not None:\n"
        "            raise EntityExistsError(entity.id)\n",
        "",
        (
            "tests/stores/test_contract.py::test_contract[memory-entities_are_kept_as_they_were_made-blocking]",
        ),
    ),
    Mutant(
        "catalog: an operator's switch goes with the limits",
        "RecordsCatalog.delete_stored",
        "            left = StoredLevel((), seen.version + 1, None, before.mode)\n",
        "            left = None\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_level_is_changed_in_part-blocking]",
        ),
    ),
    Mutant(
        "catalog: two active namespaces share a name",
        "RecordsCatalog.recover_namespace",
        "        if holder is not None and holder.id != namespace_id:\n",
        "        if False:\n",
        (
            "tests/stores/test_contract.py::test_contract[memory-a_namespace_lives_dies_and_returns-blocking]",
        ),
    ),
    Mutant(
        "catalog: what is half purged comes back",
        "RecordsCatalog.recover_namespace",
        "        if found.state == PURGING:\n",
        "        if False:\n",
        (
            "tests/stores/sqlite/test_catalog.py::"
            "test_a_purge_that_was_cut_short_is_finished_by_the_next",
        ),
    ),
    Mutant(
        "catalog: a cursor that is no Unicode text is sent as it is",
        "_sendable",
        '    return cursor.encode("utf-16", "surrogatepass").decode("utf-16", "replace")\n',
        "    return cursor\n",
        ("tests/stores/sqlite/test_catalog.py::TestModel::test_any_cursor_is_survived[\\ud800]",),
    ),
    Mutant(
        "redis: a level that comes while its entity goes is left over",
        "RedisRecords.read_family",
        '                (len(levels), ("ZLEXCOUNT", index, *own)),\n',
        "",
        (
            "tests/stores/redis/test_catalog_races.py::TestRaces::"
            "test_a_level_that_comes_before_the_deletion_goes_along[before0]",
        ),
    ),
    Mutant(
        "dynamodb: a divided bucket that was not asked is told by its sum",
        "DynamoStore._refusal",
        "pool.record(now_ms), pool.waits_ms(demand, now_ms)",
        "pool.record(now_ms)",
        (
            "tests/stores/dynamodb/sharding/test_debts.py::test_the_wait_of_a_divided_bucket_that_was_not_asked_is_its_shards",
        ),
    ),
]
