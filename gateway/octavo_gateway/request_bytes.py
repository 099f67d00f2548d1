"""Bytes of a gRPC request that are no message: refused with INVALID_ARGUMENT and the field, not with gRPC's INTERNAL.

gRPC deserializes before a handler runs and answers for what cannot be read. Here a deserializer never fails: it gives
the handler the refusal instead of the message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from octavo.errors import InvalidRequest, OctavoError
from octavo.packing import read_varint

MAX_DEPTH: Final = 100
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
"""Wire types of the protobuf encoding; groups (3, 4) are in none of our messages."""

Abort = Callable[[Any, OctavoError], Awaitable[Any]]


class TolerantServer:
    """Stands in for the server while generated code registers its handlers; what it registers cannot fail to decode."""

    def __init__(self, server: grpc.aio.Server, abort: Abort, max_bytes: int) -> None:
        self._server = server
        self._abort = abort
        self._max_bytes = max_bytes

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """Generated code registers everything twice; the other way has the names."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Registers each method with a deserializer of ours."""
        tolerant = {name: self._tolerant(handler) for name, handler in handlers.items()}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, tolerant),))

    def _tolerant(self, handler: Any) -> Any:
        parse, limit, abort = handler.request_deserializer, self._max_bytes, self._abort
        method = handler.unary_stream if handler.response_streaming else handler.unary_unary

        async def guarded(request: Any, context: Any) -> Any:
            if isinstance(request, InvalidRequest):
                return await abort(context, request)
            return await method(request, context)

        def read(raw: bytes) -> Any:
            return read_message(raw, parse, limit)

        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                handler.stream_stream,
                request_deserializer=lambda raw: read_frame(raw, parse, limit),
                response_serializer=bytes,  # the handler wrote them itself
            )
        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        return make(guarded, request_deserializer=read, response_serializer=handler.response_serializer)


def read_message(raw: bytes, parse: Callable[[bytes], Message], max_bytes: int) -> Message | InvalidRequest:
    """The message, or why it is none. `parse` is the generated class's FromString."""
    if len(raw) > max_bytes:
        text = f"body: {len(raw)} bytes; shorten it to {max_bytes} or raise gateway.max_body_bytes"
        return InvalidRequest(text, field="body")
    try:
        return parse(raw)
    except DecodeError:
        kind: Any = getattr(parse, "__self__", None)
        field = bad_text_field(raw, kind.DESCRIPTOR) if kind is not None else ""
        if field:
            return InvalidRequest(f"{field}: invalid UTF-8; send text as UTF-8", field=field)
        return InvalidRequest("body: it is no protobuf message of this method; check the client", field="body")


@dataclass(frozen=True, slots=True)
class BadFrame:
    """A message of a stream that cannot be read; `call` is the number it begins with, 0 when it names none."""

    call: int
    error: InvalidRequest


def read_frame(raw: bytes, parse: Callable[[bytes], Message], max_bytes: int) -> Message | BadFrame:
    """As `read_message`, for a stream of many calls whose messages have the call's number as their first field."""
    message = read_message(raw, parse, max_bytes)
    if not isinstance(message, InvalidRequest):
        return message
    try:
        call = read_varint(raw, 1)[0] if raw[:1] == b"\x08" else 0
    except (IndexError, ValueError):
        call = 0
    return BadFrame(call if call < 2**32 else 0, message)


def bad_text_field(raw: bytes, kind: Descriptor, depth: int = 0) -> str:
    """Path of the first string that is not UTF-8, like `messages[0].content`; empty when none is."""
    seen: dict[int, int] = {}
    try:
        for number, value in _length_delimited(raw):
            field = kind.fields_by_number.get(number)
            if field is None:
                continue
            name = f"{field.name}[{seen.get(number, 0)}]" if field.is_repeated else field.name
            seen[number] = seen.get(number, 0) + 1
            if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(value):
                return name
            if field.message_type is not None and depth < MAX_DEPTH:
                inner = bad_text_field(value, field.message_type, depth + 1)
                if inner:
                    return f"{name}.{inner}"
    except (IndexError, ValueError):  # cut off, or no protobuf from here on
        return ""
    return ""


def _length_delimited(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """(field number, value) of each length-delimited field. IndexError or ValueError where it is no protobuf."""
    at = 0
    while at < len(raw):
        tag, at = read_varint(raw, at)
        wire_type = tag & 7
        if wire_type == _VARINT:
            _, at = read_varint(raw, at)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        elif wire_type == _LENGTH:
            size, at = read_varint(raw, at)
            if at + size > len(raw):
                raise ValueError("cut off")
            yield tag >> 3, raw[at : at + size]
            at += size
        else:
            raise ValueError("no such wire type")


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
