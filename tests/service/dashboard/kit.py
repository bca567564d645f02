"""A service with its dashboard on a free port, and a REST client to prepare it with."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from headgate.core.runtime import run
from headgate.service.dashboard import Dashboard, FaultSwitch
from headgate.service.demo.program import Demo, StoreSwitch, program_on, traffic_starter
from headgate.service.http.asgi import Rest
from headgate.service.keys.file import FileKeys
from headgate.service.keys.key import mint, parse_grant
from headgate.service.program import Options, Program
from tests.service.http.kit import served

SPACE = "/v1/namespaces/default"


class Place:
    """A running service."""

    def __init__(self, url: str, program: Program, key: str | None = None) -> None:
        self.url = url
        self.program = program
        self.key = key

    def page(self, name: str) -> str:
        return f"{self.url}/ui/#/{name}"

    def send(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, header fields and content."""
        with self.asked(method, path, body, **headers) as reply:
            fields = {name.lower(): value for name, value in reply.getheaders()}
            return reply.status, fields, reply.read()

    @contextmanager
    def asked(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """The reply whose content is still to come: to a path as it is, and no further."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            fields["content-type"] = "application/json"
        if self.key is not None:
            fields["x-api-key"] = self.key
        data = None if body is None else json.dumps(body)
        line = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=20)
        line.request(method, path, data, fields)
        with closing(line), line.getresponse() as reply:
            yield reply

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer to a request that must be well."""
        status, _, content = self.send(method, path, body)
        assert status < 300, (status, content)
        return json.loads(content) if content else None

    def limit(
        self, where: str, capacity: int, amount: int = 1, seconds: int = 60, name: str = "tokens"
    ) -> None:
        """Stores one limit at a level."""
        one = {
            "name": name,
            "capacity": capacity,
            "refill_amount": amount,
            "refill_period_seconds": seconds,
        }
        self.ask("PUT", f"{SPACE}/limits/{where}", {"limits": [one]})

    def check(self, identifier: str, resource: str, tokens: int = 1) -> int:
        body = {"identifier": identifier, "resource": resource, "tokens": tokens}
        return self.send("POST", "/v1/ratelimit/take", body)[0]


@contextmanager
def dashboard(
    key: str | None = None, *, switch: FaultSwitch | None = None, **options: Any
) -> Iterator[Place]:
    program = Program.build(Options(**{"store": "memory://", **options}))
    with shown(program, key, switch=switch) as place:
        yield place


@contextmanager
def shown(
    program: Program, key: str | None = None, *, switch: FaultSwitch | None = None
) -> Iterator[Place]:
    """The dashboard of a program of one's own."""
    board = Dashboard(program, switch)
    with served(board.before(Rest(program)), lifespan="on") as (url, server):
        board.leaving = lambda: server.should_exit
        yield Place(url, program, key)


def key_in(file: Path, scope: str, namespace: str) -> str:
    made = mint(parse_grant([scope], namespace, None), now_ms=0)
    run(FileKeys(file, create=True).put(made.key))
    return made.text


@contextmanager
def demo(rate: int = 5, *, traffic: bool = True) -> Iterator[Place]:
    """With bob in debt for hours, whatever the traffic does."""
    with tempfile.TemporaryDirectory() as folder:
        switch = StoreSwitch()
        program = program_on(folder, switch)
        board = Dashboard(program, switch)
        rest = Rest(program, traffic_starter(program, Demo(rate=rate, traffic=traffic)))
        with served(board.before(rest), lifespan="on") as (url, server):
            board.leaving = lambda: server.should_exit
            place = Place(url, program)
            asked = {"scope": "user", "identifier": "bob", "resource": "gpt-4-mini"}
            taken = place.ask("POST", "/v1/leases", {**asked, "amounts": {"rpm": 1, "tpm": 100}})
            owed = {"amounts": {"tpm": 400_000}}
            place.ask("POST", f"/v1/leases/{taken['lease_id']}/adjust", owed)
            yield place
