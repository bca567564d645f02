"""How the gRPC wire listens, and the bounds it keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path

from headgate.core.errors import ValidationError
from headgate.service.keys.authenticate__app_door import Entrance

NUMBER_MAX = 10**8
REJECTED_FROM = 4  # times `calls_max`: from there grpc itself rejects calls, before they are read


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM. With `client_ca` every client must show a certificate of that authority, and
    one that sends no key is recognised by the certificate's names."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """`port` 0 is any free one. With `share_port` the workers of one machine listen together.
    `reflection` tells anybody who can connect what can be called.

    Envoy lets a request pass that gets a gRPC error. So what its clients can make large or many
    must get as far as our own code, which answers: messages above `message_bytes_max` are received
    up to `receive_bytes_max` (Envoy's largest headers, 60 KiB, in twice as many descriptors as are
    decided at once), metadata has room for those headers, and calls beyond `calls_max` are answered
    at once.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: Tls | None = None
    reflection: bool = False
    share_port: bool = False
    message_bytes_max: int = 262_144
    receive_bytes_max: int = 2_097_152
    metadata_bytes_max: int = 65_536
    calls_max: int = 1_000
    streams_max: int = 256
    idle_s: int = 300
    grace_s: int = 5

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            least = 0 if one.name in ("port", "grace_s") else 1
            if one.type == "int" and (type(value) is not int or not least <= value <= NUMBER_MAX):
                raise ValidationError(
                    one.name, value, f"must be an int from {least} to {NUMBER_MAX}"
                )
        if self.port > 65_535:
            raise ValidationError("port", self.port, "must be from 0 to 65535")
        if self.message_bytes_max > self.receive_bytes_max:
            raise ValidationError(
                "message_bytes_max", self.message_bytes_max, "is more than receive_bytes_max"
            )

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def calls_accepted_max(self) -> int:
        return REJECTED_FROM * self.calls_max

    def must_suit(self, door: Entrance) -> None:
        """Without keys whoever is here may do everything, so nobody else may come."""
        if door.dev and not is_loopback(self.host):
            raise ValidationError(
                "host", self.host,
                "is open to other machines, and there are no keys; give keys or use 127.0.0.1",
            )  # fmt: skip

    def options(self) -> list[tuple[str, int]]:
        """What grpc is told."""
        return [
            ("grpc.max_receive_message_length", self.receive_bytes_max),
            ("grpc.max_metadata_size", self.metadata_bytes_max),
            ("grpc.absolute_max_metadata_size", self.metadata_bytes_max),
            ("grpc.max_concurrent_streams", self.streams_max),
            ("grpc.max_connection_idle_ms", self.idle_s * 1000),
            ("grpc.so_reuseport", int(self.share_port)),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
