"""The key file's format: keys and certificates out of a YAML tree, or all that is wrong."""

from __future__ import annotations

from collections.abc import Callable

from headgate.core.errors import ValidationError
from headgate.declare.yaml_fields import Reader
from headgate.declare.yaml_tree import Broken, Findings, Listing, Node, Scalar, Spoiled, tree_of
from headgate.service.keys.access__keys_certificates import parse_san
from headgate.service.keys.key import (
    Grant,
    Key,
    Scope,
    parse_digest,
    parse_grant,
    parse_key_id,
    parse_key_name,
)
from headgate.service.keys.stored__keys_shelf import KEYS_MAX
from headgate.service.policies.policies__policies_file import FILE_BYTES_MAX

PRINCIPAL_LENGTH_MAX = 256
MS_MAX = 2**53 - 1

_GRANT = ("scopes", "namespace", "entity_prefix")
_MS = ("created_ms", "revoked_ms")
_WHO = ("created_by", "changed_by")
_KEY = ("id", "digest", "name", *_GRANT, *_MS, *_WHO)


def decode_keys(content: bytes, file: str) -> tuple[dict[str, Key], dict[str, Grant]] | Broken:
    """Keys by id and certificates by name, or every fault of the file."""
    findings = Findings(file, discreet=True)
    start = Spoiled(1, 1)
    if len(content) > FILE_BYTES_MAX:
        findings.add(start, f"the file has more than {FILE_BYTES_MAX} bytes")
    root = None if findings.faults else tree_of(content, findings)
    if root is None and not findings.faults:
        findings.add(start, "the file is empty; write 'keys: []' to have no keys")
    work = _Decoding(Reader(findings))
    if root is not None:
        work.read(root)
    return findings.broken or (work.keys, work.certificates)


class _Decoding:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.keys: dict[str, Key] = {}
        self.certificates: dict[str, Grant] = {}

    def read(self, root: Node) -> None:
        sections = self._reader.fields(root, "the file", ("keys", "certificates")) or {}
        if "keys" in sections:
            for item in self._reader.items(sections["keys"], "keys", KEYS_MAX):
                self._key(item)
        if "certificates" in sections:
            for item in self._reader.items(sections["certificates"], "certificates", KEYS_MAX):
                self._certificate(item)

    def _key(self, node: Node) -> None:
        reader = self._reader
        given = reader.fields(node, "a key", _KEY, ("id", "digest", "scopes", "namespace"))
        if given is None:
            return
        grant = self._grant(given)
        key_id = self._text(given, "id", parse_key_id)
        digest = self._text(given, "digest", parse_digest)
        name = self._text(given, "name", parse_key_name) if "name" in given else ""
        moments = [self._ms(given.get(one), one) for one in _MS]
        people = [self._who(given.get(one), one) for one in _WHO]
        if key_id is None or digest is None or grant is None or name is None:
            return
        if key_id in self.keys:
            reader.fault(given["id"], f"the key {key_id} is there twice")
        self.keys[key_id] = Key(
            key_id, digest, grant, name, moments[0] or 0, people[0], people[1], moments[1]
        )

    def _certificate(self, node: Node) -> None:
        reader = self._reader
        given = reader.fields(node, "a certificate", ("san", *_GRANT), ("san", *_GRANT[:2]))
        if given is None:
            return
        grant, san = self._grant(given), self._text(given, "san", parse_san)
        if grant is None or san is None:
            return
        if san in self.certificates:
            reader.fault(given["san"], "this name is there twice")
        self.certificates[san] = grant

    def _grant(self, given: dict[str, Node]) -> Grant | None:
        if "scopes" not in given or "namespace" not in given:
            return None
        scopes = [
            self._reader.text(item, "a scope")
            for item in self._reader.items(given["scopes"], "scopes", len(Scope))
        ]
        namespace = self._text(given, "namespace")
        prefix = self._text(given, "entity_prefix") if "entity_prefix" in given else None
        if None in scopes or namespace is None or not isinstance(given["scopes"], Listing):
            return None
        try:
            return parse_grant(scopes, namespace, prefix)
        except ValidationError as error:
            at = {"scopes": "scopes", "entity_prefix": "entity_prefix"}.get(error.field)
            self._reader.fault(given[at or "namespace"], f"{error.field} {error.reason}")
            return None

    def _text(
        self, given: dict[str, Node], name: str, parse: Callable[[str], str] | None = None
    ) -> str | None:
        return self._reader.text(given[name], name, parse) if name in given else None

    def _ms(self, node: Node | None, name: str) -> int | None:
        return None if node is None else self._reader.whole(node, name, 0, MS_MAX)

    def _who(self, node: Node | None, name: str) -> str | None:
        if node is None:
            return None
        if isinstance(node, Scalar) and len(node.text) > PRINCIPAL_LENGTH_MAX:
            self._reader.fault(node, f"{name} has more than {PRINCIPAL_LENGTH_MAX} characters")
            return None
        return self._reader.text(node, name)
