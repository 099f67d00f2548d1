"""OctavoErrors as OpenAI error bodies, statuses and headers."""

from __future__ import annotations

import math

import msgspec
from msgspec import UNSET, UnsetType
from octavo.errors import AlreadyExists, OctavoError, Overloaded, Unauthenticated, Unavailable

from octavo_gateway.http.shapes import encode
from octavo_gateway.requests import Cost


class ErrorDetail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct, frozen=True):
    error: ErrorDetail
    octavo_cost: Cost | UnsetType = UNSET  # of a request that was taken on


class BodyTooLarge(OctavoError):
    """The body is over gateway.max_body_bytes; 400 as every other bad input, so that one rule serves clients."""

    http_status, http_type, default_reason = 400, "invalid_request_error", "body_too_large"


class BodyTimeout(OctavoError):
    """408: the client stopped in the middle of its body."""

    http_status, http_type, default_reason = 408, "timeout_error", "body_timeout"


class UnknownUrl(OctavoError):
    http_status, http_type, default_reason = 404, "invalid_request_error", "unknown_url"


class MethodNotAllowed(OctavoError):
    http_status, http_type, default_reason = 405, "invalid_request_error", "method_not_allowed"


def error_json(error: OctavoError, cost: Cost | UnsetType = UNSET) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`, and `octavo_cost` when something was computed."""
    detail = ErrorDetail(error.message, error.http_type, error.field or None, error.reason or None)
    return encode(ErrorBody(detail, cost))


def error_headers(error: OctavoError) -> list[tuple[bytes, bytes]]:
    """Retry-After (whole seconds, at least 1) where waiting helps; the openai client's own hint where it does not."""
    headers = [(b"content-type", b"application/json")]
    if isinstance(error, Overloaded | Unavailable) or error.retry_after_s > 0:
        headers.append((b"retry-after", str(max(1, math.ceil(error.retry_after_s))).encode()))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, AlreadyExists):
        headers.append((b"x-should-retry", b"false"))  # it would retry every 409
    return headers
