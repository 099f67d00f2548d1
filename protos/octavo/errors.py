"""The exception tree, and the one table of statuses both ways.

OctavoError
├── InvalidRequest        INVALID_ARGUMENT     400   the caller must change a named field
├── UnknownModel          NOT_FOUND            404
├── UnknownRequest        NOT_FOUND            404
├── UnknownPreload        NOT_FOUND            404
├── Unauthenticated       UNAUTHENTICATED      401
├── AlreadyExists         ALREADY_EXISTS       409   same id or key, other body
├── Overloaded            RESOURCE_EXHAUSTED   429   retry after a while
├── NeverFits             INVALID_ARGUMENT     400   larger than the whole pool
├── DeadlineExceeded      DEADLINE_EXCEEDED    504
├── Cancelled             CANCELLED            499
├── Unavailable           UNAVAILABLE          503   not ready, draining, lost
├── FeatureOff            FAILED_PRECONDITION  400
├── NoToolCall            ABORTED              422   the answer had to be a tool call that fits its schema, and is none
└── InternalError         INTERNAL             500
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import grpc


class FieldName(str):
    """The name of a request's field within what an error says: each API puts its own in its place."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class FieldViolation:
    field: str
    description: str


class OctavoError(Exception):
    """Root of everything Octavo raises on purpose. `reason` is a stable word for programs, the message is for people.

    A message that names fields is given in parts, its names as FieldNames; of one that begins with `field: ` that name is known.
    """

    status: grpc.StatusCode = grpc.StatusCode.INTERNAL
    http_status: int = 500
    http_type: str = "server_error"
    default_reason: str = "internal"

    def __init__(
        self,
        message: str | tuple[str, ...],
        *,
        reason: str = "",
        field: str = "",
        violations: tuple[FieldViolation, ...] = (),
        retry_after_s: float = 0.0,
    ) -> None:
        parts = (message,) if isinstance(message, str) else message
        if field and not isinstance(parts[0], FieldName) and parts[0].startswith(f"{field}:"):
            parts = (FieldName(field), parts[0][len(field) :], *parts[1:])
        self._parts, message = parts, "".join(parts)
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.violations = violations or ((FieldViolation(field, message),) if field else ())
        self.retry_after_s = retry_after_s

    @property
    def field(self) -> str:
        """The first field at fault, or an empty string."""
        return self.violations[0].field if self.violations else ""

    def renamed(self, name: Callable[[str], str]) -> Self:
        """The same error with each field's name given by `name`; one that several clients are told stays as it is."""
        told = copy.copy(self)
        told._parts = tuple(FieldName(name(part)) if isinstance(part, FieldName) else part for part in self._parts)
        told.message = "".join(told._parts)
        told.violations = tuple(
            FieldViolation(name(item.field), told.message if item.description == self.message else item.description)
            for item in self.violations
        )
        told.args = (told.message,)
        return told


class InvalidRequest(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.INVALID_ARGUMENT,
        400,
        "invalid_request_error",
        "rejected-invalid",
    )


class NeverFits(InvalidRequest):
    default_reason = "rejected-never-fits"


class FeatureOff(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.FAILED_PRECONDITION,
        400,
        "invalid_request_error",
        "rejected-feature-off",
    )


class UnknownModel(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.NOT_FOUND,
        404,
        "invalid_request_error",
        "model_not_found",
    )


class UnknownRequest(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.NOT_FOUND,
        404,
        "invalid_request_error",
        "request_not_found",
    )


class UnknownPreload(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.NOT_FOUND,
        404,
        "invalid_request_error",
        "preload_not_found",
    )


class Unauthenticated(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.UNAUTHENTICATED,
        401,
        "authentication_error",
        "invalid_api_key",
    )


class AlreadyExists(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.ALREADY_EXISTS,
        409,
        "invalid_request_error",
        "already_exists",
    )


class Overloaded(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        429,
        "rate_limit_error",
        "rejected-overloaded",
    )


class DeadlineExceeded(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        504,
        "timeout_error",
        "evicted-deadline",
    )


class Cancelled(OctavoError):
    status, http_status, http_type, default_reason = grpc.StatusCode.CANCELLED, 499, "cancelled_error", "cancelled"


class Unavailable(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.UNAVAILABLE,
        503,
        "service_unavailable_error",
        "not-ready",
    )


class NoToolCall(OctavoError):
    status, http_status, http_type, default_reason = (
        grpc.StatusCode.ABORTED,
        422,
        "tool_call_error",
        "no-tool-call",
    )


class InternalError(OctavoError):
    pass


BY_STATUS: dict[grpc.StatusCode, type[OctavoError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: UnknownModel,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.FAILED_PRECONDITION: FeatureOff,
    grpc.StatusCode.ABORTED: NoToolCall,
}
"""Client side: which exception a status becomes; what is not listed becomes InternalError."""


OUTCOME_ERRORS: dict[str, type[OctavoError]] = {
    "rejected": Overloaded,
    "cancelled": Cancelled,
    "deadline": DeadlineExceeded,
    "failed": Unavailable,
    "already_exists": AlreadyExists,
    "not_found": UnknownRequest,
}
"""Which exception a terminal outcome of the scheduler becomes at the edge; `finished` has none."""


REASON_ERRORS: dict[str, type[OctavoError]] = {
    "rejected-never-fits": NeverFits,
    "rejected-invalid": InvalidRequest,
    "rejected-deadline": DeadlineExceeded,
    "rejected-not-ready": Unavailable,
    "rejected-draining": Unavailable,
    "too-few-continuations": InvalidRequest,
}
"""Reason words that override OUTCOME_ERRORS."""


REASON_FIELDS: dict[str, str] = {"rejected-deadline": "deadline_ms"}
"""The field at fault where the scheduler's message does not begin with it."""


_OUTCOME_FIELDS = re.compile(r"('[^']*')|\b(max_tokens|beam_width|deadline_ms|slo_class|prompt_tokens)\b")
"""The names that the scheduler's messages use; what stands in quotes is a value."""


def from_outcome(outcome: str, reason: str, message: str, retry_after_s: float = 0.0) -> OctavoError:
    """The exception for a terminal outcome other than `finished`; a refusal's field is the one its message begins with."""
    kind = REASON_ERRORS.get(reason) or OUTCOME_ERRORS.get(outcome, InternalError)
    named = re.match(r"[a-z][a-z0-9_.]*(?=: )", message) if outcome == "rejected" else None
    field = named.group() if named is not None else REASON_FIELDS.get(reason, "")
    return kind(_parts_of(message or reason), reason=reason, field=field, retry_after_s=retry_after_s)


def _parts_of(message: str) -> tuple[str, ...]:
    """The scheduler's message with its names of fields told apart from its other words."""
    parts, at = list[str](), 0
    for found in _OUTCOME_FIELDS.finditer(message):
        if found[2]:
            parts += [message[at : found.start()], FieldName(found[2])]
            at = found.end()
    return (*(part for part in parts if part), message[at:])
