"""Every error of the tree has a status both ways and a reason word."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.errors import (
    BY_STATUS,
    OUTCOME_ERRORS,
    REASON_ERRORS,
    DeadlineExceeded,
    FieldName,
    InvalidRequest,
    OctavoError,
    from_outcome,
)


def tree(root: type[OctavoError] = OctavoError) -> Iterator[type[OctavoError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from tree(kind)


def test_every_error_has_a_reason_and_a_matching_http_class() -> None:
    for kind in tree():
        error = kind("something is wrong", field="top_p")
        assert error.reason
        assert error.field == "top_p"
        assert 400 <= kind.http_status < 600
        if kind.__module__ == "octavo.errors" and kind.__name__ != "InternalError":
            assert kind.status in BY_STATUS, kind


def test_the_names_of_fields_are_each_apis_own_and_the_error_stays_as_it_is() -> None:
    shared = InvalidRequest(("max_tokens: at most the ", FieldName("n"), " of max_tokens"), field="max_tokens")
    told = shared.renamed(str.upper)
    assert told.message == str(told) == "MAX_TOKENS: at most the N of max_tokens" and type(told) is InvalidRequest
    assert (told.field, told.violations[0].description) == ("MAX_TOKENS", told.message)
    assert told.renamed(str.lower).message == shared.message == "max_tokens: at most the n of max_tokens"
    late = DeadlineExceeded("too late", field="deadline_ms", reason="why", retry_after_s=2.0).renamed(str.upper)
    assert (late.message, late.field, late.reason, late.retry_after_s) == ("too late", "DEADLINE_MS", "why", 2.0)


def test_the_schedulers_messages_name_fields_too_and_quote_values() -> None:
    error = from_outcome("rejected", "rejected-invalid", "slo_class: 'max_tokens' is unknown; lower max_tokens")
    assert error.renamed(str.upper).message == "SLO_CLASS: 'max_tokens' is unknown; lower MAX_TOKENS"
    late = from_outcome("deadline", "rejected-deadline", "9 ms are left; give a smaller max_tokens")
    assert late.renamed(str.upper).message == "9 ms are left; give a smaller MAX_TOKENS"


def test_statuses_map_back_to_the_same_status() -> None:
    for status, kind in BY_STATUS.items():
        assert kind.status == status


def test_outcomes_become_errors_and_reasons_override_them() -> None:
    for outcome, kind in OUTCOME_ERRORS.items():
        assert type(from_outcome(outcome, "x", "m")) is kind
    for reason, kind in REASON_ERRORS.items():
        assert type(from_outcome("rejected", reason, "m")) is kind
    for outcome, reason, message, field in (
        ("rejected", "rejected-never-fits", "max_tokens: needs 9 blocks; shorten it", "max_tokens"),
        ("rejected", "rejected-pin-quota", "cache.pin: over the quota", "cache.pin"),
        ("deadline", "rejected-deadline", "predicted 3 ms of queue: too late", "deadline_ms"),
        ("rejected", "rejected-queue-requests", "4 requests wait", ""),
        ("failed", "worker-failed", "w0: lost", ""),
    ):
        assert from_outcome(outcome, reason, message).field == field
    error = from_outcome("rejected", "rejected-queue-requests", "", retry_after_s=1.5)
    assert (error.reason, error.retry_after_s, str(error)) == (
        "rejected-queue-requests",
        1.5,
        "rejected-queue-requests",
    )
