"""Which names Terraform's AWS provider knows, for the resources of the module in infra/terraform.

The provider itself cannot be had from package registries, but its schema can: the wheel
`cdktf-cdktf-provider-aws` is made from it. Run this with that wheel's path to renew the table that
the module is checked against:

    pip download --no-deps cdktf-cdktf-provider-aws
    python tools/provider_names.py cdktf_cdktf_provider_aws-*.whl
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "aws" / "infra" / "provider_names.json"
PACKAGE = "cdktf_cdktf_provider_aws"
OF_EVERY_RESOURCE = {"scope", "id_", "id"}
META = {"connection", "count", "depends_on", "for_each", "lifecycle", "provider", "provisioners"}


def kinds() -> list[str]:
    text = "\n".join(path.read_text() for path in (ROOT / "infra" / "terraform").glob("*.tf"))
    return sorted(set(re.findall(r'^resource "aws_(\w+)"', text, re.MULTILINE)))


def required(source: str, kind: str) -> list[str]:
    """The arguments of a resource's class that have no default."""
    wanted = "".join(part.title() for part in kind.split("_"))
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and re.fullmatch(
            f"{wanted}A?Config", node.name, re.IGNORECASE
        ):
            made = next(
                one
                for one in node.body
                if isinstance(one, ast.FunctionDef) and one.name == "__init__"
            )
            pairs = zip(made.args.kwonlyargs, made.args.kw_defaults, strict=True)
            return sorted(arg.arg for arg, default in pairs if default is None)
    raise AssertionError(kind)


def main(wheel: str) -> None:
    found: dict[str, dict[str, list[str]]] = {}
    versions: set[str] = set()
    with zipfile.ZipFile(wheel) as packed:
        for kind in kinds():
            source = packed.read(f"{PACKAGE}/{kind}/__init__.py").decode()
            names = re.findall(rf"aws/([\d.]+)/docs/resources/{kind}#(\w+)", source)
            versions |= {version for version, _ in names}
            found[f"aws_{kind}"] = {
                "names": sorted({name for _, name in names}),
                "required": [
                    n for n in required(source, kind) if n not in OF_EVERY_RESOURCE | META
                ],
            }
    [version] = versions
    TABLE.write_text(json.dumps({"version": version, "resources": found}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
