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

from headgate.names import DEFAULT_NAMESPACE
from headgate.service.requests import (
    DEFAULT_SCOPE,
    NO_METADATA,
    BatchRequest,
    CheckRequest,
    parse_batch,
    parse_check,
)
from headgate.service.rest_read import values_of
from headgate.service.settings import Settings

KNOWN_MAX = 16_384

Names = tuple[str, str, str, str]


class Asked(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The fields most checks have. A number may be a float here, so that it is seen to be one."""

    identifier: str
    resource: str
    scope: str | UnsetType = UNSET
    tokens: int | float | UnsetType = UNSET
    namespace: str | UnsetType = UNSET


class AskedOfMany(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    requests: list[Asked]


_one = msgspec.json.Decoder(Asked).decode
_many = msgspec.json.Decoder(AskedOfMany).decode
_odd = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class Reader:
    """Bodies to requests, under the bounds of one service; bounded."""

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings
        self._known: dict[Names, CheckRequest] = {}

    def check(self, body: bytes) -> CheckRequest:
        try:
            asked = _one(body)
        except _odd:
            asked = None
        if asked is not None and b"\\" not in body:
            found = self._request(asked)
            if found is not None and body.count(b":") == _colons(asked):
                return found
        return self._remembered(self._long(body, parse_check))

    def batch(self, body: bytes) -> BatchRequest:
        try:
            asked = _many(body).requests
        except _odd:
            asked = []
        if 0 < len(asked) <= self._settings().batch_max and b"\\" not in body:
            found = self._requests(asked)
            if found is not None and body.count(b":") == 1 + sum(map(_colons, asked)):
                return BatchRequest(found)
        batch: BatchRequest = self._long(body, parse_batch)
        for one in batch.requests:
            self._remembered(one)
        return batch

    def _requests(self, asked: list[Asked]) -> tuple[CheckRequest, ...] | None:
        found = []
        for one in asked:
            request = self._request(one)
            if request is None or one.namespace is not UNSET:
                return None
            found.append(request)
        return tuple(found)

    def _request(self, asked: Asked) -> CheckRequest | None:
        """The request, if its names are known to be fine and its tokens are a number of them."""
        tokens = asked.tokens
        scope = DEFAULT_SCOPE if asked.scope is UNSET else asked.scope
        namespace = DEFAULT_NAMESPACE if asked.namespace is UNSET else asked.namespace
        known = self._known.get((scope, asked.identifier, asked.resource, namespace))
        if known is None or tokens is UNSET:
            return known
        if type(tokens) is not int or not 1 <= tokens <= self._settings().tokens_max:
            return None
        return known._replace(tokens=tokens)

    def _remembered(self, request: CheckRequest) -> CheckRequest:
        scope, identifier, resource, *_ = request
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        names = scope, identifier, resource, request.namespace
        self._known[names] = CheckRequest(
            scope, identifier, resource, None, False, NO_METADATA, request.namespace
        )
        return request

    def _long(self, body: bytes, parse: Callable[..., Any]) -> Any:
        def parsed(values: Any) -> Any:
            return parse(values, self._settings())

        return parsed(values_of(body, parsed))


def _colons(asked: Asked) -> int:
    """How many colons a body has that says this and nothing twice: one per key, and those in names.
    A key that is there twice is one colon too many, which the fields alone would not show."""
    found = 2 + asked.identifier.count(":") + asked.resource.count(":")
    if asked.scope is not UNSET:
        found += 1 + asked.scope.count(":")
    if asked.tokens is not UNSET:
        found += 1
    if asked.namespace is not UNSET:
        found += 1 + asked.namespace.count(":")
    return found
