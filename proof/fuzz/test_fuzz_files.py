"""Files: policies, keys, declared limits and exports, as bytes of any kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import ValidationError
from headgate.admin.export import FORMAT, read_lines
from headgate.cli.commands import limits as limits_file
from headgate.declare.yaml_fields import Findings, InvalidFile
from headgate.service.keys.file import decode_keys
from headgate.service.policies.policies import Policies, check_content
from proof.fuzz.kit import FUZZ, bent, odd_text, outcome, values

POLICIES = {
    "rate_limits": [
        {"name": "search", "scope": "user", "resource": "api.search", "capacity": 10,
         "refill_rate": 5, "shadow": True},
        {"name": "all", "scope": "global", "capacity": 100, "refill_rate": 10},
    ],
    "token_costs": [{"endpoint": "/v1/search", "tokens": 2}],
    "runtime": {"fail_open": True},
}  # fmt: skip
KEYS = {
    "keys": [
        {"id": "abcdefghijkl", "digest": "sha256:" + "0" * 64, "name": "n", "scopes": ["check"],
         "namespace": "default", "created_ms": 1}
    ],
    "certificates": [{"san": "DNS:client.example", "scopes": ["read"], "namespace": "default"}],
}  # fmt: skip
DECLARED = {
    "system": {"limits": ["rpm:100/minute"], "on_unavailable": "block"},
    "resources": {"gpt-4": {"tpm": "1000/minute burst 2000"}},
    "entities": {"key-1": {"parent": "org", "limits": {"gpt-4": ["rpm:5/s"]}}},
}


def as_yaml(value: Any) -> bytes:
    """YAML in flow style. Scalars stand as they are, so that some of them mean something else."""
    if isinstance(value, dict):
        inner = b", ".join(as_yaml(key) + b": " + as_yaml(one) for key, one in value.items())
        return b"{" + inner + b"}"
    if isinstance(value, list):
        return b"[" + b", ".join(map(as_yaml, value)) + b"]"
    if isinstance(value, bool) or value is None:
        return str(value).lower().encode()
    return str(value).encode("utf-8", "surrogatepass")


def files_like(good: Any) -> st.SearchStrategy[bytes]:
    snippets = st.sampled_from(
        (b"&a [*a]", b"!!python/object:x {}", b"---\n...\n---\n", b"? [a]\n: b", b"<<: {}", b"\t-",
         b"a: |\n  b", b"'", b'"\\x', b"%YAML 9.9\n--- a", b"- - - - - -", b"\xff\xfe", b"\x00")
    )  # fmt: skip
    near, places = bent(good).map(as_yaml), st.integers(0, 80)
    return st.one_of(
        near,
        st.builds(lambda one, two, at: one[:at] + two + one[at:], near, snippets, places),
        st.binary(max_size=60),
        odd_text.map(lambda text: text.encode("utf-8", "surrogatepass")),
        values.map(as_yaml),
        st.builds(lambda one, times: one * times, snippets, st.integers(1, 200)),
    )


FILES: dict[str, tuple[Callable[[bytes, str], Any], Any, type]] = {
    "policies.yaml": (check_content, POLICIES, Policies),
    "keys.yaml": (decode_keys, KEYS, object),
}


@pytest.mark.parametrize("name", FILES)
@FUZZ
@given(data=st.data())
def test_a_file_is_read_or_every_fault_has_a_place(name: str, data: st.DataObject) -> None:
    read, good, kind = FILES[name]
    found = read(data.draw(files_like(good)), name)
    assert isinstance(found, (kind, InvalidFile))
    if isinstance(found, InvalidFile):
        assert found.faults
        assert all(fault.line >= 1 and fault.column >= 1 for fault in found.faults)


@FUZZ
@given(files_like(DECLARED))
def test_declared_limits_are_read_or_every_fault_has_a_place(content: bytes) -> None:
    findings = Findings("limits.yaml")
    limits_file.decode(content, findings)
    assert all(line >= 1 and column >= 1 for _, line, column, _ in findings.faults)
    assert all(str(fault).startswith("limits.yaml:") for fault in findings.sorted_faults)


EXPORT: list[Any] = [
    {"kind": "headgate", "format": FORMAT},
    {"kind": "entity", "id": "a", "name": None, "parent_id": None, "cascade": False,
     "metadata": {}, "mode": "normal"},
    {"kind": "level", "entity_id": "a", "resource": "r", "on_unavailable": None, "mode": "normal",
     "limits": [{"name": "x", "capacity": 1, "refill_amount": 1, "refill_period_seconds": 1}]},
    {"kind": "usage", "entity_id": "a", "resource": "r", "window_type": "hourly",
     "window_start": "2026-01-01T00:00:00Z", "counters": {"x": 1}, "total_events": 1},
    {"kind": "end", "entity": 1, "level": 1, "usage": 1},
]  # fmt: skip


def as_lines(value: Any) -> list[bytes]:
    rows = value if isinstance(value, list) else [value]
    return [json.dumps(row).encode() for row in rows]


@FUZZ
@given(st.one_of(bent(EXPORT).map(as_lines), st.lists(st.binary(max_size=30), max_size=4)))
def test_an_export_is_read_or_refused(lines: list[bytes]) -> None:
    outcome(ValidationError, lambda: list(read_lines(lines)))


@pytest.mark.parametrize("start", [10**30, -(10**30), 10**400, 1e300])
@pytest.mark.parametrize("window_type", ["hourly", "daily", "monthly"])
def test_a_window_beyond_the_calendar_is_refused(start: float, window_type: str) -> None:
    usage = {**EXPORT[3], "window_start": start, "window_type": window_type}
    with pytest.raises(ValidationError, match="cannot be used"):
        list(read_lines(as_lines([EXPORT[0], usage])))


def test_the_good_files_are_good() -> None:
    """Else the others would only show how bad files are refused."""
    for read, good, _ in FILES.values():
        found = read(as_yaml(good), "file")
        assert not isinstance(found, InvalidFile), str(found)
    findings = Findings("limits.yaml")
    assert limits_file.decode(as_yaml(DECLARED), findings).levels
    assert findings.faults == []
    assert len(list(read_lines(as_lines(EXPORT)))) == 3
