"""The code of the Lambda function as a zip: the parts of headgate that its handler uses, no others.

Other packages come with Python or with the Lambda runtime (botocore). The same sources make the
same bytes, so the digest of a bundle tells whether a stack runs this code.
"""

from __future__ import annotations

import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

PACKAGE = "headgate"
# The handler is in aws/aggregator. A test holds that nothing in the zip imports a module of
# headgate that is not in it, so a new import either stays within this list or extends it.
PARTS = (
    "__init__.py",
    "admin/__init__.py",
    "admin/documents.py",
    "admin/reports.py",
    "aws/__init__.py",
    "aws/aggregator",
    "core",
    "stores/__init__.py",
    "stores/catalog.py",
    "stores/plans.py",
    "stores/records.py",
    "stores/dynamodb",
    "transport",
)
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


@functools.cache  # it reads many files, and the sources of a running program do not change
def build() -> Bundle:
    """The bundle of the aggregator's handler."""
    root = resources.files(PACKAGE)
    files = {
        f"{PACKAGE}/{path}": file.read_bytes()
        for part in PARTS
        for path, file in _files_in(part, root.joinpath(part))
    }
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


def _files_in(path: str, found: Traversable) -> Iterator[tuple[str, Traversable]]:
    """A file, or all files of a folder and below it, except what Python has compiled."""
    if found.is_file():
        yield path, found
        return
    for entry in found.iterdir():
        if entry.name != "__pycache__":
            yield from _files_in(f"{path}/{entry.name}", entry)
