"""A pool of message types for Envoy's alone, with the well-known types they are made of."""

from __future__ import annotations

from google.protobuf import duration_pb2, struct_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool

_POOL = DescriptorPool()
for _module in (duration_pb2, struct_pb2, wrappers_pb2):
    _POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)


def Default() -> DescriptorPool:  # noqa: N802  # generated stubs ask for it by this name
    return _POOL
