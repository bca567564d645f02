"""A service with nothing but the faster gRPC wire: `turbo_service.py STORE POLICIES PORT`."""

from __future__ import annotations

import asyncio
import sys

from headgate.service.app import Options, Program
from headgate.service.grpc_settings import GrpcSettings
from headgate.service.grpc_turbo_server import TurboServer


async def main(store: str, policies: str, port: str) -> None:
    program = Program.build(Options(store=store, policies=policies))
    await program.start()
    await TurboServer.start(program, GrpcSettings(port=int(port)))
    await asyncio.Event().wait()


asyncio.run(main(*sys.argv[1:]))
