"""The house stays liveable: module and function sizes, layers that name every module."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src/headgate").rglob("*.py"))
LINES_MAX = 500
FUNCTION_LINES_MAX = 60


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_and_functions_fit(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LINES_MAX, "it is two things: split it"
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "the first line of a module says what it is for"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


def test_every_module_has_its_place_in_the_layers() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    modules = {
        f"headgate.{path.stem if path.is_file() else path.name}"
        for path in (ROOT / "src/headgate").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert modules == placed


# Programs and layers may use an event loop; the core, which is the modules of the root package, and
# what a store decides may not: the same code runs blocking, in a simulation and under a search.
LOOP_PACKAGES = {
    "aggregator",
    "cli",
    "client",
    "dashboard",
    "demo",
    "infra",
    "integrations",
    "layers",
    "service",
    "testing",
}
LOOP_MODULES = {"port.py", "port_inlet.py", "port_owned.py", "limiter.py"}


def test_asyncio_and_vendors_stay_at_the_edge() -> None:
    for path in SOURCES:
        roots = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        package = path.relative_to(ROOT / "src/headgate").parts[0]
        is_port = path.parent.parent.name == "stores" and path.name.startswith(("port", "wire"))
        if package not in LOOP_PACKAGES | LOOP_MODULES and not is_port:
            assert "asyncio" not in roots, path
        if roots & {"sqlite3", "redis", "hiredis"} and path.name != "__init__.py":
            assert is_port, path


def test_nothing_names_a_machine() -> None:
    for path in [*ROOT.glob("*"), *ROOT.glob("docs/**/*"), *ROOT.glob("src/**/*.py")]:
        if path.is_file() and path.suffix in (".py", ".md", ".toml", ""):
            text = path.read_text()
            assert "/" + "work/" not in text, path
            assert "/" + "root/" not in text, path
