"""Keys in a file: read strictly, written whole under another name and moved into place.

The file is YAML or JSON with `keys` and `certificates`; it holds digests, never secrets. Because
somebody may paste a secret by mistake, no error repeats what the file says. Beside the file,
`<file>.audit` gets a line for every change that headgate makes: a key made by a command has no
store at hand that could keep an audit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from headgate.core.errors import HeadgateError, Unreachable, ValidationError
from headgate.core.history import PRINCIPAL_LENGTH_MAX, TIME_MS_MAX, iso_time, parse_principal
from headgate.declare.yaml_fields import (
    FieldReader,
    FileFault,
    Findings,
    InvalidFile,
    Listing,
    Node,
)
from headgate.service.keys.access import parse_san
from headgate.service.keys.key import (
    GRANT_FIELDS,
    Grant,
    Key,
    KeyScope,
    parse_digest,
    parse_grant,
    parse_key_id,
    parse_key_name,
)
from headgate.service.keys.stored import PAGE_MAX
from headgate.service.policies.decode import value_of
from headgate.service.policies.policies import (
    FILE_BYTES_MAX,
    FollowedFile,
    read_tree,
    write_private,
)

if sys.platform != "win32":
    import fcntl

KEYS_MAX = 10_000
TRAIL_SUFFIX = ".audit"


class KeyFileError(HeadgateError):
    """There are no keys to start with, or none can be written."""

    def __init__(self, broken: InvalidFile) -> None:
        super().__init__(f"the key file cannot be used:\n{broken}")


class KeyState(NamedTuple):
    """What a key file says: keys by id, and grants by the name in a client certificate."""

    keys: Mapping[str, Key]
    certificates: Mapping[str, Grant]


class FileKeys:
    """Keys of one file. What others write there is seen at the next question; a file that becomes
    unusable leaves the keys as they were, and `trouble` says so. `last_good` is where workers of
    one service keep a copy, for one that starts while the file is unusable."""

    def __init__(
        self, path: str | os.PathLike[str], *, create: bool = False, last_good: str | None = None
    ) -> None:
        self.path = os.path.realpath(path) if create else str(path)
        if create and not os.path.exists(self.path):
            _write(self.path, KeyState({}, {}))
        self._file = FollowedFile(self.path, decode_keys, KeyFileError, last_good)

    @property
    def trouble(self) -> InvalidFile | None:
        return self._file.trouble

    @property
    def certificates(self) -> Mapping[str, Grant]:
        """Who may come with a certificate instead of a key, by subject alternative name."""
        return self.state().certificates

    def state(self) -> KeyState:
        """As the file is now; the same object while it stays the same."""
        self._file.look()
        return self._file.state

    async def get(self, key_id: str) -> Key | None:
        return self.state().keys.get(key_id)

    async def put(self, key: Key) -> None:
        with self._change() as keys:
            if key.id in keys:
                raise ValidationError("key id", key.id, "is taken; mint another key")
            if len(keys) >= KEYS_MAX:
                raise ValidationError(
                    "keys", len(keys), f"are as many as fit ({KEYS_MAX}); remove some"
                )
            keys[key.id] = key

    async def revoke(self, key_id: str, principal: str | None, now_ms: int) -> bool:
        parse_principal(principal)
        with self._change() as keys:
            key = keys.get(key_id)
            if key is None or key.revoked_ms is not None:
                return False
            keys[key_id] = replace(key, revoked_ms=now_ms, changed_by=principal)
        return True

    async def list_keys(
        self, *, limit: int, cursor: str | None = None
    ) -> tuple[list[Key], str | None]:
        keys, limit = self.state().keys, min(limit, PAGE_MAX)
        ids = sorted(key_id for key_id in keys if cursor is None or key_id > cursor)
        page = [keys[key_id] for key_id in ids[:limit]]
        return page, page[-1].id if len(ids) > limit and page else None

    @contextmanager
    def _change(self) -> Iterator[dict[str, Key]]:
        """The keys, to be changed in place while no other process writes. They are written when the
        block is left, unless it raises or changes nothing; a broken file is not written over."""
        with _file_lock(self.path):
            found = FollowedFile(self.path, decode_keys, KeyFileError).state
            keys = dict(found.keys)
            yield keys
            if keys != found.keys:
                _append_trail(self.path, found.keys, keys)
                _write(self.path, KeyState(keys, found.certificates))
        self.state()


@contextmanager
def _file_lock(path: str) -> Iterator[None]:
    if sys.platform == "win32":  # writers of several processes are not kept apart there
        yield
        return
    try:
        lock = os.open(path + ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unreachable(f"the key file {path} cannot be locked: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: str, state: KeyState) -> None:
    rows = [key.as_json() for _, key in sorted(state.keys.items())]
    named = [{"san": san, **one.as_json()} for san, one in sorted(state.certificates.items())]
    body = {"keys": [*map(_without_none, rows)], "certificates": [*map(_without_none, named)]}
    content = (json.dumps(body, indent=1) + "\n").encode()
    if len(content) > FILE_BYTES_MAX:
        full = f"would have more than {FILE_BYTES_MAX} bytes; remove old keys"
        raise KeyFileError(InvalidFile((FileFault(path, 1, 1, full),)))
    spare = f"{path}.{os.getpid()}.new"
    try:
        write_private(spare, content)
        os.replace(spare, path)
    except OSError as error:
        raise Unreachable(f"the key file {path} cannot be written: {error.strerror}") from error


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def key_for_audit(key: Key) -> dict[str, Any]:
    """A key as audits tell it: without its digest."""
    told = key.as_json()
    for name in ("digest", "created_ms", "revoked_ms"):
        del told[name]
    return {**told, "revoked_at": None if key.revoked_ms is None else iso_time(key.revoked_ms)}


def _append_trail(path: str, before: Mapping[str, Key], after: Mapping[str, Key]) -> None:
    """A line for each key that differs, on the disk before the file itself is replaced: there is
    no change without its line."""
    lines = []
    for key_id, key in after.items():
        was = before.get(key_id)
        if was != key:
            line = {
                "at": iso_time(key.created_ms if key.revoked_ms is None else key.revoked_ms),
                "action": "key_created" if was is None else "key_revoked",
                "key_id": key_id,
                "principal": key.changed_by,
                "before": None if was is None else key_for_audit(was),
                "after": key_for_audit(key),
            }
            lines.append(json.dumps(line, separators=(",", ":")) + "\n")
    try:
        write_private(path + TRAIL_SUFFIX, "".join(lines).encode(), append=True)
    except OSError as error:
        raise Unreachable(
            f"{path}{TRAIL_SUFFIX}, which tells who changed keys, cannot be written "
            f"({error.strerror}); the keys stay as they are"
        ) from error


# --------------------------------------------------------------------------------------------------
# The key file's format: keys and certificates out of a YAML tree, or all that is wrong.


def _parse_author(text: str) -> str:
    """Who made or changed a key; files that older versions wrote name anybody."""
    if len(text) > PRINCIPAL_LENGTH_MAX:
        raise ValidationError(
            "principal", "<not shown>", f"must be at most {PRINCIPAL_LENGTH_MAX} characters"
        )
    return text


_TEXTS = {
    "id": parse_key_id,
    "digest": parse_digest,
    "name": parse_key_name,
    "created_by": _parse_author,
    "changed_by": _parse_author,
}
_TIMES = ("created_ms", "revoked_ms")


def decode_keys(content: bytes, file: str) -> KeyState | InvalidFile:
    """Keys and certificates of a file, or every fault of it."""
    findings = Findings(file, discreet=True)
    root = read_tree(content, findings, "write 'keys: []' to have no keys")
    work = _KeyFileDecoder(FieldReader(findings))
    if root is not None:
        work.read(root)
    return findings.broken or KeyState(work.keys, work.certificates)


class _KeyFileDecoder:
    def __init__(self, reader: FieldReader) -> None:
        self._reader = reader
        self.keys: dict[str, Key] = {}
        self.certificates: dict[str, Grant] = {}

    def read(self, root: Node) -> None:
        sections = self._reader.fields(root, "the file", ("keys", "certificates")) or {}
        for item in value_of(sections, "keys", self._reader.items, KEYS_MAX, usual=()):
            self._key(item)
        for item in value_of(sections, "certificates", self._reader.items, KEYS_MAX, usual=()):
            self._certificate(item)

    def _key(self, node: Node) -> None:
        reader = self._reader
        known = (*_TEXTS, *GRANT_FIELDS, *_TIMES)
        given = reader.fields(node, "a key", known, ("id", "digest", "scopes", "namespace")) or {}
        values: dict[str, Any] = {"grant": self._grant(given)}
        for name, one in given.items():
            if name in _TEXTS:
                values[name] = reader.text(one, name, _TEXTS[name])
            elif name in _TIMES:
                values[name] = reader.whole(one, name, 0, TIME_MS_MAX)  # audits say it as a date
        if None in values.values() or not values.keys() >= {"id", "digest"}:
            return  # the reader has noted why
        key = Key(**values)
        if key.id in self.keys:
            reader.fault(given["id"], f"the key {key.id} is there twice")
        self.keys[key.id] = key

    def _certificate(self, node: Node) -> None:
        reader = self._reader
        known, needed = ("san", *GRANT_FIELDS), ("san", *GRANT_FIELDS[:2])
        given = reader.fields(node, "a certificate", known, needed) or {}
        grant = self._grant(given)
        san = value_of(given, "san", reader.text, parse_san)
        if grant is None or san is None:
            return
        if san in self.certificates:
            reader.fault(given["san"], "this name is there twice")
        self.certificates[san] = grant

    def _grant(self, given: dict[str, Node]) -> Grant | None:
        if "scopes" not in given or "namespace" not in given:
            return None
        reader = self._reader
        items = reader.items(given["scopes"], "scopes", len(KeyScope))
        scopes = [reader.text(item, "a scope") for item in items]
        texts = {name: reader.text(given[name], name) for name in GRANT_FIELDS[1:] if name in given}
        if None in scopes or None in texts.values() or not isinstance(given["scopes"], Listing):
            return None
        try:
            return parse_grant(scopes, **texts)
        except ValidationError as error:
            at = error.field if error.field in ("scopes", "entity_prefix") else "namespace"
            reader.fault(given[at], f"{error.field} {error.reason}")
            return None
