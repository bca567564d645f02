"""What is public: names, signatures, import weight."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import (
    Lease,
    RateLimiter,
    Repository,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    client,
)
from tests.python import run_python

NAMES = """
AuditEvent BucketState CacheStats ClockStoppedError DemandTooLarge DisabledError Entity
EntityExistsError EntityNotFoundError Event HeadgateError IncompatibleSchemaError
InvalidIdentifierError InvalidNameError Lease LeaseExpiredError Limit LimitStatus
NamespaceNotFoundError NamespaceStateError OnUnavailable Plan PlanInUseError
PlanNotFoundError RateLimitExceeded RateLimiter RateLimiterClosed RateLimiterUnavailable Repository
StoreDenied SyncLease SyncRateLimiter SyncRepository UsageSnapshot ValidationError
Verdict VersionMismatchError
""".split()


def test_the_public_names_are_these() -> None:
    assert sorted(headgate.__all__) == sorted(NAMES)
    assert all(hasattr(headgate, name) for name in NAMES)


def _public(cls: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in inspect.getmembers(cls)
        if not name.startswith("_") and callable(value)
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (RateLimiter, SyncRateLimiter),
        (Repository, SyncRepository),
        (Lease, SyncLease),
        (client.AsyncClient, client.Client),
        (client.AsyncLease, client.Lease),
    ],
)
def test_both_colours_have_the_same_methods_and_signatures(one: type, other: type) -> None:
    ours, theirs = _public(one), _public(other)
    assert set(ours) == set(theirs)
    for name, method in ours.items():
        mine = [p for p in inspect.signature(method).parameters.values() if p.name[0] != "_"]
        other_parameters = inspect.signature(theirs[name]).parameters.values()
        yours = [p for p in other_parameters if p.name[0] != "_"]
        assert [(p.name, p.kind, p.default) for p in mine] == [
            (p.name, p.kind, p.default) for p in yours
        ], name


def test_importing_headgate_loads_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules); import headgate; "
        "headgate.RateLimiter, headgate.SyncRateLimiter; "
        "print('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    found = run_python("-I", "-c", code, cwd=Path("/"))
    assert found.returncode == 0, found.stderr
    roots = {name.split(".")[0] for name in found.stdout.split()}
    foreign = roots - set(sys.stdlib_module_names) - {"headgate"}
    assert foreign == set()
    heavy = {"sqlite3", "http", "email", "xml", "multiprocessing", "unittest", "ctypes"}
    assert not roots & heavy, "loaded before anybody asked for it"
