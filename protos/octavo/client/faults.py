"""From a gRPC status with rich details to the exceptions of `octavo.errors`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from octavo.errors import BY_STATUS, FieldViolation, InternalError, InvalidRequest, OctavoError

UNREACHABLE = "unreachable"
"""Reason of an Unavailable that no gateway sent: nothing listens, or the connection broke."""
DETAILS_KEY = "grpc-status-details-bin"


def error_from(error: grpc.aio.AioRpcError, address: str = "") -> OctavoError:
    """The exception for a failed call: class by reason word, else by status; violations and retry delay from the details."""
    violations: tuple[FieldViolation, ...] = ()
    reason, retry_after_s = "", 0.0
    for detail in _details(error):
        if isinstance(detail, error_details_pb2.BadRequest):
            violations = tuple(FieldViolation(item.field, item.description) for item in detail.field_violations)
        elif isinstance(detail, error_details_pb2.RetryInfo):
            retry_after_s = detail.retry_delay.ToTimedelta().total_seconds()
        elif isinstance(detail, error_details_pb2.ErrorInfo):
            reason = detail.reason
    kind = _by_reason(OctavoError, reason) or BY_STATUS.get(error.code(), InternalError)
    message = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNAVAILABLE and not reason and address:
        message, reason = f"no answer from {address}: {message}", UNREACHABLE
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not reason and "larger than max" in message:
        # gRPC's own words for a message over the limit of either side: no wait makes it smaller
        return InvalidRequest(f"body: {message}; shorten the request", field="body")
    return kind(message, reason=reason, violations=violations, retry_after_s=retry_after_s)


def _by_reason(root: type[OctavoError], reason: str) -> type[OctavoError] | None:
    """The class whose own reason word this is."""
    if not reason:
        return None
    for kind in root.__subclasses__():
        if kind.default_reason == reason and "default_reason" in vars(kind):
            return kind
        if (found := _by_reason(kind, reason)) is not None:
            return found
    return None


Detail: TypeAlias = error_details_pb2.BadRequest | error_details_pb2.RetryInfo | error_details_pb2.ErrorInfo


def _details(error: grpc.aio.AioRpcError) -> Iterator[Detail]:
    for key, value in cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata() or ()):
        if key != DETAILS_KEY or not isinstance(value, bytes):
            continue
        try:
            status = status_pb2.Status.FromString(value)
        except DecodeError:  # the status itself still tells what happened
            return
        for packed in status.details:
            for kind in (error_details_pb2.BadRequest, error_details_pb2.RetryInfo, error_details_pb2.ErrorInfo):
                detail = kind()
                if packed.Unpack(detail):
                    yield detail
