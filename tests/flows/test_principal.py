"""Who made a change: one rule above every store, for every verb that takes the name."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from headgate import Limit, Repository, ValidationError
from headgate.admin.import_ import import_lines
from headgate.admin.operations import Operations
from headgate.core.history import PRINCIPAL_LENGTH_MAX, parse_principal, valid_principal
from headgate.core.runtime import run
from headgate.declare.apply import Changes, apply_changes
from headgate.service.keys.access import Grant, KeyScope, caller_of
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint
from headgate.service.keys.stored import StoredKeys
from tests.flows.conftest import World

RPM = Limit.per_minute("rpm", 10)
BAD: list[Any] = [
    123, True, b"ann", object(), ["ann"],
    "", "a\0b", "a\nb", "\x1b[31m", "tab\t", "\x7f", "\x85", "\ud800", "x" * 257, "x" * 500_000,
]  # fmt: skip
GOOD = [None, "a", "x" * 256, "Zoë 🙂", "cli:ann", "a b", "<b>", "\u202d"]

# One call of each verb that takes a principal, right in everything else.
CALLS: dict[str, dict[str, Any]] = {
    "create_entity": {"entity_id": "new"},
    "delete_entity": {"entity_id": "a"},
    "set_parent": {"entity_id": "a", "parent_id": None},
    "disable": {"entity_id": "a"},
    "enable": {"resource": "api"},
    "bypass": {"entity_id": "a"},
    "set_limits": {"entity_id": "a", "limits": [RPM]},
    "delete_limits": {"entity_id": "a"},
    "set_resource_defaults": {"resource": "api", "limits": [RPM]},
    "delete_resource_defaults": {"resource": "api"},
    "set_system_defaults": {"limits": [RPM]},
    "delete_system_defaults": {},
    "set_plan": {"name": "pro", "limits": [RPM]},
    "delete_plan": {"name": "pro"},
    "assign_plan": {"entity_id": "a", "plan": None},
    "reset_bucket": {"entity_id": "a", "resource": "api"},
    "top_up": {"entity_id": "a", "resource": "api", "amounts": {"rpm": 1}},
    "register_namespace": {"name": "eu"},
    "register_namespaces": {"names": ["eu", "us"]},
    "delete_namespace": {"name": "default"},
    "recover_namespace": {"namespace_id": "aBcDeFgHiJk"},
    "purge_namespace": {"namespace_id": "aBcDeFgHiJk"},
    "trim_history": {"audit_days": 1},
}


def test_every_verb_that_takes_a_principal_is_here() -> None:
    found = {
        name
        for owner in (Operations, Repository)
        for name, verb in inspect.getmembers(owner, inspect.isfunction)
        if "principal" in inspect.signature(verb).parameters and not name.startswith("_")
    }
    filters = {"get_audit_events", "list_audit_events"}  # these ask for the changes of somebody
    assert found - filters == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
async def test_a_bad_principal_is_told_before_the_store_is_asked(name: str, world: World) -> None:
    """On every store and in both modes; what is refused has changed nothing."""
    limiter = world.limiter(limits=[RPM])
    await limiter.create_entity("a")
    before = await limiter.get_audit_events("a")
    owner = limiter if hasattr(limiter, name) else world.repository
    for bad in BAD:
        with pytest.raises(ValidationError) as told:
            await getattr(owner, name)(**CALLS[name], principal=bad)
        assert told.value.field == "principal"
        assert len(str(told.value)) < 300
    assert await limiter.get_audit_events("a") == before


async def test_good_ones_come_back_as_they_were(world: World) -> None:
    limiter = world.limiter()
    for good in GOOD:
        await limiter.set_limits("a", [RPM], principal=good)
    events = await limiter.get_audit_events("a")
    assert [event.principal for event in reversed(events)] == GOOD


def test_imports_files_and_keys_go_by_the_same_rule(tmp_path: Any) -> None:
    repository = Repository("memory://", _blocking=True)
    grant = Grant(frozenset(KeyScope), "*")
    path = tmp_path / "keys.yaml"
    keys = FileKeys(str(path), create=True)
    stored = StoredKeys(repository.backend.catalog, repository.clock)
    for bad in BAD:
        for flow in (
            lambda bad=bad: import_lines(repository, [], principal=bad),
            lambda bad=bad: apply_changes(repository, Changes((), (), ()), bad),
            lambda bad=bad: keys.revoke("k" * 12, bad, 1),
            lambda bad=bad: stored.revoke("k" * 12, bad, 1),
        ):
            with pytest.raises(ValidationError) as told:
                run(flow())
            assert told.value.field == "principal"
        with pytest.raises(ValidationError, match="principal"):
            mint(grant, principal=bad, now_ms=1)


def test_names_that_nobody_chose_are_made_valid() -> None:
    assert valid_principal("cli:a\nb\udcff\x1b") == "cli:a?b??"
    assert len(valid_principal("file:/" + "x" * 5000)) == PRINCIPAL_LENGTH_MAX
    name = "URI:spiffe://corp/" + "x" * 400
    caller = caller_of([name], {name: Grant(frozenset(KeyScope), "*")})
    assert parse_principal(caller.principal) == caller.principal
