"""The code of the Lambda function as a zip: the modules of headgate its handler imports, no others.

The modules are found by reading import statements, also those inside functions; nothing is run.
Other packages come with Python or with the Lambda runtime (botocore). The same sources make the
same bytes, so the digest of a bundle tells whether a stack runs this code.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import NamedTuple

from headgate.aws.infra.control_plane import StackOperationError

PACKAGE = "headgate"
HANDLER = "headgate.aws.aggregator.lambda_handler"
MODULES_MAX = 500
DATA_ENDINGS = (".sql", ".lua", ".yaml", ".json")
EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that the same sources make the same bytes
READABLE = 0o644 << 16


@dataclass(frozen=True, slots=True)
class Bundle:
    """A zip and what is in it."""

    content: bytes
    names: tuple[str, ...]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def key(self) -> str:
        """The name of the bundle in a bucket; different code has a different name."""
        return f"aggregator/{self.digest}.zip"


@functools.cache  # a second's work, and the sources of a running program do not change
def build(handler: str = HANDLER) -> Bundle:
    """The bundle of a handler's module."""
    root = resources.files(PACKAGE)
    files: dict[str, bytes] = {}
    for module, source in sorted(_collect_modules(root, handler).items()):
        files[source.path] = source.text.encode()
        if source.is_package:
            files |= _data_of(root, module)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as made:  # deflating differs by version
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.create_system = 3
            entry.external_attr = READABLE
            made.writestr(entry, files[name])
    return Bundle(buffer.getvalue(), tuple(sorted(files)))


def lambda_export(path: str | Path) -> Bundle:
    """The bundle, written to a file for whoever deploys by other means."""
    bundle = build()
    Path(path).write_bytes(bundle.content)
    return bundle


class _Source(NamedTuple):
    path: str
    text: str

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")


def _collect_modules(root: Traversable, start: str) -> dict[str, _Source]:
    """The modules an import of `start` can lead to, and the packages they are in."""
    found: dict[str, _Source] = {}
    todo = [start]
    while todo:
        parts = todo.pop().split(".")
        for name in [".".join(parts[: length + 1]) for length in range(len(parts))]:
            source = None if name in found else _source(root, name)
            if source is None:  # known already, or an attribute of a module
                continue
            found[name] = source
            todo += _imports(name, source)
            if len(found) > MODULES_MAX:
                raise AssertionError(f"{start} reaches more than {MODULES_MAX} modules")
    if start not in found:
        raise StackOperationError(
            start, "no bundle was made", "this headgate has no such module", advice="reinstall it"
        )
    return found


def _source(root: Traversable, module: str) -> _Source | None:
    inner = module.split(".")[1:]
    for parts in ([*inner, "__init__.py"], [*inner[:-1], f"{inner[-1]}.py"] if inner else []):
        file = root.joinpath(*parts)
        if file.is_file():
            return _Source("/".join((PACKAGE, *parts)), file.read_text("utf-8"))
    return None


def _imports(module: str, source: _Source) -> list[str]:
    """What of headgate a module names in imports that can be run."""
    names: list[str] = []
    base = module.split(".") if source.is_package else module.split(".")[:-1]
    for node in _runtime_nodes(ast.parse(source.text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = base[: len(base) - node.level + 1] if node.level else []
            origin = ".".join([*stem, *([node.module] if node.module else [])])
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.split(".")[0] == PACKAGE]


def _runtime_nodes(tree: ast.Module) -> Iterator[ast.AST]:
    """Every statement but those that only a type checker sees."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            todo += node.orelse
        else:
            todo += [part for part in ast.iter_child_nodes(node) if isinstance(part, _HOLDERS)]


_HOLDERS = (ast.stmt, ast.ExceptHandler, ast.match_case)  # imports are in nothing else


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _data_of(root: Traversable, module: str) -> dict[str, bytes]:
    """The data files of a package, also those in folders below it."""
    inner = module.split(".")[1:]
    folder = root.joinpath(*inner)
    return {"/".join((PACKAGE, *inner, name)): data for name, data in _data_in(folder)}


def _data_in(folder: Traversable) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_file() and entry.name.endswith(DATA_ENDINGS):
            yield entry.name, entry.read_bytes()
        elif entry.is_dir() and not entry.joinpath("__init__.py").is_file():
            yield from ((f"{entry.name}/{name}", data) for name, data in _data_in(entry))
