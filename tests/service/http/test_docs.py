"""The pages about the service name every route, every code and every option, with their figures."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from headgate.service.decide.problems import Code
from headgate.service.http.read import BATCH_BYTES_MAX, BODY_BYTES_MAX, DEPTH_MAX, HEADERS_MAX
from headgate.service.http.routes import ENDPOINTS
from headgate.service.http.write import _OWN
from headgate.service.server.options import _parser

DOCS = Path(__file__).parents[3] / "docs"
REFERENCE = (DOCS / "reference/rest.md").read_text()
HOW_TO = (DOCS / "how-to/run-the-service.md").read_text()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
def test_every_route_is_in_the_reference(endpoint: object) -> None:
    path = endpoint.path  # type: ignore[attr-defined]
    short = re.sub(r"^/v1/namespaces/{namespace}/", "…/", path)
    row = [
        line
        for line in REFERENCE.splitlines()
        if line.startswith("|") and any(f"{text}`" in line for text in (path, short))
    ]
    assert row, path
    assert any(endpoint.method in line for line in row), path  # type: ignore[attr-defined]


def test_every_code_has_its_status() -> None:
    codes = {code.value: code.http_status for code in Code}
    codes |= {code: status for status, code, _ in _OWN.values()}
    for code, status in codes.items():
        row = [
            line for line in REFERENCE.splitlines() if line.startswith("|") and f"`{code}`" in line
        ]
        assert any(f"| {status} |" in line for line in row), code


def test_every_option_is_in_the_how_to() -> None:
    actions = _parser({})._actions
    hidden = [one for one in actions if one.help is argparse.SUPPRESS]
    assert len(hidden) == 3
    for action in actions:
        if action not in hidden and "--help" not in action.option_strings:
            assert f"`{action.option_strings[0]}" in HOW_TO, action.option_strings


def test_the_figures_are_the_codes() -> None:
    spaced = [f"{number:,}".replace(",", " ") for number in (BODY_BYTES_MAX, BATCH_BYTES_MAX)]
    for text in (*spaced, f"more than {DEPTH_MAX} levels", f"more than {HEADERS_MAX}"):
        assert text in REFERENCE, text
