"""The bundle holds what the handler needs, runs alone, and is the same bytes every time."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import botocore

from headgate.aws.infra import build, lambda_export

SITE = str(Path(botocore.__file__).parents[1])

# A clean interpreter: no site-packages but botocore's, which the runtime has, and no headgate.
PROGRAM = """
import sys, types
zip_path, site = sys.argv[1:]
class OnlyBotocore:
    roots = {"botocore", "urllib3", "jmespath", "dateutil", "six"}
    def find_spec(self, name, path=None, target=None):
        from importlib.machinery import PathFinder
        if name.split(".")[0] not in self.roots:
            return None
        return PathFinder.find_spec(name, [site] if path is None else path)
assert not any("site-packages" in place for place in sys.path), sys.path
sys.path[:0] = [zip_path]
sys.meta_path.append(OnlyBotocore())
from headgate.aws.aggregator.lambda_handler import handle
import headgate
assert headgate.__file__.startswith(zip_path), headgate.__file__
assert callable(handle)
own = sorted(m for m in sys.modules if m.split(".")[0] == "headgate")
print(len(own))
"""


def test_the_handler_runs_from_the_zip_alone(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.zip"
    bundle = lambda_export(path)
    assert path.read_bytes() == bundle.content
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-W", "error", "-c", PROGRAM, str(path), SITE],
        capture_output=True, text=True, cwd=tmp_path, env={}, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert 10 < int(done.stdout) <= len(bundle.names)


def test_every_module_of_the_zip_can_be_imported_for_what_it_has(tmp_path: Path) -> None:
    """Nothing in it imports a module of headgate that is not in it."""
    import ast

    content = zipfile.ZipFile(io.BytesIO(build().content))
    names = set(content.namelist())
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
               for name in names if name.endswith(".py")}  # fmt: skip
    for name in names - {"headgate/__init__.py"}:  # it loads what it names when that is used
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(content.read(name))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("headgate"):
                assert node.module in modules, (name, node.module)


def test_the_same_sources_make_the_same_bytes() -> None:
    first = build()
    build.cache_clear()
    second = build()
    assert first.content == second.content
    assert first.digest == second.digest
    assert first.key == f"aggregator/{first.digest}.zip"
    entries = zipfile.ZipFile(io.BytesIO(first.content)).infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert [entry.filename for entry in entries] == sorted(first.names)


def test_it_holds_nothing_else() -> None:
    names = build().names
    assert "headgate/aws/aggregator/lambda_handler.py" in names
    assert "headgate/stores/dynamodb/schema.py" in names
    strangers = ("infra/", "service/", "client/", "cli/", "dashboard/", "integrations/", "testing/")
    assert not [name for name in names if name.removeprefix("headgate/").startswith(strangers)]
    assert not [name for name in names if "__pycache__" in name]
    assert len(build().content) < 5_000_000
