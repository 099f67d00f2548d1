"""Turns that ended in tool calls: the pause begins by itself, and who answers a call continues its turn without saying so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from octavo_gateway.choice import named_calls
from octavo_gateway.live import LiveRequest
from octavo_gateway.requests import ChatMessage

MAX_CALLS: Final = 16_384
"""Calls that are remembered; a turn whose call was forgotten is continued without its kept blocks, which its prefix finds."""


class Pausing(Protocol):
    """Who is told that a client pauses."""

    def pause(self, wire_id: str, tenant: str, tool: str, expected_ms: int = 0) -> None: ...


class ToolTurns:
    """Call id to the request that made it, the oldest forgotten first."""

    def __init__(self, pausing: Pausing) -> None:
        self._pausing = pausing
        self._turns: OrderedDict[tuple[str, str], str] = OrderedDict()

    def ended(self, live: LiveRequest) -> None:
        """A request came to its end: with one answer that calls a tool, its client is now away for that tool.

        Of several answers nobody knows which one goes on; a pause that the client announced itself stands as it is. Of a
        request that was joined or replayed the pause began where it ran, and may be over.
        """
        admitted = live.admitted
        if not live.finished or admitted is None or len(live.choices) != 1:
            return
        choice = live.choices[0]
        if choice.finish_reason != "tool_calls":
            return
        for call in named_calls(admitted.request_id, choice):
            self._turns[admitted.tenant, call.id] = admitted.request_id
        while len(self._turns) > MAX_CALLS:
            self._turns.popitem(last=False)
        if not live.joined and not admitted.pause_tool and not admitted.pause_expected_ms:
            self._pausing.pause(live.wire_id, live.tenant, choice.tool_calls[0].name)

    def continued(self, tenant: str, messages: Sequence[ChatMessage]) -> str:
        """The request whose calls the last messages answer; empty when there is none, or it is not known here."""
        if not messages or messages[-1].role != "tool":
            return ""
        return self._turns.get((tenant, messages[-1].tool_call_id), "")
