"""`python -m bench.dynamodb_clients [--quick]`: what a DynamoDB client costs, on one UpdateItem.

Each contestant sends the same conditional UpdateItem to a server in a process of its own that
answers every request with the same reply, `callers` at a time. CPU is this process's own
(`process_time`), so the server's is not in it; where a client works in threads of its own, those
are. A contestant that is not installed is left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from email.utils import formatdate
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bench import machine
from bench.table import aim, show, show_aims
from headgate.core.runtime import run
from headgate.stores.dynamodb.client import calls as port_flow
from headgate.stores.dynamodb.client.account import CONTENT_TYPE, TARGET, ServiceClock, Signer
from headgate.stores.dynamodb.client.calls import DynamoRequest, open_port

CALLERS = (1, 32)
REGION = "us-east-1"
PARAMS: dict[str, Any] = {
    "TableName": "limits",
    "Key": {"PK": {"S": "default/BUCKET#key-1#gpt-4#0"}, "SK": {"S": "#STATE"}},
    "UpdateExpression": "ADD b_rpm_tk :a0, b_rpm_tc :c0, b_tpm_tk :a1, b_tpm_tc :c1",
    "ConditionExpression": "rf = :rf AND g = :g AND b_rpm_tk BETWEEN :l0 AND :h0 "
    "AND b_tpm_tk BETWEEN :l1 AND :h1",
    "ExpressionAttributeValues": {
        **{f":{name}": {"N": "-1000"} for name in ("a0", "c0", "a1", "c1")},
        **{f":{name}": {"N": "1767225600000"} for name in ("rf", "g", "l0", "h0", "l1", "h1")},
    },
    "ReturnValues": "ALL_NEW",
    "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
}
ITEM = PARAMS["Key"] | {
    f"b_{limit}_{field}": {"N": "12345678"}
    for limit in ("rpm", "tpm")
    for field in ("tk", "cp", "ra", "rp", "tc")
}
ITEM |= {"rf": {"N": "1767225600000"}, "g": {"N": "1"}, "ttl": {"N": "1767229200"}}
REQUEST = DynamoRequest("UpdateItem", PARAMS)
OURS, OURS_BLOCKING = "headgate async", "headgate blocking"

Call = Callable[[], Any]


class Canned(asyncio.Protocol):
    """Answers every request with the same item."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._kept = b""
        body = json.dumps({"Attributes": ITEM}, separators=(",", ":")).encode()
        self._reply = (
            f"HTTP/1.1 200 OK\r\nServer: Server\r\nDate: {formatdate(usegmt=True)}\r\n"
            f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
            f"Connection: keep-alive\r\nx-amzn-RequestId: {'A' * 52}\r\n\r\n"
        ).encode() + body

    def data_received(self, data: bytes) -> None:
        self._kept += data
        end = self._kept.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._kept[:end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self._kept) >= end + 4 + length:
            self._kept = b""
            self._transport.write(self._reply)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    command = [sys.executable, "-m", "bench.dynamodb_clients", "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextlib.asynccontextmanager
async def ours(url: str) -> Any:
    port = open_port(region=REGION, endpoint=url, blocking=False, connections=32)
    yield lambda: port.call(REQUEST)
    await port.close()


@contextlib.asynccontextmanager
async def ours_json(url: str) -> Any:
    plain = mock.patch.multiple(port_flow, dumps=port_flow.python_dumps, loads=json.loads)
    with plain:
        async with ours(url) as call:
            yield call


@contextlib.asynccontextmanager
async def aiobotocore(url: str) -> Any:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    config = AioConfig(max_pool_connections=64, retries={"total_max_attempts": 1})
    made = get_session().create_client(
        "dynamodb", region_name=REGION, endpoint_url=url, config=config
    )
    async with made as client:
        yield lambda: client.update_item(**PARAMS)


@contextlib.asynccontextmanager
async def aiohttp_signed(url: str) -> Any:
    import aiohttp

    signer = signer_of(url)
    async with aiohttp.ClientSession() as session:

        async def call() -> Any:
            body = port_flow.dumps(PARAMS)
            async with session.post(url, data=body, headers=signed(signer, body)) as reply:
                return port_flow.loads(await reply.read())

        yield call


@contextlib.asynccontextmanager
async def httpx_signed(url: str) -> Any:
    import httpx

    signer = signer_of(url)
    async with httpx.AsyncClient() as client:

        async def call() -> Any:
            body = port_flow.dumps(PARAMS)
            reply = await client.post(url, content=body, headers=signed(signer, body))
            return port_flow.loads(reply.content)

        yield call


@contextlib.asynccontextmanager
async def aiodynamo(url: str) -> Any:
    import aiohttp
    from aiodynamo.client import Client
    from aiodynamo.credentials import Key, StaticCredentials
    from aiodynamo.expressions import F
    from aiodynamo.http.aiohttp import AIOHTTP
    from aiodynamo.models import ReturnValues
    from yarl import URL

    key = {"PK": PARAMS["Key"]["PK"]["S"], "SK": "#STATE"}
    update = F("b_rpm_tk").add(-1000) & F("b_rpm_tc").add(1000)
    update &= F("b_tpm_tk").add(-1000) & F("b_tpm_tc").add(1000)
    condition = F("rf").equals(1) & F("g").equals(1)
    condition &= F("b_rpm_tk").between(1, 2) & F("b_tpm_tk").between(1, 2)
    async with aiohttp.ClientSession() as session:
        credentials = StaticCredentials(Key("test", "test"))
        client = Client(AIOHTTP(session), credentials, REGION, endpoint=URL(url))
        yield lambda: client.update_item(
            "limits", key, update, return_values=ReturnValues.all_new, condition=condition
        )


@contextlib.asynccontextmanager
async def pydynox(url: str) -> Any:
    from pydynox import DynamoDBClient

    client = DynamoDBClient(
        region=REGION, access_key="test", secret_key="test", endpoint_url=url, max_retries=1
    )
    values = {name: int(value["N"]) for name, value in PARAMS["ExpressionAttributeValues"].items()}
    yield lambda: client.update_item(
        "limits",
        {"PK": PARAMS["Key"]["PK"]["S"], "SK": "#STATE"},
        update_expression=PARAMS["UpdateExpression"],
        condition_expression=PARAMS["ConditionExpression"],
        expression_attribute_values=values,
        return_values="ALL_NEW",
    )


@contextlib.contextmanager
def blocking_ours(url: str) -> Iterator[Call]:
    port = open_port(region=REGION, endpoint=url, blocking=True, connections=32)
    yield lambda: run(port.call(REQUEST))
    run(port.close())


def _boto_client(url: str) -> Any:
    import botocore.config
    import botocore.session

    config = botocore.config.Config(max_pool_connections=64, retries={"total_max_attempts": 1})
    session = botocore.session.get_session()
    return session.create_client("dynamodb", region_name=REGION, endpoint_url=url, config=config)


@contextlib.contextmanager
def botocore_client(url: str) -> Iterator[Call]:
    client = _boto_client(url)
    yield lambda: client.update_item(**PARAMS)
    client.close()


@contextlib.contextmanager
def botocore_hooked(url: str) -> Iterator[Call]:
    """botocore checks and encodes; its `before-call` hook is answered by a connection of ours."""
    client = _boto_client(url)
    with http_client(url) as call:

        def answer(params: dict[str, Any], **_: Any) -> tuple[Any, Any]:
            return SimpleNamespace(status_code=200), call(params["body"])

        client.meta.events.register("before-call.dynamodb.UpdateItem", answer)
        yield lambda: client.update_item(**PARAMS)
    client.close()


@contextlib.contextmanager
def http_client(url: str) -> Iterator[Any]:
    signer, place = signer_of(url), url.removeprefix("http://")
    local = threading.local()
    made: list[http.client.HTTPConnection] = []

    def call(body: bytes | None = None) -> Any:
        if not hasattr(local, "connection"):
            local.connection = http.client.HTTPConnection(place)
            made.append(local.connection)
        body = body or port_flow.dumps(PARAMS)
        local.connection.request("POST", "/", body, signed(signer, body))
        return port_flow.loads(local.connection.getresponse().read())

    yield call
    for connection in made:
        connection.close()


def signer_of(url: str) -> Signer:
    return Signer("test", "test", None, REGION, url.removeprefix("http://"), ServiceClock())


def signed(signer: Signer, body: bytes) -> dict[str, str]:
    head = signer.signed_request("UpdateItem", body).partition(b"\r\n\r\n")[0].decode()
    proof = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
    assert proof["X-Amz-Target"].startswith(TARGET)
    return {name: proof[name] for name in proof if name not in ("Host", "Content-Length")}


ASYNC: dict[str, tuple[str, Callable[[str], Any]]] = {
    "aiobotocore": ("aiobotocore", aiobotocore),
    "aiodynamo on aiohttp": ("aiodynamo", aiodynamo),
    "httpx, our signing": ("httpx", httpx_signed),
    "aiohttp, our signing": ("aiohttp", aiohttp_signed),
    "pydynox": ("pydynox", pydynox),
    "headgate async, stdlib json": ("botocore", ours_json),
    OURS: ("botocore", ours),
}
BLOCKING: dict[str, Callable[[str], Any]] = {
    "botocore": botocore_client,
    "botocore, before-call hook": botocore_hooked,
    "http.client, our signing": http_client,
    OURS_BLOCKING: blocking_ours,
}
LIBRARIES = ("botocore", "aiobotocore", "aiodynamo", "aiohttp", "httpx", "pydynox", "orjson")


def measure_async(opened: Callable[[str], Any], url: str, callers: int, calls: int) -> Any:
    async def caller(call: Callable[[], Awaitable[Any]], times: int) -> None:
        for _ in range(times):
            await call()

    async def main() -> tuple[float, float]:
        async with opened(url) as call:
            await asyncio.gather(*(caller(call, 3) for _ in range(callers)))
            cpu_s, start_s = time.process_time(), time.perf_counter()
            await asyncio.gather(*(caller(call, calls // callers) for _ in range(callers)))
            return _figures(cpu_s, start_s, calls // callers * callers)

    return asyncio.run(main())


def measure_threads(call: Call, callers: int, calls: int) -> tuple[float, float]:
    def caller(times: int) -> None:
        for _ in range(times):
            call()

    caller(3)
    threads = [threading.Thread(target=caller, args=(calls // callers,)) for _ in range(callers)]
    cpu_s, start_s = time.process_time(), time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _figures(cpu_s, start_s, calls // callers * callers)


def _figures(cpu_s: float, start_s: float, done: int) -> tuple[float, float]:
    """Calls per second and CPU in us per call."""
    spent_s = time.perf_counter() - start_s
    return done / spent_s, (time.process_time() - cpu_s) / done * 1e6


Figures = dict[str, dict[int, tuple[float, float]]]


def contest(url: str, calls: int, rounds: int) -> Figures:
    """The best of some rounds; contestants take turns so that noise hits all alike."""
    figures: Figures = {}
    for _ in range(rounds):
        for callers in CALLERS:
            for name, (module, opened) in ASYNC.items():
                if importlib.util.find_spec(module) is not None:
                    _keep(figures, name, callers, measure_async(opened, url, callers, calls))
            for name, opened_blocking in BLOCKING.items():
                with opened_blocking(url) as call:
                    _keep(figures, name, callers, measure_threads(call, callers, calls))
    return figures


def _keep(figures: Figures, name: str, callers: int, measured: tuple[float, float]) -> None:
    seen = figures.setdefault(name, {}).get(callers, measured)
    figures[name][callers] = max(seen[0], measured[0]), min(seen[1], measured[1])


def signing_us(times: int) -> tuple[float, float]:
    """CPU of one signature, ours and botocore's."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    signer, body = signer_of("http://h"), port_flow.dumps(PARAMS)
    auth = SigV4Auth(Credentials("test", "test"), "dynamodb", REGION)
    headers = {"X-Amz-Target": TARGET + "UpdateItem", "Content-Type": CONTENT_TYPE}

    def per_call(work: Call) -> float:
        cpu_s = time.process_time()
        for _ in range(times):
            work()
        return (time.process_time() - cpu_s) / times * 1e6

    mine = per_call(lambda: signer.signed_request("UpdateItem", body))
    theirs = per_call(lambda: auth.add_auth(AWSRequest("POST", "https://h/", headers, body)))
    return mine, theirs


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.dynamodb_clients")
    parser.add_argument("--quick", action="store_true", help="a smoke run; its figures say little")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve())
        return
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    for name, text in machine.about().items():
        print(f"{name:8}{text}")
    print("clients " + ", ".join(f"{name} {machine.version(name)}" for name in LIBRARIES))
    calls, rounds = (320, 1) if arguments.quick else (3200, arguments.rounds)
    with endpoint() as url:
        figures = contest(url, calls, rounds)
    report(figures)
    mine, theirs = signing_us(calls)
    print(f"\none signature: {mine:.1f} us ours, {theirs:.1f} us botocore's")
    print(f"load at the end {machine.load()}")


def report(figures: Figures) -> None:
    heads = ["client", *(f"calls/s @{count}" for count in CALLERS)]
    heads += [f"CPU us @{count}" for count in CALLERS]
    rows = []
    for name, by_callers in figures.items():
        speeds = [f"{by_callers[count][0]:,.0f}" for count in CALLERS]
        rows.append([name, *speeds, *(by_callers[count][1] for count in CALLERS)])
    show("one conditional UpdateItem, canned reply", heads, rows)
    show_aims([each for count in CALLERS for each in _aims(figures, count)])


def _aims(figures: Figures, callers: int) -> Iterator[dict[str, object]]:
    for name in (OURS, OURS_BLOCKING):
        cpu_us = figures[name][callers][1]
        yield aim(f"{name}: CPU per call at {callers} <= 180 us", f"{cpu_us:.0f} us", cpu_us <= 180)


if __name__ == "__main__":
    main()
