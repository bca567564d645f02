"""A service with nothing but the faster gRPC wire: `turbo_service.py STORE POLICIES PORT`."""

from __future__ import annotations

import asyncio
import sys

from headgate.service.grpc.guard import GrpcSettings
from headgate.service.grpc.turbo import TurboServer
from headgate.service.program import Options, Program


async def main(store: str, policies: str, port: str) -> None:
    program = Program.build(Options(store=store, policies=policies))
    await program.start()
    await TurboServer.start(program, GrpcSettings(port=int(port)))
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
