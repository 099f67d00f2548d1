"""What a check of strangers' work may still take: a count, not a clock, so that it ends at the same place everywhere."""

from __future__ import annotations


class TooManySteps(Exception):
    """A check took more steps than it has."""


class Steps:
    """What may still be done; shared by everything that one request has checked at one place."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        """Raises TooManySteps."""
        self.left -= count
        if self.left < 0:
            raise TooManySteps
