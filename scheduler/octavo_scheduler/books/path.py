"""The way in which a prompt gets what a kvstore holds of it."""

from __future__ import annotations

from typing import Literal, NamedTuple

Way = Literal["recompute", "load", "overlap"]


class Path(NamedTuple):
    """The way, its blocks, and the prediction of each way. Blocks count from the first that is not in the pool."""

    way: Way
    run: int = 0
    """Blocks that are there when all has gone well."""
    head: int = 0
    """Leading ones of these that are computed meanwhile."""
    load_us: float = 0.0
    """Predicted time of the load, its wait for the link included."""
    recompute_us: float = 0.0
    whole_us: float = 0.0
    """To the first token when the whole run is loaded; 0: nothing is there to load."""
    overlap_us: float = 0.0
    """... when part of it is computed meanwhile; 0: that is impossible."""
    rest_us: float = 0.0
    """Part of each that computes what follows the run."""

    @property
    def first_token_us(self) -> float:
        """Predicted time to the first token on the way that was chosen."""
        return {"recompute": self.recompute_us, "load": self.whole_us, "overlap": self.overlap_us}[self.way]


NOTHING_TO_LOAD = Path("recompute")
