"""Tool calls: the model is shown a few, asked for one more, and what the server makes of its answer must be what the answer says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.client import Completion, Message, ToolCall

from octavo_cli.check.reference import Reference
from octavo_cli.check.result import Unjudged, Wrong
from octavo_cli.check.subject import Subject

TOOLS = [
    {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
SHOWN = ("Paris", "Rome", "London")
"""Cities of the calls that the conversation begins with: even a small model goes on in their form."""
ASKED = ("Berlin", "Madrid", "Vienna")
ROOM = 60
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


def conversation(city: str) -> list[Message]:
    """Calls for the shown cities, then the question for this one."""
    turns = []
    for number, shown in enumerate(SHOWN):
        call = ToolCall(f"call_{number}", "get_weather", json.dumps({"city": shown}))
        turns += [
            Message("user", f"What is the weather in {shown}?"),
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", json.dumps({"city": shown, "degrees": 14 + number}), tool_call_id=call.id),
            Message("assistant", f"It is {14 + number} degrees in {shown}."),
        ]
    return [*turns, Message("user", f"What is the weather in {city}?")]


def said_calls(text: str) -> list[Mapping[str, Any]]:
    """The calls of the offered function that an answer's text has, words around them or not; read here without the server's help."""
    tagged = _TAGGED.findall(text)
    said = []
    for inside in tagged or [text]:
        try:
            value = json.loads(inside)
        except ValueError:
            continue
        calls = value if isinstance(value, list) else [value]
        if all(isinstance(call, dict) and _is_call(call) for call in calls):
            said += calls
    return said


def _is_call(said: Mapping[str, Any]) -> bool:
    return said.get("name") == "get_weather" and isinstance(said.get("arguments"), dict)


def judge(done: Completion, refused: Completion) -> str:
    """The city that was called for first. `refused`: the same with tool_choice none. Raises Wrong."""
    said = said_calls(done.text)
    if done.finish_reason != "tool_calls" or len(done.tool_calls) != len(said):
        raise Wrong(
            f"the answer {done.text!r} has {len(said)} calls; it ended with {done.finish_reason!r} and {len(done.tool_calls)} tool calls"
        )
    for call, words in zip(done.tool_calls, said, strict=True):
        try:
            arguments = json.loads(call.arguments)
        except ValueError as error:
            raise Wrong(f"the call's arguments {call.arguments!r} are no JSON: {error}") from error
        if call.name != words["name"] or arguments != words["arguments"] or not call.id:
            raise Wrong(f"the call is {call}, the answer says {words}")
    if refused.tool_calls or refused.finish_reason == "tool_calls":
        raise Wrong("tool_choice none: a call came all the same")
    return str(said[0]["arguments"].get("city", ""))


async def check(subject: Subject, reference: Reference | None) -> Mapping[str, Any]:
    """Every call in an answer's text must arrive as one; Unjudged when the model makes none."""
    options: dict[str, Any] = {"temperature": 0.0, "cache_salt": subject.salt, "max_tokens": ROOM}
    cities = []
    for city in ASKED:
        done = await subject.client.chat(conversation(city), tools=TOOLS, **options)
        if done.finish_reason == "length":
            continue  # one that was cut off says so, whatever it was about to call
        if not said_calls(done.text):
            if done.tool_calls or done.finish_reason == "tool_calls":
                raise Wrong(f"the answer {done.text!r} has no call, and came as {list(done.tool_calls)}")
            continue
        refused = await subject.client.chat(conversation(city), tools=TOOLS, tool_choice="none", **options)
        cities.append(judge(done, refused) == city)
    if not cities:
        raise Unjudged("the model called no tool in any of its answers; ask one that was trained to")
    return {"calls": len(cities), "of": len(ASKED), "right_city": sum(cities)}
