"""Every error of the tree has a status both ways and a reason word."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.errors import BY_STATUS, OUTCOME_ERRORS, REASON_ERRORS, OctavoError, from_outcome


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
