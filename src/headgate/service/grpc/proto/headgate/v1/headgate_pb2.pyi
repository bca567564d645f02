# Made by tools/generate_stubs.py; do not edit.
# fmt: off
# ruff: noqa
# mypy: disable-error-code="type-arg"
import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChargeMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHARGE_MODE_UNSPECIFIED: _ClassVar[ChargeMode]
    CHARGE_MODE_DEBT: _ClassVar[ChargeMode]
    CHARGE_MODE_FIT: _ClassVar[ChargeMode]

class OnExpiry(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_EXPIRY_UNSPECIFIED: _ClassVar[OnExpiry]
    ON_EXPIRY_REFUND: _ClassVar[OnExpiry]
    ON_EXPIRY_KEEP: _ClassVar[OnExpiry]
CHARGE_MODE_UNSPECIFIED: ChargeMode
CHARGE_MODE_DEBT: ChargeMode
CHARGE_MODE_FIT: ChargeMode
ON_EXPIRY_UNSPECIFIED: OnExpiry
ON_EXPIRY_REFUND: OnExpiry
ON_EXPIRY_KEEP: OnExpiry

class CheckRateLimitRequest(_message.Message):
    __slots__ = ("identifier", "resource", "tokens", "scope", "dry_run", "metadata", "endpoint", "namespace", "amounts", "entity")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    resource: str
    tokens: int
    scope: str
    dry_run: bool
    metadata: _containers.ScalarMap[str, str]
    endpoint: str
    namespace: str
    amounts: _containers.ScalarMap[str, int]
    entity: str
    def __init__(self, identifier: _Optional[str] = ..., resource: _Optional[str] = ..., tokens: _Optional[int] = ..., scope: _Optional[str] = ..., dry_run: _Optional[bool] = ..., metadata: _Optional[_Mapping[str, str]] = ..., endpoint: _Optional[str] = ..., namespace: _Optional[str] = ..., amounts: _Optional[_Mapping[str, int]] = ..., entity: _Optional[str] = ...) -> None: ...

class CheckRateLimitResponse(_message.Message):
    __slots__ = ("allowed", "tokens_remaining", "tokens_capacity", "retry_after_seconds", "reset_at", "degraded", "degraded_reason", "warning", "shadowed", "dry_run", "error", "limits", "scope", "resource", "tokens", "entity")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_REMAINING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    SHADOWED_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    tokens_remaining: int
    tokens_capacity: int
    retry_after_seconds: float
    reset_at: _timestamp_pb2.Timestamp
    degraded: bool
    degraded_reason: str
    warning: str
    shadowed: bool
    dry_run: bool
    error: Refusal
    limits: _containers.RepeatedCompositeFieldContainer[AppliedLimit]
    scope: str
    resource: str
    tokens: int
    entity: str
    def __init__(self, allowed: _Optional[bool] = ..., tokens_remaining: _Optional[int] = ..., tokens_capacity: _Optional[int] = ..., retry_after_seconds: _Optional[float] = ..., reset_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., degraded: _Optional[bool] = ..., degraded_reason: _Optional[str] = ..., warning: _Optional[str] = ..., shadowed: _Optional[bool] = ..., dry_run: _Optional[bool] = ..., error: _Optional[_Union[Refusal, _Mapping]] = ..., limits: _Optional[_Iterable[_Union[AppliedLimit, _Mapping]]] = ..., scope: _Optional[str] = ..., resource: _Optional[str] = ..., tokens: _Optional[int] = ..., entity: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class AppliedLimit(_message.Message):
    __slots__ = ("name", "capacity", "remaining", "window_seconds", "wait_ms", "reset_at", "exceeded", "shadow")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    WINDOW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    RESET_AT_FIELD_NUMBER: _ClassVar[int]
    EXCEEDED_FIELD_NUMBER: _ClassVar[int]
    SHADOW_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity: int
    remaining: int
    window_seconds: int
    wait_ms: int
    reset_at: _timestamp_pb2.Timestamp
    exceeded: bool
    shadow: bool
    def __init__(self, name: _Optional[str] = ..., capacity: _Optional[int] = ..., remaining: _Optional[int] = ..., window_seconds: _Optional[int] = ..., wait_ms: _Optional[int] = ..., reset_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., exceeded: _Optional[bool] = ..., shadow: _Optional[bool] = ...) -> None: ...

class BatchCheckRateLimitRequest(_message.Message):
    __slots__ = ("requests", "namespace")
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[CheckRateLimitRequest]
    namespace: str
    def __init__(self, requests: _Optional[_Iterable[_Union[CheckRateLimitRequest, _Mapping]]] = ..., namespace: _Optional[str] = ...) -> None: ...

class BatchCheckRateLimitResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[BatchResult]
    def __init__(self, results: _Optional[_Iterable[_Union[BatchResult, _Mapping]]] = ...) -> None: ...

class BatchResult(_message.Message):
    __slots__ = ("answer", "problem")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    answer: CheckRateLimitResponse
    problem: Problem
    def __init__(self, answer: _Optional[_Union[CheckRateLimitResponse, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "detail", "field", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    detail: str
    field: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., detail: _Optional[str] = ..., field: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class Descriptor(_message.Message):
    __slots__ = ("scope", "resource", "identifier", "tokens", "amounts", "entity")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    scope: str
    resource: str
    identifier: str
    tokens: int
    amounts: _containers.ScalarMap[str, int]
    entity: str
    def __init__(self, scope: _Optional[str] = ..., resource: _Optional[str] = ..., identifier: _Optional[str] = ..., tokens: _Optional[int] = ..., amounts: _Optional[_Mapping[str, int]] = ..., entity: _Optional[str] = ...) -> None: ...

class CheckAllRequest(_message.Message):
    __slots__ = ("descriptors", "identifier", "scope", "tokens", "dry_run", "metadata", "endpoint", "namespace")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    descriptors: _containers.RepeatedCompositeFieldContainer[Descriptor]
    identifier: str
    scope: str
    tokens: int
    dry_run: bool
    metadata: _containers.ScalarMap[str, str]
    endpoint: str
    namespace: str
    def __init__(self, descriptors: _Optional[_Iterable[_Union[Descriptor, _Mapping]]] = ..., identifier: _Optional[str] = ..., scope: _Optional[str] = ..., tokens: _Optional[int] = ..., dry_run: _Optional[bool] = ..., metadata: _Optional[_Mapping[str, str]] = ..., endpoint: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class CheckAllResponse(_message.Message):
    __slots__ = ("allowed", "results", "blocking", "most_restrictive", "retry_after_seconds", "degraded", "degraded_reason", "dry_run", "error")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    BLOCKING_FIELD_NUMBER: _ClassVar[int]
    MOST_RESTRICTIVE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    results: _containers.RepeatedCompositeFieldContainer[CheckRateLimitResponse]
    blocking: int
    most_restrictive: int
    retry_after_seconds: float
    degraded: bool
    degraded_reason: str
    dry_run: bool
    error: Refusal
    def __init__(self, allowed: _Optional[bool] = ..., results: _Optional[_Iterable[_Union[CheckRateLimitResponse, _Mapping]]] = ..., blocking: _Optional[int] = ..., most_restrictive: _Optional[int] = ..., retry_after_seconds: _Optional[float] = ..., degraded: _Optional[bool] = ..., degraded_reason: _Optional[str] = ..., dry_run: _Optional[bool] = ..., error: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class ChargeRequest(_message.Message):
    __slots__ = ("identifier", "resource", "tokens", "scope", "amounts", "entity", "descriptors", "mode", "idempotency_key", "metadata", "endpoint", "namespace")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTORS_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    resource: str
    tokens: int
    scope: str
    amounts: _containers.ScalarMap[str, int]
    entity: str
    descriptors: _containers.RepeatedCompositeFieldContainer[Descriptor]
    mode: ChargeMode
    idempotency_key: str
    metadata: _containers.ScalarMap[str, str]
    endpoint: str
    namespace: str
    def __init__(self, identifier: _Optional[str] = ..., resource: _Optional[str] = ..., tokens: _Optional[int] = ..., scope: _Optional[str] = ..., amounts: _Optional[_Mapping[str, int]] = ..., entity: _Optional[str] = ..., descriptors: _Optional[_Iterable[_Union[Descriptor, _Mapping]]] = ..., mode: _Optional[_Union[ChargeMode, str]] = ..., idempotency_key: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., endpoint: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class ChargeResponse(_message.Message):
    __slots__ = ("check", "combined", "charged", "mode", "retry_after_seconds")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    COMBINED_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    check: CheckRateLimitResponse
    combined: CheckAllResponse
    charged: bool
    mode: ChargeMode
    retry_after_seconds: float
    def __init__(self, check: _Optional[_Union[CheckRateLimitResponse, _Mapping]] = ..., combined: _Optional[_Union[CheckAllResponse, _Mapping]] = ..., charged: _Optional[bool] = ..., mode: _Optional[_Union[ChargeMode, str]] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("identifier", "resource", "tokens", "scope", "amounts", "ttl_seconds", "on_expiry", "metadata", "endpoint", "namespace", "entity")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IDENTIFIER_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ON_EXPIRY_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    ENTITY_FIELD_NUMBER: _ClassVar[int]
    identifier: str
    resource: str
    tokens: int
    scope: str
    amounts: _containers.ScalarMap[str, int]
    ttl_seconds: int
    on_expiry: OnExpiry
    metadata: _containers.ScalarMap[str, str]
    endpoint: str
    namespace: str
    entity: str
    def __init__(self, identifier: _Optional[str] = ..., resource: _Optional[str] = ..., tokens: _Optional[int] = ..., scope: _Optional[str] = ..., amounts: _Optional[_Mapping[str, int]] = ..., ttl_seconds: _Optional[int] = ..., on_expiry: _Optional[_Union[OnExpiry, str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., endpoint: _Optional[str] = ..., namespace: _Optional[str] = ..., entity: _Optional[str] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("check", "lease")
    CHECK_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    check: CheckRateLimitResponse
    lease: Lease
    def __init__(self, check: _Optional[_Union[CheckRateLimitResponse, _Mapping]] = ..., lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("lease_id", "tokens", "amounts", "namespace")
    class AmountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    AMOUNTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    tokens: int
    amounts: _containers.ScalarMap[str, int]
    namespace: str
    def __init__(self, lease_id: _Optional[str] = ..., tokens: _Optional[int] = ..., amounts: _Optional[_Mapping[str, int]] = ..., namespace: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("lease_id", "state", "expires_at", "held", "degraded")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Lease.State]
        STATE_OPEN: _ClassVar[Lease.State]
        STATE_SETTLED: _ClassVar[Lease.State]
        STATE_RELEASED: _ClassVar[Lease.State]
    STATE_UNSPECIFIED: Lease.State
    STATE_OPEN: Lease.State
    STATE_SETTLED: Lease.State
    STATE_RELEASED: Lease.State
    class HeldEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    state: Lease.State
    expires_at: _timestamp_pb2.Timestamp
    held: _containers.ScalarMap[str, int]
    degraded: bool
    def __init__(self, lease_id: _Optional[str] = ..., state: _Optional[_Union[Lease.State, str]] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., held: _Optional[_Mapping[str, int]] = ..., degraded: _Optional[bool] = ...) -> None: ...

class HealthCheckRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("status", "ready", "storage_available", "circuit_breaker", "policies_in_force", "leases")
    class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATUS_UNSPECIFIED: _ClassVar[HealthCheckResponse.Status]
        HEALTHY: _ClassVar[HealthCheckResponse.Status]
        DEGRADED: _ClassVar[HealthCheckResponse.Status]
        UNHEALTHY: _ClassVar[HealthCheckResponse.Status]
    STATUS_UNSPECIFIED: HealthCheckResponse.Status
    HEALTHY: HealthCheckResponse.Status
    DEGRADED: HealthCheckResponse.Status
    UNHEALTHY: HealthCheckResponse.Status
    STATUS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STORAGE_AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    CIRCUIT_BREAKER_FIELD_NUMBER: _ClassVar[int]
    POLICIES_IN_FORCE_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    status: HealthCheckResponse.Status
    ready: bool
    storage_available: bool
    circuit_breaker: str
    policies_in_force: bool
    leases: int
    def __init__(self, status: _Optional[_Union[HealthCheckResponse.Status, str]] = ..., ready: _Optional[bool] = ..., storage_available: _Optional[bool] = ..., circuit_breaker: _Optional[str] = ..., policies_in_force: _Optional[bool] = ..., leases: _Optional[int] = ...) -> None: ...
