"""How a model's template begins a tool call, so that an answer can be made to begin with one: the prompt's last words are its first.

Found by asking the template itself: it writes a made-up call as a turn of the conversation, and what stands between the prompt
for an answer and that call's name is the opening. A template that writes calls in a form that is not read here has none.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from octavo_gateway.requests import ChatMessage, ToolCall

FORCED: Final = "required"
NAMED: Final = "function "
"""Before the name of the one function that must be called."""
PROBE_NAME: Final = "octavo_probe"
PROBE_TOOL: Final = {
    "type": "function",
    "function": {"name": PROBE_NAME, "parameters": {"type": "object", "properties": {}}},
}
PROBE: Final = (
    ChatMessage("user", "Hello"),
    ChatMessage("assistant", "", tool_calls=(ToolCall("call00000", PROBE_NAME, '{"probe": 1}'),)),
)
_OPENING: Final = re.compile(
    r"(?P<lead>\s*(?:<think>\s*</think>\s*)?)"  # no part of the call, though the template puts it before one
    r'(?P<before>(?:<tool_call>\s*)?(?:\[\s*)?\{\s*"name"\s*:\s*")'
    + PROBE_NAME
    + r'(?P<after>"\s*,\s*"(?:arguments|parameters)"\s*:)\s*\{'
)


class CallOpening(NamedTuple):
    """`lead` belongs to the prompt alone; `before` and `after` stand around a call's name."""

    lead: str
    before: str
    after: str

    def of(self, choice: str) -> str:
        """What an answer begins with under this choice: a call of any function, or of the one that is named."""
        if choice == FORCED:
            return self.before
        return f"{self.before}{json.dumps(choice.removeprefix(NAMED))[1:-1]}{self.after}"


def is_forced(choice: str) -> bool:
    """Whether an answer must be a call."""
    return choice == FORCED or choice.startswith(NAMED)


def opening_in(prompt: str, turn: str) -> CallOpening | None:
    """The opening in a conversation that ends with the probe's call, rendered, as it follows its prompt; None: there is none."""
    found = _OPENING.match(turn, len(prompt)) if turn.startswith(prompt) else None
    return CallOpening(found["lead"], found["before"], found["after"]) if found is not None else None
