"""A gRPC server to measure: `python -m bench.grpc_server echo|service`.

Says its port, then its CPU seconds for every line it reads, and ends with the input.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import grpc

from headgate import Limit
from headgate.service.decide.rules import GLOBAL, TOKENS, Rule, Rules
from headgate.service.grpc.guard import GrpcSettings
from headgate.service.grpc.server import GrpcServer
from headgate.service.program import Options, Program

ECHO = "/bench.Echo/Echo"


def main() -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(sys.argv[1]))
    else:
        uvloop.run(serve(sys.argv[1]))


async def serve(what: str) -> None:
    port, stop = await (echo() if what == "echo" else service())
    print(port, flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(time.process_time(), flush=True)
    await stop()


async def echo() -> tuple[int, Any]:
    """What grpcio alone can do: bytes in, the same bytes out."""

    async def say(request: bytes, context: Any) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(say)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return port, lambda: server.stop(0)


async def service() -> tuple[int, Any]:
    program = Program.build(Options(store="memory://"))
    program.service.rules = Rules(
        Rule("all", [Limit(TOKENS, 10**9, 10**6, 1)], level=GLOBAL)  # nobody is refused
    )
    await program.start()
    server = await GrpcServer.start(program, GrpcSettings(grace_s=0))
    return server.port, server.stop


if __name__ == "__main__":
    main()
