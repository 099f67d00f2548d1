from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProfileRequest(_message.Message):
    __slots__ = ("steps", "limit_ms")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    limit_ms: int
    def __init__(self, steps: _Optional[int] = ..., limit_ms: _Optional[int] = ...) -> None: ...

class ProfileResponse(_message.Message):
    __slots__ = ("summary", "trace", "idle")
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    IDLE_FIELD_NUMBER: _ClassVar[int]
    summary: ProfileSummary
    trace: bytes
    idle: bool
    def __init__(self, summary: _Optional[_Union[ProfileSummary, _Mapping]] = ..., trace: _Optional[bytes] = ..., idle: _Optional[bool] = ...) -> None: ...

class ProfileSummary(_message.Message):
    __slots__ = ("steps", "worker", "kernels")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    KERNELS_FIELD_NUMBER: _ClassVar[int]
    steps: int
    worker: str
    kernels: _containers.RepeatedCompositeFieldContainer[ProfiledKernel]
    def __init__(self, steps: _Optional[int] = ..., worker: _Optional[str] = ..., kernels: _Optional[_Iterable[_Union[ProfiledKernel, _Mapping]]] = ...) -> None: ...

class ProfiledKernel(_message.Message):
    __slots__ = ("kind", "name", "calls", "time_us", "bytes")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[ProfiledKernel.Kind]
        KIND_OPERATION: _ClassVar[ProfiledKernel.Kind]
        KIND_KERNEL: _ClassVar[ProfiledKernel.Kind]
    KIND_UNSPECIFIED: ProfiledKernel.Kind
    KIND_OPERATION: ProfiledKernel.Kind
    KIND_KERNEL: ProfiledKernel.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: ProfiledKernel.Kind
    name: str
    calls: int
    time_us: float
    bytes: int
    def __init__(self, kind: _Optional[_Union[ProfiledKernel.Kind, str]] = ..., name: _Optional[str] = ..., calls: _Optional[int] = ..., time_us: _Optional[float] = ..., bytes: _Optional[int] = ...) -> None: ...
