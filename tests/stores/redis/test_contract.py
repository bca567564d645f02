"""The contract on real servers, old and new, one and many, plain and secured, alone and behind
layers; and limits that are declared in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.core.history import WindowUsage
from headgate.core.runtime import run
from headgate.layers.stack import add_layers
from headgate.repository import open_backend
from headgate.testing import Case, cases, run_case
from headgate.testing.contract import SUITES
from headgate.transport.gates import steady_clock
from tests.declare.kit import plan_and_apply
from tests.stores.redis import secured, servers
from tests.stores.redis.catalog_kit import Watched, backend_of, port_to

# The store does not know whether its port blocks, so each kind of server is asked in one mode.
SERVERS = ["redis-async", "redis-blocking", "cluster-blocking", "redis62-blocking", "valkey-async"]
LUA = Path(open_backend.__code__.co_filename).parent / "stores/redis/lua"
PARTS = {"bucket", "catalog_head", "listing", "resets", "warm"}  # which scripts are made of
# Together these run every script.
EVERY_SCRIPT = {
    "a_bucket_named_again_is_decided_as_it_was_left", "a_purged_namespace_leaves_no_texts",
    "a_text_is_dropped_once", "children_are_listed_page_by_page",
    "debt_is_repaid_by_refill_only", "deleting_an_entity_frees_its_children",
    "namespaces_are_apart", "old_history_is_trimmed", "peek_find_and_forget_agree",
    "plans_are_listed_with_how_many_are_on_them",
    "stored_limits_are_listed", "the_version_record_answers",
    "usage_is_asked_by_name_time_and_page",
}  # fmt: skip
# Several slots and an undo, a batch, pages, long replies: what a transport has to carry.
EVERY_KIND_OF_CALL = {
    "all_buckets_or_none", "a_batch_of_a_hundred_admits_the_capacity",
    "children_are_listed_page_by_page", "usage_is_asked_by_name_time_and_page",
}  # fmt: skip


@pytest.fixture(scope="session")
def valkey_url() -> Iterator[str]:
    with servers.folder() as folder, servers.Valkey(folder) as server:
        yield server.url


@pytest.fixture(scope="session")
def redis62_url() -> Iterator[str]:
    with servers.folder() as folder, servers.oldest(folder) as server:
        yield server.url


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("case", cases(*SUITES), ids=str)
def test_contract(request: pytest.FixtureRequest, case: Case, server: str) -> None:
    kind, _, mode = server.partition("-")
    url = request.getfixturevalue(f"{kind}_url")
    servers.flush(url)
    run_case(case, open_backend(url, blocking=mode == "blocking"), blocking=mode == "blocking")


@pytest.mark.parametrize("case", cases("store", "quotas"), ids=str)
def test_contract_behind_all_layers(redis_url: str, case: Case) -> None:
    """Each layer by itself, and both modes: tests/layers/test_stack.py."""
    servers.flush(redis_url)
    backend = open_backend(redis_url, blocking=True)
    store = add_layers(backend.store, clock=steady_clock(), prefetch=True)
    run_case(case, replace(backend, store=store), blocking=True)


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "blocking"])
def test_contract_on_a_cluster_with_client_certificates(
    tls_cluster: servers.Cluster, blocking: bool
) -> None:
    for case in cases_named(EVERY_KIND_OF_CALL):
        servers.flush(tls_cluster.url)
        run_case(case, open_backend(tls_cluster.url, blocking=blocking), blocking=blocking)


@pytest.mark.parametrize("kind", ["redis", "cluster"])
def test_contract_as_a_user_who_may_do_no_more_than_is_needed(
    request: pytest.FixtureRequest, kind: str
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    rule = secured.ACL_CLUSTER if kind == "cluster" else secured.ACL_RULE
    servers.everywhere(url, "ACL", "SETUSER", "little", *rule)
    called: set[str] = set()
    for case in cases_named(EVERY_SCRIPT):
        servers.flush(url)
        port = Watched(port_to(url.replace("://", "://little:pass%20word@")))
        run_case(case, backend_of(port), blocking=True)
        called.update(port.calls)
    port = Watched(port_to(url.replace("://", "://little:pass%20word@")))
    usage = WindowUsage("hourly", 0, {"x": 1000}, 1)  # no case has an aggregator
    run(backend_of(port).ledger.add_usage("n", "e", "r", [usage]))
    run(port.close())
    assert called.union(port.calls) >= {path.stem for path in LUA.glob("*.lua")} - PARTS


def cases_named(names: set[str]) -> list[Case]:
    found = [case for case in cases() if str(case) in names]
    assert len(found) == len(names)
    return found


def test_declared_limits(redis_url: str, tmp_path: Path) -> None:
    plan_and_apply(redis_url, tmp_path)
