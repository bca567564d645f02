"""Generates the gRPC stubs from the .proto files: `python tools/generate_stubs.py [DIRECTORY]`.

Run it after a change of a .proto file, with the `grpcio-tools` version that the dev extra pins: the
stubs say which one made them, and a test compares them with what this script makes.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTO = ROOT / "src/headgate/service/grpc/proto"
PACKAGE = "headgate.service.grpc.proto"
WITH_SERVICE = "headgate/v1/headgate.proto"
HEADER = "# Made by tools/generate_stubs.py; do not edit.\n# fmt: off\n# ruff: noqa\n"

# protoc names modules by the path of the .proto file; ours lie in a package of another name.
_SIBLING = re.compile(r"^from (headgate\.v1|envoy) import ", re.MULTILINE)

# Envoy's messages get a pool of their own: a process that also imports another copy of them, whole
# or of another version, would otherwise fail at the second import.
_POOL = "from google.protobuf import descriptor_pool as _descriptor_pool"
_OWN_POOL = f"from {PACKAGE} import pool as _descriptor_pool"

# A second client that grpc offers on trial; nobody needs it.
_EXPERIMENTAL = " # This class is part of an EXPERIMENTAL API."


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        for made in sorted(Path(scratch).rglob("*.py*")):
            name = made.relative_to(scratch)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_text(finished(made.read_text(), name))


def generate(target: Path) -> None:
    from grpc_tools import protoc

    names = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    places = [f"-I{PROTO}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    calls = [
        [f"--python_out={target}", f"--pyi_out={target}", *names],
        [f"--grpc_python_out={target}", WITH_SERVICE],
    ]
    for call in calls:
        if protoc.main(["protoc", *places, *call]) != 0:
            sys.exit("protoc failed: see its message above")


def finished(text: str, name: Path) -> str:
    text = _SIBLING.sub(rf"from {PACKAGE}.\1 import ", text)
    header = HEADER
    if name.parts[0] == "envoy":
        text = text.replace(_POOL, _OWN_POOL)
    if name.suffix == ".pyi":
        header += '# mypy: disable-error-code="type-arg"\n'
    if name.stem.endswith("_grpc"):
        header += "# mypy: ignore-errors\n"
        text = text.partition(_EXPERIMENTAL)[0].rstrip() + "\n"
    return header + text


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PROTO)
