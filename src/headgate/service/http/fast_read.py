"""Checks straight from bytes: the usual ones in one step, all others the long way.

A body with the usual fields and nothing else is decoded into a Struct. Whoever was asked about
before has been parsed before, so a look into a dict stands for the parsing. Whatever is not
exactly as expected goes the long way, which knows every rule and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from headgate.core.limits import DEFAULT_NAMESPACE
from headgate.service.decide.requests import (
    DEFAULT_SCOPE,
    NO_METADATA,
    BatchRequest,
    CheckRequest,
    parse_batch,
    parse_check,
)
from headgate.service.http.read import values_of
from headgate.service.settings import ServiceSettings

KNOWN_MAX = 16_384

Names = tuple[str, str, str, str]
KnownRequest = tuple[
    CheckRequest, int
]  # and how many colons stand in it, beyond those of other keys

_UNKNOWN: tuple[None, int] = (None, 0)


class CheckBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields most checks have. A number may be a float here, so that it is seen to be one."""

    identifier: str
    resource: str
    scope: str | UnsetType = UNSET
    tokens: int | float | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    requests: list[CheckBody]


_one = msgspec.json.Decoder(CheckBody).decode
_many = msgspec.json.Decoder(BatchBody).decode
_odd = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class BodyReader:
    """Bodies to requests, under the bounds of one service; bounded."""

    def __init__(self, settings: Callable[[], ServiceSettings]) -> None:
        self._settings = settings
        self._known: dict[Names, KnownRequest] = {}

    def check(self, body: bytes) -> CheckRequest:
        try:
            asked = [_one(body)]
        except _odd:
            asked = []
        if asked and b"\\" not in body:
            found = self._requests(asked, body.count(b":"), asked[0].namespace)
            if found is not None:
                return found[0]
        return self._remember(self._parse_fully(body, parse_check))

    def batch(self, body: bytes) -> BatchRequest:
        try:
            asked = _many(body).requests
        except _odd:
            asked = []
        if 0 < len(asked) <= self._settings().batch_max and b"\\" not in body:
            found = self._requests(asked, body.count(b":") - 1)
            if found is not None:
                return BatchRequest(tuple(found))
        batch: BatchRequest = self._parse_fully(body, parse_batch)
        for one in batch.requests:
            self._remember(one)
        return batch

    def _requests(
        self, asked: list[CheckBody], colons: int, namespace: str | UnsetType = UNSET
    ) -> list[CheckRequest] | None:
        """The requests, if their names are known to be fine and their tokens are numbers of them.

        `colons` is how many there are: one per key, and those in names. A key that is there twice
        is one colon too many, which the fields alone would not show.
        """
        known, tokens_max = self._known, self._settings().tokens_max
        within = DEFAULT_NAMESPACE if namespace is UNSET else namespace
        found: list[CheckRequest] = []
        for one in asked:
            scope, tokens = one.scope, one.tokens
            names = (
                DEFAULT_SCOPE if scope is UNSET else scope,
                one.identifier,
                one.resource,
                within,
            )
            request, extra = known.get(names, _UNKNOWN)
            if request is None or one.namespace is not namespace:
                return None
            colons -= extra if scope is UNSET else extra + 1
            if tokens is not UNSET:
                if type(tokens) is not int or not 1 <= tokens <= tokens_max:
                    return None
                request = _with_tokens(request, tokens)
                colons -= 1
            found.append(request)
        if namespace is not UNSET:
            colons -= 1 + namespace.count(":")
        return found if colons == 0 else None

    def _remember(self, request: CheckRequest) -> CheckRequest:
        scope, identifier, resource, *_ = request
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        names = scope, identifier, resource, request.namespace
        plain = CheckRequest(
            scope, identifier, resource, None, False, NO_METADATA, request.namespace
        )
        extra = scope.count(":") + identifier.count(":") + resource.count(":")
        self._known[names] = plain, 2 + extra
        return request

    def _parse_fully(self, body: bytes, parse: Callable[..., Any]) -> Any:
        def parsed(values: Any) -> Any:
            return parse(values, self._settings())

        return parsed(values_of(body, parsed))


def _with_tokens(request: CheckRequest, tokens: int) -> CheckRequest:
    """The request for so many tokens; `_replace` would take ten times as long."""
    scope, identifier, resource, _, _, metadata, namespace, _, _ = request
    values = (scope, identifier, resource, tokens, False, metadata, namespace, None, None)
    return tuple.__new__(CheckRequest, values)
