"""What is public: names, signatures, import weight."""

from __future__ import annotations

import inspect
import subprocess
import sys
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
)

NAMES = """
AuditEvent BucketState CacheStats DemandTooLarge DisabledError Entity EntityExistsError
EntityNotFoundError Event HeadgateError IncompatibleSchemaError InvalidIdentifierError
InvalidNameError Lease LeaseExpiredError Limit LimitStatus NamespaceNotFoundError
NamespaceStateError OnUnavailable RateLimitExceeded RateLimiter RateLimiterUnavailable Repository
StoreDenied SyncLease SyncRateLimiter SyncRepository UsageSnapshot ValidationError Verdict
VersionMismatchError
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
    [(RateLimiter, SyncRateLimiter), (Repository, SyncRepository), (Lease, SyncLease)],
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
    found = subprocess.run(
        [sys.executable, "-I", "-c", code],
        check=True, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    roots = {name.split(".")[0] for name in found.stdout.split()}
    foreign = roots - set(sys.stdlib_module_names) - {"headgate"}
    assert foreign == set()
    heavy = {"sqlite3", "http", "email", "xml", "multiprocessing", "unittest", "ctypes"}
    assert not roots & heavy, "loaded before anybody asked for it"


def test_everything_public_says_what_it_is() -> None:
    for name in NAMES:
        if not issubclass(getattr(headgate, name), Exception):
            assert inspect.getdoc(getattr(headgate, name)), name
    undocumented = [
        f"{cls.__name__}.{name}"
        for cls in (RateLimiter, Repository, Lease)
        for name, method in _public(cls).items()
        if not inspect.getdoc(method) and name not in OBVIOUS
    ]
    assert undocumented == []


# What the name and signature say completely.
OBVIOUS = set(
    """
    builder close create_entity get_children get_entity get_limits get_namespace
    get_resource_defaults get_system_defaults get_version_record invalidate_config_cache
    list_entities list_namespaces list_resources_with_defaults delete_limits
    list_entities_with_custom_limits list_resources_with_entity_configs namespace
    delete_resource_defaults delete_system_defaults recover_namespace register_namespaces
    set_limits set_parent set_resource_defaults set_system_defaults set_version_record
    get_cache_stats check_open note
    """.split()
)
