"""What one group of requests (a tenant, an SLO class with a policy of its own) has been served so far."""

from __future__ import annotations


class Account:
    """A virtual counter: predicted device time divided by the group's weight, microseconds. It never decreases."""

    __slots__ = ("alone", "hidden", "in_sight", "name", "per_us", "virtual_us", "waiting")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.alone = (self,)
        """What a request is charged to that belongs to this group only: one tuple for all of them."""
        self.per_us = 1.0 / weight
        self.virtual_us = 0.0
        self.waiting = 0  # requests, the parked ones included
        self.hidden = False  # passed over as a whole in the turn at hand
        self.in_sight = False  # its line is among those that are looked at

    def charge(self, device_us: float) -> None:
        """The group was served for so long."""
        self.virtual_us += device_us * self.per_us

    def __repr__(self) -> str:
        return f"account {self.name} {self.virtual_us:.0f} us, {self.waiting} waiting"
