"""Faults in the service: who may ask, and what it says."""

from __future__ import annotations

from proof.planted.fault import Mutant

MUTANTS = [
    Mutant(
        "keys: a scope is not asked for",
        "ApiCaller.refusal_for",
        "        if need in grant.scopes:\n",
        "        if grant.scopes:\n",
        ("tests/service/keys/test_key.py::test_the_matrix[check-default-team-a:1]",),
    ),
    Mutant(
        "keys: a key of one namespace opens every other",
        "ApiCaller.refusal_for",
        "if namespace == KEYS_NAMESPACE or grant.namespace not in (ANY_NAMESPACE, namespace):",
        "if namespace == KEYS_NAMESPACE:",
        ("tests/service/keys/test_key.py::test_the_matrix[check-None-team-a:1]",),
    ),
    Mutant(
        "keys: the keys themselves can be read",
        "ApiCaller.refusal_for",
        "if namespace == KEYS_NAMESPACE or grant.namespace not in (ANY_NAMESPACE, namespace):",
        "if grant.namespace not in (ANY_NAMESPACE, namespace):",
        ("tests/service/keys/test_key.py::test_nobody_reaches_the_namespace_of_keys",),
    ),
    Mutant(
        "keys: a key for some entities is one for all",
        "ApiCaller.refusal_for",
        "            entity_id is None or not entity_id.startswith(grant.entity_prefix)\n",
        "            entity_id is not None and not entity_id.startswith(grant.entity_prefix)\n",
        ("tests/service/keys/test_key.py::test_the_matrix[check-default-None]",),
    ),
    Mutant(
        "keys: any secret will do",
        "_verify",
        "    if not same:\n        return Refusal(DenyReason.WRONG_SECRET)\n",
        "",
        ("tests/service/keys/test_authenticate.py::test_each_way_to_be_turned_away",),
    ),
    Mutant(
        "keys: a revoked key opens",
        "_verify",
        "    return caller if key.revoked_ms is None else Refusal(DenyReason.REVOKED)\n",
        "    return caller\n",
        (
            "tests/service/keys/test_authenticate.py::test_revocation_is_in_force_within_the_ttl_and_at_once_where_it_was_made",
        ),
    ),
    Mutant(
        "keys: a key may be longer than it is",
        "parse_presented",
        "    found = _KEY.fullmatch(text)\n",
        "    found = _KEY.match(text)\n",
        ("tests/service/keys/test_key.py::test_what_is_no_key",),
    ),
    Mutant(
        "service: while the store is away a lease is on nothing",
        "Service.acquire",
        "        store = ns.engine.store if trouble is None else self._fallback\n",
        "        store = ns.engine.store\n",
        (
            "tests/service/leases/test_leases.py::test_a_lease_taken_while_the_store_was_away_is_labelled_and_ends_locally",
        ),
    ),
    Mutant(
        "service: a check of zero seconds is told to come at once",
        "retry_fields",
        '("retry-after", str(max(1, div_ceil(wait_ms, 1000))))',
        '("retry-after", str(wait_ms // 1000))',
        (
            "tests/service/decide/test_cases.py::"
            "test_case[a short wait is still a second in Retry-After]",
        ),
    ),
    Mutant(
        "service: a bound on new identifiers bounds nothing",
        "NewIdentifiers.admit",
        "        if taken.allowed:\n            self._seen",
        "        if True:\n            self._seen",
        (
            "tests/service/decide/test_deciding.py::test_new_identifiers_beyond_the_bound_are_refused_and_told_why",
        ),
    ),
    Mutant(
        "service: the new beyond the bound share a bucket, those who used up theirs, too",
        "NamespaceService.resolve_entity",
        "            self._gate.admit(entity_id, now_ms)\n",
        "            try:\n"
        "                self._gate.admit(entity_id, now_ms)\n"
        "            except ServiceError:\n"
        "                return shared_entity_id(scope)\n",
        (
            "tests/service/decide/test_deciding.py::test_the_bound_on_new_identifiers_never_lets_an_exhausted_caller_in",
        ),
    ),
    Mutant(
        "service: new identifiers are bounded though nobody asked for it",
        "ServiceSettings.new_identifiers",
        "    new_identifiers: Limit | None = None\n",
        '    new_identifiers: Limit | None = Limit.per_minute("new", 6_000, burst=60_000)\n',
        (
            "tests/service/decide/test_deciding.py::test_nobody_is_refused_for_being_new_unless_it_was_asked_for",
        ),
    ),
    Mutant(
        "service: a misspelt field is ignored",
        "RequestBody",
        "class RequestBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):\n",
        "class RequestBody(msgspec.Struct, gc=False):\n",
        ("tests/service/decide/test_requests.py::test_bad[bad misspelt]",),
    ),
    Mutant(
        "service: a newline may follow a limit's name",
        "name_meta",
        'extra={"accepts": pattern.fullmatch},',
        'extra={"accepts": re.compile(pattern.pattern + "$").match},',
        ("tests/service/decide/test_requests.py::test_a_newline_belongs_to_no_name",),
    ),
    Mutant(
        "rest: the last of two equal keys counts",
        "body_reader",
        'if b"\\\\" in body or body.count(b":") != _encode(found).count(b":"):',
        'if b"\\\\" in body:',
        ("tests/service/http/test_reading.py::test_what_is_not_plain_json_is_told",),
    ),
    Mutant(
        "rest: an escaped colon hides that a key came twice",
        "body_reader",
        'if b"\\\\" in body or body.count(b":") != _encode(found).count(b":"):',
        'if body.count(b":") != _encode(found).count(b":"):',
        ("tests/service/http/test_fast_read.py::test_a_check_is_read_the_same_both_ways",),
    ),
    Mutant(
        "service: a lease of another namespace is found",
        "Leases._find",
        "if lease is None or lease.namespace != namespace or lease.expires_ms <= self._clock():",
        "if lease is None or lease.expires_ms <= self._clock():",
        ("tests/service/leases/test_leases.py::test_a_lease_is_its_namespaces_only",),
    ),
    Mutant(
        "service: a lease is settled twice",
        "Leases.settle",
        "            await book.settlements.leave(book, False)\n",
        "            lease.state = LeaseState.OPEN\n",
        ("tests/service/leases/test_leases.py::test_adjust_settle_and_their_repetition",),
    ),
    Mutant(
        "service: two may change a lease at once",
        "MemoryLeases.claim",
        "        if lease.busy_until_ms:\n            raise lease_busy()\n",
        "",
        (
            "tests/service/leases/test_leases.py::test_while_one_call_changes_a_lease_others_are_told_to_come_back",
        ),
    ),
    Mutant(
        "service: one refusal of several is overheard",
        "combine.combine",
        "            if blocking is None or wait_ms > longest:\n",
        "            if wait_ms > 10**9:\n",
        ("tests/service/decide/test_deciding.py::test_what_takes_longest_is_what_blocks",),
    ),
    Mutant(
        "envoy: bytes that are not UTF-8 are all the same letter",
        "mapping.text_of",
        'raw.decode("utf-8", "surrogateescape")',
        'raw.decode("utf-8", "replace")',
        ("tests/service/envoy/test_mapping.py::test_different_bytes_are_different_identifiers",),
    ),
    Mutant(
        "envoy: a client sends the digest of another's name",
        "_usable",
        "    if is_identifier(text) and not text.startswith(_DIGEST):\n",
        "    if is_identifier(text):\n",
        ("tests/service/envoy/test_mapping.py::test_nobody_can_send_the_digest_of_another",),
    ),
    Mutant(
        "envoy: what cannot be decided is a gRPC error",
        "CallRunner.refuse",
        "        answer = None if call.answer is None else call.answer(problem)\n",
        "        answer = None\n",
        (
            "tests/service/envoy/test_undecided.py::"
            "test_what_cannot_be_decided_is_answered_counted_and_logged_once",
        ),
    ),
    Mutant(
        "envoy: gRPC itself turns large messages away",
        "GrpcSettings.options",
        '("grpc.max_receive_message_length", self.receive_bytes_max)',
        '("grpc.max_receive_message_length", self.message_bytes_max)',
        (
            "tests/service/envoy/test_undecided.py::"
            "test_what_cannot_be_decided_is_answered_counted_and_logged_once",
        ),
    ),
    Mutant(
        "envoy: gRPC itself turns too many calls away",
        "REJECTED_FROM",
        "REJECTED_FROM = 4 ",
        "REJECTED_FROM = 1 ",
        ("tests/service/envoy/test_undecided.py::test_calls_beyond_the_bound_are_answered",),
    ),
    Mutant(
        "envoy: a full store is a store that is away",
        "_STORE_ANSWERED",
        '{"store_full", "store_busy",',
        '{"store_busy",',
        (
            "tests/service/envoy/test_undecided.py::test_a_memory_store_at_its_bound_refuses_the_next_identifier",
        ),
    ),
    Mutant(
        "envoy: a key's entity prefix lets the others pass",
        "RateLimitServiceCalls.answer",
        " or _because(problem) not in (None, DenyReason.UNAVAILABLE):\n",
        " or _because(problem) not in (None, DenyReason.ENTITY, DenyReason.UNAVAILABLE):\n",
        (
            "tests/service/envoy/test_undecided.py::test_an_identifier_that_the_key_may_not_ask_about_is_refused",
        ),
    ),
    Mutant(
        "envoy: a wrong key is an error that lets everything pass",
        "_is_for_envoy",
        "    return problem.code is Code.DEADLINE_EXCEEDED\n",
        "    return problem.code in (Code.DEADLINE_EXCEEDED, Code.UNAUTHENTICATED)\n",
        (
            "tests/service/envoy/test_undecided.py::test_a_wrong_key_in_envoys_configuration_does_not_open_the_gate",
        ),
    ),
    Mutant(
        "envoy: every problem is logged",
        "RateLimitServiceCalls._note",
        "            self._logged.add(cause)\n",
        "",
        (
            "tests/service/envoy/test_undecided.py::"
            "test_what_cannot_be_decided_is_answered_counted_and_logged_once",
        ),
    ),
    Mutant(
        "workers: a broken policy file keeps a replacement from starting",
        "Watcher._load_last_good",
        "        if self._last_good is None:\n            raise PolicyFileError(broken)\n",
        "        raise PolicyFileError(broken)\n",
        (
            "tests/service/policies/test_watching.py::"
            "test_who_starts_while_the_file_is_broken_goes_by_the_last_good_one",
        ),
    ),
    Mutant(
        "workers: a broken key file keeps a replacement from starting",
        "FileKeys.__init__",
        "            kept = found if last_good is None else _load(last_good)[1]\n",
        "            kept = found\n",
        (
            "tests/service/keys/test_key_stores.py::"
            "test_who_starts_while_the_file_is_broken_has_the_last_good_keys",
        ),
    ),
    Mutant(
        "workers: one that keeps dying is started again at once",
        "Worker.note_death",
        "            self.early_deaths += 1\n",
        "            self.early_deaths = 0\n",
        (
            "tests/service/hostile/test_workers.py::"
            "test_a_worker_that_keeps_dying_early_is_started_later_and_later",
        ),
    ),
    Mutant(
        "workers: the parent is whoever it is when the worker is ready",
        "server.serve.serve",
        "    server.parent = serving.parent\n",
        "    server.parent = serving.parent and os.getppid()\n",
        (
            "tests/service/hostile/test_workers.py::"
            "test_workers_that_are_being_started_end_with_their_supervisor",
        ),
    ),
    Mutant(
        "workers: a signal before the server listens is lost",
        "Server.end_at_once",
        '        """Starts no more than it must to end well."""\n        self.should_exit = True\n',
        '        """Starts no more than it must to end well."""\n',
        (
            "tests/service/hostile/test_workers.py::"
            "test_a_signal_to_end_before_the_server_listens_is_honoured[SIGTERM]",
        ),
    ),
    Mutant(
        "workers: one that cannot start ends the service that others serve",
        "Workers._is_hopeless",
        "        return not self._has_served and all(\n",
        "        return any(\n",
        (
            "tests/service/hostile/test_supervisor.py::test_a_worker_that_never_starts_does_not_end_a_service_whose_other_worker_serves",
        ),
    ),
    Mutant(
        "workers: the supervisor does not wait for one that is slow to start",
        "Workers._is_hopeless",
        "        return not self._has_served and all(\n",
        "        return not self._has_served and any(\n",
        (
            "tests/service/hostile/test_supervisor.py::test_a_worker_that_is_slow_to_start_is_waited_for_though_the_other_fails",
        ),
    ),
    Mutant(
        "workers: the supervisor gives up although some have served",
        "Workers._is_hopeless",
        "        return not self._has_served and all(\n",
        "        return all(\n",
        (
            "tests/service/hostile/test_supervisor.py::test_once_a_worker_has_served_the_supervisor_never_gives_up",
        ),
    ),
    Mutant(
        "workers: deaths while serving end the service",
        "Worker.note_death",
        "        if self.serves_since_s is None:\n            self.failed_starts += 1\n",
        "        self.failed_starts += 1\n",
        (
            "tests/service/hostile/test_workers.py::test_a_worker_that_keeps_dying_early_is_started_later_and_later",
        ),
    ),
    Mutant(
        "workers: that one serves is not noticed",
        "Workers._look_after",
        "            self._has_served = True\n",
        "            pass\n",
        (
            "tests/service/hostile/test_supervisor.py::test_once_a_worker_has_served_the_supervisor_never_gives_up",
        ),
    ),
    Mutant(
        "workers: a service that can never start is tried for ever",
        "Workers.run",
        "            if self._is_hopeless():\n",
        "            if False:\n",
        (
            "tests/service/hostile/test_supervisor.py::test_where_no_worker_ever_served_the_supervisor_gives_up",
        ),
    ),
    Mutant(
        "workers: SIGHUP kills one that has just been started",
        "Workers._start",
        "        block_hangup()\n        try:\n",
        "        try:\n",
        ("tests/service/hostile/test_supervisor.py::test_a_worker_is_born_with_sighup_blocked",),
    ),
    Mutant(
        "workers: the supervisor does not pass SIGHUP on",
        "Workers._pass_on",
        "                worker.process.send_signal(number)\n",
        "                pass\n",
        ("tests/service/hostile/test_supervisor.py::test_the_supervisor_passes_sighup_on",),
    ),
    Mutant(
        "workers: SIGHUP kills the supervisor",
        "Workers.__init__",
        "            signal.signal(signal.SIGHUP, self._pass_on)  # still",
        "            pass  # still",
        ("tests/service/hostile/test_supervisor.py::test_the_supervisor_passes_sighup_on",),
    ),
    Mutant(
        "workers: the supervisor never gets SIGHUP",
        "Workers._start",
        "        finally:\n            unblock_hangup()\n",
        "        finally:\n            pass\n",
        ("tests/service/hostile/test_supervisor.py::test_the_supervisor_passes_sighup_on",),
    ),
    Mutant(
        "service: SIGHUP kills it while it is imported",
        "service.__main__.start",
        "        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])\n",
        "        pass\n",
        (
            "tests/service/hostile/test_supervisor.py::test_sighup_is_blocked_before_the_program_is_imported",
        ),
    ),
    Mutant(
        "workers: a supervisor that is told to end goes on to start them",
        "Workers._look_after",
        "            if now_s >= worker.start_at_s and not self._ending:\n",
        "            if now_s >= worker.start_at_s:\n",
        (
            "tests/service/hostile/test_supervisor.py::test_a_signal_to_end_while_workers_are_started_is_honoured",
        ),
    ),
    Mutant(
        "workers: a supervisor that starts them does not hear that it is to end",
        "Workers._end",
        "        self._ending = True\n",
        "        self._ending = bool(self._has_served)\n",
        (
            "tests/service/hostile/test_supervisor.py::test_a_signal_to_end_while_workers_are_started_is_honoured",
        ),
    ),
    Mutant(
        "service: a signal to end before anything is started is lost",
        "_end_early",
        "    raise SystemExit(0)\n",
        "    return\n",
        (
            "tests/service/hostile/test_supervisor.py::test_a_signal_to_end_before_anything_is_started_is_honoured",
        ),
    ),
    Mutant(
        "workers: they do not look whether their supervisor lives",
        "Server.on_tick",
        "        if self.parent is not None and os.getppid() != self.parent:\n",
        "        if False:\n",
        (
            "tests/service/hostile/test_supervisor.py::test_a_worker_ends_when_its_supervisor_is_gone",
        ),
    ),
    Mutant(
        "workers: they take whoever started them for their supervisor",
        "Workers.__init__",
        '            "--parent", str(os.getpid()),\n',
        '            "--parent", str(os.getppid()),\n',
        ("tests/service/hostile/test_supervisor.py::test_a_worker_is_told_who_its_supervisor_is",),
    ),
    Mutant(
        "keys: every unknown key asks the store",
        "KeyIndex.can_have",
        "        if self._is_whole:\n            return False\n",
        "        if self._is_whole:\n            return True\n",
        ("tests/service/hostile/test_keys.py::test_random_keys_do_not_drive_the_store",),
    ),
    Mutant(
        "keys: the list is read for every unknown key",
        "KeyIndex._read",
        "        self._read_again_ms = self._clock() + INDEX_MS\n",
        "        self._read_again_ms = self._clock()\n",
        ("tests/service/hostile/test_keys.py::test_random_keys_do_not_drive_the_store",),
    ),
    Mutant(
        "keys: whoever comes while the list is read is sent away",
        "KeyIndex.can_have",
        "            self._lock.locked() or self._clock() >= self._read_again_ms\n",
        "            self._clock() >= self._read_again_ms\n",
        ("tests/service/hostile/test_keys.py::test_many_at_once_share_one_look",),
    ),
    Mutant(
        "keys: a new key waits for as long as a known one is remembered",
        "Authenticator.__init__",
        "Cache(min(ttl_ms, UNKNOWN_TTL_MS), unknown_max)",
        "Cache(ttl_ms, unknown_max)",
        (
            "tests/service/hostile/test_keys.py::test_a_key_that_was_made_a_moment_ago_works_within_a_second",
        ),
    ),
    Mutant(
        "keys: a 403 leaves no trace",
        "Program.note_refusal",
        "            self.denials.note(refusal.denial)\n",
        "            pass\n",
        ("tests/service/hostile/test_keys.py::test_a_403_leaves_an_audit_event_and_a_log_line",),
    ),
    Mutant(
        "keys: every 403 is an event of its own",
        "Denials.tell",
        "        self._next_ms = now_ms + DENIALS_EACH_MS\n",
        "        self._next_ms = now_ms\n",
        ("tests/service/hostile/test_keys.py::test_a_stubborn_caller_cannot_fill_the_audit",),
    ),
    Mutant(
        "keys: as many kinds of denials as there are keys",
        "Denials.note",
        "        if denial not in self._counts and len(self._counts) >= DENIAL_KINDS_MAX:\n",
        "        if len(self._counts) >= 10**6:\n",
        ("tests/service/hostile/test_keys.py::test_many_callers_cannot_fill_the_audit_either",),
    ),
    Mutant(
        "service: readyz repeats what a policy file says",
        "health_body",
        '"ok" if answer.policies_trouble is None else "broken"',
        'answer.policies_trouble or "ok"',
        ("tests/service/hostile/test_keys.py::test_readyz_shows_nothing_of_a_broken_policy_file",),
    ),
    Mutant(
        "service: a foreign page may release leases",
        "Dashboard.before",
        'scope["path"] in HOT:',
        'scope["path"].startswith(HOT):',
        (
            "tests/service/hostile/test_keys.py::test_a_foreign_page_cannot_end_a_lease[field0-release]",
        ),
    ),
    Mutant(
        "service: null is as good as nothing",
        "_Asking",
        "    tokens: Tokens | UnsetType = UNSET\n    scope: Scope | UnsetType",
        "    tokens: Tokens | None | UnsetType = UNSET\n    scope: Scope | UnsetType",
        (
            "tests/service/hostile/test_keys.py::test_null_is_refused_where_the_schema_has_none[POST-/v1/ratelimit/check-body0-tokens]",
        ),
    ),
    Mutant(
        "envoy: a store that denies the service its rights lets requests pass where that is chosen",
        "_REFUSED",
        "        Code.STORAGE_DENIED,\n",
        "",
        ("tests/service/envoy/test_undecided.py::test_a_store_that_answers_and_cannot_decide",),
    ),
    Mutant(
        "service: a store that refuses the service is told as an outage",
        "storage_denied",
        "        Code.STORAGE_DENIED,\n",
        "        Code.STORAGE_UNAVAILABLE,\n",
        ("tests/service/decide/test_words.py::test_errors_are_translated_and_leak_nothing",),
    ),
    Mutant(
        "server: requests behind an unanswered one are parsed all the same",
        "BoundedProtocol._parse",
        "            if self._must_wait():\n                break\n        else:",
        "        else:",
        (
            "tests/service/server/test_protocol.py::"
            "test_requests_behind_an_unanswered_one_wait_unparsed",
        ),
    ),
    Mutant(
        "server: an application that asks for its body resumes reading, whatever waits",
        "BoundedFlow.resume_reading",
        "        if not (self.held or self.write_paused):\n            super().resume_reading()\n",
        "        super().resume_reading()\n",
        (
            "tests/service/server/test_protocol.py::"
            "test_requests_behind_an_unanswered_one_wait_unparsed",
        ),
    ),
    Mutant(
        "server: one connection's requests keep all others waiting",
        "BoundedProtocol._parse",
        "        for _ in range(REQUESTS_AT_ONCE):\n",
        "        for _ in range(10**9):\n",
        (
            "tests/service/server/test_protocol.py::"
            "test_others_have_their_turn_between_many_express_requests",
        ),
    ),
    Mutant(
        "server: answers need never be read",
        "BoundedProtocol.pause_writing",
        "        self.flow.pause_reading()\n        self._expect_within(UNREAD_S)\n",
        "        self.flow.pause_reading()\n",
        (
            "tests/service/server/test_protocol.py::"
            "test_an_answer_that_is_not_read_while_it_is_written_has_a_deadline",
        ),
    ),
    Mutant(
        "server: a head has no bound",
        "BoundedProtocol._feed",
        "            if self._part_bytes > HEAD_BYTES_MAX and self._is_head_too_large(piece):\n",
        "            if self._part_bytes < 0 and self._is_head_too_large(piece):\n",
        ("tests/service/server/test_protocol.py::test_head_and_trailers_have_a_bound[at once]",),
    ),
    Mutant(
        "server: a head behind another request has no bound",
        "BoundedProtocol._judge_head",
        "            if size > HEAD_BYTES_MAX:\n",
        "            if size < 0:\n",
        (
            "tests/service/server/test_protocol.py::"
            "test_head_and_trailers_have_a_bound[the second head]",
        ),
    ),
    Mutant(
        "server: trailers have no bound",
        "BoundedProtocol._feed",
        "            self._count(size, HEAD_BYTES_MAX)\n",
        "            pass\n",
        ("tests/service/server/test_protocol.py::test_head_and_trailers_have_a_bound[trailers]",),
    ),
    Mutant(
        "server: a trailer is a header field",
        "BoundedProtocol.on_header",
        "        if self._part is not HEAD:\n            return  # a trailer",
        "        if False:\n            return  # a trailer",
        ("tests/service/hostile/test_http.py::test_a_trailer_is_no_header",),
    ),
    Mutant(
        "server: an idle connection stays",
        "BoundedProtocol.on_response_complete",
        "self._expect_within(self.timeout_keep_alive if self._part is HEAD else HEAD_S)",
        "pass",
        ("tests/service/server/test_protocol.py::test_an_idle_connection_ends",),
    ),
    Mutant(
        "server: the rest of a request that was answered may take for ever",
        "BoundedProtocol.on_response_complete",
        "self._expect_within(self.timeout_keep_alive if self._part is HEAD else HEAD_S)",
        "self._expect_within(self.timeout_keep_alive)",
        (
            "tests/service/server/test_protocol.py::"
            "test_the_rest_of_a_request_that_was_answered_has_its_time",
        ),
    ),
    Mutant(
        "server: the rest of a body that was too large is answered, too",
        "BoundedProtocol._refuse",
        "        if not answered:\n            self.transport.write(self._refusal_answer())\n",
        "        self.transport.write(self._refusal_answer())\n",
        (
            "tests/service/hostile/test_http.py::"
            "test_a_body_over_the_bound_gets_one_answer[chunked, then nonsense]",
        ),
    ),
    Mutant(
        "keys: a store that denies the service its keys is taken for one that is away",
        "Authenticator.authenticate",
        "                reason = DenyReason.DENIED if denied else DenyReason.UNAVAILABLE\n",
        "                reason = DenyReason.UNAVAILABLE\n",
        (
            "tests/service/keys/test_authenticate.py::"
            "test_a_shelf_that_denies_the_service_is_told_from_one_that_is_away",
        ),
    ),
    Mutant(
        "keys: that the list was denied is forgotten before it is read again",
        "KeyIndex._read",
        "            self._failure = trouble\n            raise\n",
        "            raise\n",
        (
            "tests/service/hostile/test_keys.py::"
            "test_a_store_that_denies_the_keys_is_not_taken_for_one_that_is_away",
        ),
    ),
    Mutant(
        "keys: strangers can make the store look away",
        "KeyIndex.can_have",
        '            raise Throttled("too many',
        '            raise Unreachable("too many',
        (
            "tests/service/hostile/test_keys.py::"
            "test_many_unknown_keys_beyond_the_list_look_like_a_busy_store",
        ),
    ),
    Mutant(
        "Envoy: whoever has no key that could be looked up gets an error",
        "_is_for_envoy",
        "        return _reason(problem) not in _STORE_ANSWERED\n",
        "        return _because(problem) is not None or _reason(problem) not in _STORE_ANSWERED\n",
        (
            "tests/service/envoy/test_undecided.py::"
            "test_keys_in_a_store_that_answers_and_cannot_look_them_up",
        ),
    ),
    Mutant(
        "policies: amounts are more than Redis keeps",
        "decode.TOKENS_MAX",
        "TOKENS_MAX = 10**12",
        "TOKENS_MAX = 10**13",
        (
            "tests/service/policies/test_reading.py::"
            "test_redis_keeps_every_limit_that_a_file_can_have",
        ),
    ),
    Mutant(
        "policies: periods are longer than Redis keeps",
        "yaml_fields.PERIOD_SECONDS_MAX",
        "PERIOD_SECONDS_MAX = 366 * 24 * 3600",
        "PERIOD_SECONDS_MAX = 10 * 366 * 24 * 3600",
        (
            "tests/service/policies/test_reading.py::"
            "test_redis_keeps_every_limit_that_a_file_can_have",
        ),
    ),
    Mutant(
        "policies: rates have more digits than Redis keeps",
        "DECIMALS_MAX",
        "DECIMALS_MAX = 7",
        "DECIMALS_MAX = 9",
        (
            "tests/service/policies/test_reading.py::"
            "test_redis_keeps_every_limit_that_a_file_can_have",
        ),
    ),
    Mutant(
        "server: HTTP/1.1 needs no Host",
        "BoundedProtocol._judge_head",
        '        if not self._hosts and self.parser.get_http_version() == "1.1":\n',
        "        if False:\n",
        ("tests/service/hostile/test_http.py::test_http_1_1_without_a_host_is_refused[GET]",),
    ),
    Mutant(
        "server: unfinished TLS handshakes are not counted",
        "TlsListener._accept",
        "            if len(self._connections) + len(self._handshakes) >= self._connections_max:\n",
        "            if len(self._connections) >= self._connections_max:\n",
        ("tests/service/hostile/test_tls.py::test_a_client_beyond_the_bound_is_not_let_in",),
    ),
    Mutant(
        "server: a browser may guess what an answer is",
        "config_of",
        "        headers=[NO_SNIFFING],\n",
        "",
        ("tests/service/hostile/test_http.py::test_no_answer_is_guessed_at_by_a_browser[no HTTP]",),
    ),
    Mutant(
        "service: a client that leaves in mid-body is a failure of the service",
        "ColdRoutes.answer",
        "        except (Cancelled, Gone):\n",
        "        except Cancelled:\n",
        (
            "tests/service/hostile/test_http.py::"
            "test_a_client_that_leaves_in_the_middle_is_no_failure[False-cold]",
        ),
    ),
    Mutant(
        "gRPC: of two keys the first counts",
        "peer_of",
        '    return Peer(_key(*sent[0]) if len(sent) == 1 else "", local, sans)\n',
        "    return Peer(_key(*sent[0]), local, sans)\n",
        ("tests/service/grpc/test_callers.py::test_two_keys_are_refused_as_over_rest",),
    ),
    Mutant(
        "dashboard: a page of a neighbouring site may ask",
        "is_foreign",
        'in (b"cross-site", b"same-site")',
        'in (b"cross-site",)',
        ("tests/service/dashboard/test_feed.py::test_where_a_request_began",),
    ),
    Mutant(
        "shadow: what took nothing is told as if it were about its demands",
        "ShadowVerdict.is_plain",
        "    is_plain = False\n",
        "",
        (
            "tests/service/decide/test_deciding.py::"
            "test_what_shadow_mode_lets_pass_shows_the_limits_it_would_have_met",
        ),
    ),
    Mutant(
        "engine: only the embedded stores have a short answer",
        "BatchEngine.consume_planned",
        "        if verdict.is_plain and not verdict.outdated",
        "        if type(verdict) is Verdict and not verdict.outdated",
        ("tests/stores/redis/test_layers.py::test_a_warm_check_has_a_short_answer",),
    ),
    Mutant(
        "cli: a missing package is told as a failure of headgate itself",
        "Root.get_command",
        'program(f"headgate.cli.commands.{entry.where}", extra=entry.extra)\n',
        "getattr(\n"
        "            importlib.import_module(\n"
        "                f\"headgate.cli.commands.{entry.where.split(':')[0]}\"\n"
        "            ),\n"
        '            entry.where.split(":")[1],\n'
        "        )\n",
        ("tests/cli/test_errors.py::test_a_command_whose_package_is_missing_says_what_to_install",),
    ),
]
