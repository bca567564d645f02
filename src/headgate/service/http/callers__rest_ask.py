"""One request of a cold route, already recognised and read: what a handler works with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from headgate.core.limits__names import DEFAULT_NAMESPACE
from headgate.service.decide.namespaces import Room
from headgate.service.decide.problems import invalid
from headgate.service.decide.requests__fields import parse_identifier, parse_object, parse_scope
from headgate.service.decide.service import Service
from headgate.service.decide.targets__identity import entity_id_of
from headgate.service.keys.access import Caller
from headgate.service.keys.key import ANY_NAMESPACE, Scope
from headgate.service.program import Program


class Ask(NamedTuple):
    """`path` and `query` hold texts (or whole numbers), `values` the JSON body."""

    program: Program
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    values: Any = None

    @property
    def service(self) -> Service:
        return self.program.service

    @property
    def principal(self) -> str:
        return self.caller.principal

    async def room(self) -> Room:
        return await self.service.room(self.path["namespace"])

    def fields(
        self, *known: str, needed: tuple[str, ...] = (), nullable: tuple[str, ...] = ()
    ) -> Mapping[str, Any]:
        """The body's fields; unknown ones, missing ones and nulls are errors."""
        found = parse_object(self.values, frozenset(known), frozenset(nullable))
        for name in needed:
            if name not in found:
                raise invalid(name, "is missing")
        return found


Document = dict[str, Any] | bytes | None
Handler = Callable[[Ask], Awaitable[Document]]
Place = Callable[[Ask], tuple[str | None, str | None]]


def whole(ask: Ask) -> tuple[str | None, str | None]:
    """The service as a whole."""
    return None, None


def namespace(ask: Ask) -> tuple[str | None, str | None]:
    """A namespace as a whole."""
    return ask.path["namespace"], None


def entity(ask: Ask) -> tuple[str | None, str | None]:
    """The entity that the path, the query or the body names; without one, the namespace."""
    found = ask.path.get("entity_id") or ask.query.get("entity_id")
    if found is None and isinstance(ask.values, Mapping):
        found = ask.values.get("entity_id") or ask.values.get("id")
    return ask.path["namespace"], found if isinstance(found, str) else None


def identity(ask: Ask) -> tuple[str | None, str | None]:
    """The entity that the query names, or the one behind its scope and identifier."""
    entity_id = ask.query.get("entity_id")
    if entity_id is not None:
        return ask.query.get("namespace", DEFAULT_NAMESPACE), entity_id
    scope = parse_scope(ask.query.get("scope", "user"))
    identifier = parse_identifier(ask.query.get("identifier"))
    return ask.query.get("namespace", DEFAULT_NAMESPACE), entity_id_of(scope, identifier)


def own(ask: Ask) -> tuple[str | None, str | None]:
    """Wherever the caller may act: for routes that look at each thing by themselves."""
    grant = ask.caller.grant
    return None if grant.namespace == ANY_NAMESPACE else grant.namespace, grant.entity_prefix


class Endpoint(NamedTuple):
    """One route: how it is reached, who may, what it takes, what it answers.

    `needs` None is for everybody. `body` and `answer` name schemas of the OpenAPI document; `body`
    None takes none. `problems` are codes beyond those that every route has.
    """

    method: str
    path: str
    summary: str
    needs: Scope | None
    place: Place
    handler: Handler | None
    query: Mapping[str, type] = {}
    required: tuple[str, ...] = ()
    body: str | None = None
    answer: str | None = None
    status: int = 200
    problems: tuple[str, ...] = ()
    tag: str = "admin"
