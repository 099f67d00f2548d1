"""An OctavoError as a gRPC status with details: google.rpc BadRequest, RetryInfo and ErrorInfo in the trailer.

Its fields are named as the messages of octavo.v1 name them.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from octavo.errors import OctavoError

STATUS_TRAILER: Final = "grpc-status-details-bin"
DOMAIN: Final = "octavo"


def in_rpcs_words(error: OctavoError) -> OctavoError:
    """The error in the names of the protocol, where a tool or a call has no `function` in between."""
    return error.renamed(lambda field: field.replace(".function.", ".") if "[" in field else field)


def rich_status(error: OctavoError) -> status_pb2.Status:
    """code, message, and the details that the error has."""
    status = status_pb2.Status(code=error.status.value[0], message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    status.details.append(_packed(info))
    if error.violations:
        request = error_details_pb2.BadRequest()
        for violation in error.violations:
            request.field_violations.add(field=violation.field, description=violation.description)
        status.details.append(_packed(request))
    if error.retry_after_s > 0:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMicroseconds(int(error.retry_after_s * 1e6))
        status.details.append(_packed(retry))
    return status


def status_trailer(error: OctavoError) -> tuple[tuple[str, bytes], ...]:
    """The trailing metadata of `context.abort`."""
    return ((STATUS_TRAILER, rich_status(error).SerializeToString()),)


def _packed(
    message: error_details_pb2.ErrorInfo | error_details_pb2.BadRequest | error_details_pb2.RetryInfo,
) -> AnyMessage:
    packed = AnyMessage()
    packed.Pack(message)
    return packed
