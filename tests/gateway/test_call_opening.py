"""An answer that must be a call: how its first words are found in a template, what they make of the prompt, the answer and its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from octavo.client import AsyncClient
from octavo.errors import FeatureOff, InvalidRequest, NoToolCall
from octavo.rpc.testing import running_host
from octavo_gateway.admission import Admission, TextRules
from octavo_gateway.call_opening import CallOpening
from octavo_gateway.chat import ChatRenderer
from octavo_gateway.choice import ChoiceOutput
from octavo_gateway.request_state import dump_state, load_state
from octavo_gateway.requests import ChatMessage

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": schema}}
    for name, schema in (("weather", CITY), ("now", {"type": "object"}))
]
OPENING = '<tool_call>\n{"name": "'
NAMED = '<tool_call>\n{"name": "weather", "arguments":'
HEAD = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
)
TAIL = "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
HERMES = (
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
)
BARE = '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'
LISTED = '[{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}]'
THINKING = "<think>\n\n</think>\n\n" + HERMES
OTHERS = {
    "tokens of its own": "[TOOL_CALLS]" + LISTED,
    "arguments first": '{"arguments": {{ c.function.arguments | tojson }}, "name": "{{ c.function.name }}"}',
    "a call of python": "{{ c.function.name }}({{ c.function.arguments | tojson }})",
    "no calls at all": "",
    "a refusal": "{{ raise_exception('no calls') }}",
}


@pytest.mark.parametrize(
    ("form", "opening"),
    [
        (HERMES, CallOpening("", OPENING, '", "arguments":')),
        (THINKING, CallOpening("<think>\n\n</think>\n\n", OPENING, '", "arguments":')),
        (BARE, CallOpening("", '{"name": "', '", "parameters":')),
        (LISTED, CallOpening("", '[{"name": "', '", "arguments":')),
    ],
)
def test_a_template_tells_how_it_begins_a_call(form: str, opening: CallOpening, admission: Admission) -> None:
    renderer = ChatRenderer(HEAD + form + TAIL, admission.tokenizer)
    assert renderer.opening("required") == opening.before
    assert renderer.opening("function weather") == f"{opening.before}weather{opening.after}"
    asked = [ChatMessage("user", "Bern?")]
    ids = renderer.encode(asked, tools=TOOLS, opening=renderer.opening("function weather"))
    plain = renderer.encode(asked, tools=TOOLS)
    added = f"{opening.lead}{opening.before}weather{opening.after}"
    assert ids[: len(plain)] == plain, "the prompt is shared with requests that force nothing"
    assert admission.tokenizer.decode(ids[len(plain) :]) == added


@pytest.mark.parametrize("form", OTHERS.values(), ids=OTHERS)
def test_calls_in_another_form_cannot_be_begun(form: str, admission: Admission) -> None:
    renderer = ChatRenderer(HEAD + form + TAIL, admission.tokenizer)
    with pytest.raises(FeatureOff, match="use auto or none") as caught:
        renderer.opening("required")
    assert caught.value.field == "tool_choice"


def test_a_prompt_that_is_no_beginning_of_the_turn_cannot_be_continued(admission: Admission) -> None:
    other = TAIL.replace("<|im_start|>assistant\n{% endif", "<|im_start|>assistant\nSure: {% endif")
    with pytest.raises(FeatureOff):
        ChatRenderer(HEAD + HERMES + other, admission.tokenizer).opening("required")


def test_a_name_never_becomes_a_control_token(admission: Admission) -> None:
    (end,) = admission.tokenizer.encode("<|im_end|>", parse_special=True)
    tool: Any = {"type": "function", "function": {"name": "<|im_end|>"}}
    asked = [ChatMessage("user", "Bern?")]
    forced = admission.chat.encode(asked, tools=[tool], opening=admission.chat.opening("function <|im_end|>"))
    assert forced.count(end) == admission.chat.encode(asked, tools=[tool]).count(end)
    assert json.loads(admission.chat.opening('function a"b').removeprefix("<tool_call>") + "{}}")["name"] == 'a"b'


def test_a_choice_begins_with_its_opening(admission: Admission) -> None:
    rules = TextRules(tools=frozenset({"weather"}), opening=NAMED)
    output = ChoiceOutput(0, rules, admission.tokenizer, [1, 2])
    ids = admission.tokenizer.encode(' {"city": "Bern"}}\n</tool_call>')
    output.accept(0, ids)
    output.finish("stop")
    assert output.finish_reason == "tool_calls" and output.head == NAMED
    assert [(call.name, call.arguments) for call in output.tool_calls] == [("weather", '{"city": "Bern"}')]
    assert output.total_bytes == len(NAMED) + len(' {"city": "Bern"}}\n</tool_call>') and len(output.ids) == len(ids)


async def answered(stack: Any, text: str, reason: str = "stop") -> Any:
    """The next submit, after its answer."""
    return await stack.scheduler.play(stack.ids(text), reason)


async def test_a_forced_call_arrives_as_any_other(stack: Any) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        given: Any = {"tools": TOOLS, "max_tokens": 60, "request_id": "one"}
        plain = asyncio.create_task(client.chat("Bern?", tools=TOOLS, max_tokens=60))
        free = await answered(stack, "Cold.")
        await plain
        for choice, rest in (
            ({"type": "function", "function": {"name": "weather"}}, ' {"city": "Bern"}}\n</tool_call>'),
            ("required", 'weather", "arguments": {"city": "Bern"}}'),
        ):
            asking = asyncio.create_task(client.chat("Bern?", tool_choice=choice, **given))
            submit = await answered(stack, rest)
            done = await asking
            (call,) = done.tool_calls
            assert (call.name, call.arguments, done.finish_reason) == ("weather", '{"city": "Bern"}', "tool_calls")
            assert done.text.startswith(OPENING) and done.text.endswith(rest) and done.message.content == ""
            assert submit.prompt_tokens[: len(free.prompt_tokens)] == free.prompt_tokens
            assert done.usage.completion_tokens == len(rest) and done.usage.prompt_tokens > len(free.prompt_tokens) // 4
            assert (await stack.scheduler.next("pause")).tool == "weather"
            given["request_id"] += "+"


@pytest.mark.parametrize(
    ("choice", "rest", "reason", "said"),
    [
        ("required", 'weather", "arguments": {"city": Bern}}', "stop", "no call in valid JSON"),
        ("required", 'elsewhere", "arguments": {}}', "stop", "no call in valid JSON"),
        ("function weather", " none}\n</tool_call>", "stop", "no call in valid JSON"),
        ("function weather", ' {"city": "Be', "length", r"cut off after \d+ tokens; raise max_tokens"),
        ("function weather", ' {"city": 3}}\n</tool_call>', "stop", r"miss their schema at \$\.city: type \"string\""),
        (
            "required",
            'weather", "arguments": {"town": "x"}}',
            "stop",
            r'weather miss their schema at \$: required \["city"\]',
        ),
    ],
)
async def test_an_answer_that_had_to_be_a_call_and_is_none_is_an_error(
    stack: Any, choice: str, rest: str, reason: str, said: str
) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        asking = asyncio.create_task(client.chat("Bern?", tools=TOOLS, tool_choice=choice, max_tokens=60))
        await answered(stack, rest, reason)
        with pytest.raises(NoToolCall, match=said) as caught:
            await asking
        assert caught.value.reason == ("bad-arguments" if "schema" in said else "no-tool-call")
    assert stack.scheduler.none("pause")


async def test_over_http_it_has_a_status_of_its_own_whole_and_streamed(
    stack: Any, make_feed: Any, tmp_path: Any
) -> None:
    from octavo_gateway.http.server import start_http

    settings = {"gateway.http_listen": "127.0.0.1:0", "observability.trace_files": False}
    choice = {"type": "function", "function": {"name": "weather"}}
    body = {"messages": [{"role": "user", "content": "Bern?"}], "tools": TOOLS, "tool_choice": choice, "max_tokens": 60}
    async with running_host("gateway", tmp_path, settings) as host:
        address = await start_http(stack.gateway, make_feed()[1], host)
        async with httpx.AsyncClient(base_url=f"http://{address}") as http:
            asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await answered(stack, ' {"city": "Bern"}}\n</tool_call>')
            message = (await asking).json()["choices"][0]["message"]
            assert (
                message["content"] is None and message["tool_calls"][0]["function"]["arguments"] == '{"city": "Bern"}'
            )
            asking = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await answered(stack, " none")
            refused = await asking
            assert refused.status_code == 422
            assert {key: refused.json()["error"][key] for key in ("type", "code")} == {
                "type": "tool_call_error", "code": "no-tool-call",
            }  # fmt: skip
            asking = asyncio.create_task(http.post("/v1/chat/completions", json={**body, "stream": True}))
            await answered(stack, ' {"city": Bern}}\n</tool_call>')
            streamed = (await asking).text
            assert '"code":"no-tool-call"' in streamed and "[DONE]" not in streamed
            asking = asyncio.create_task(http.post("/v1/chat/completions", json={**body, "stream": True}))
            await answered(stack, ' {"city": 3}}\n</tool_call>')
            streamed = (await asking).text
            assert '"code":"bad-arguments"' in streamed and "[DONE]" not in streamed and "tool_calls" in streamed
            pieces = [json.loads(line[6:]) for line in streamed.split("\n\n") if '"arguments"' in line]
            said = "".join(part["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"] for part in pieces)
            assert said == '{"city": 3', "arguments that can be read would be a call's"
            bad = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "strng"}}}]
            refused = await http.post("/v1/chat/completions", json={**body, "tools": bad})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools[0].function.parameters"


async def test_another_gateway_knows_what_the_answer_must_be(stack: Any) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        asking = asyncio.create_task(client.chat("Bern?", tools=TOOLS, tool_choice="required", max_tokens=60))
        submit = await stack.scheduler.next("submit")
        (live,) = stack.gateway._live.values()
        again = load_state(dump_state(live.admitted), [1])
        assert again.text == live.admitted.text and again.text.opening == OPENING
        assert again.body_hash == submit.body_hash
        asking.cancel()
        await asyncio.wait({asking})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tool_choice": "required"}, "without tools"),
        ({"tool_choice": "function elsewhere", "tools": TOOLS}, "'elsewhere' is not offered"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "use auto, none, required or 'function NAME'"),
        ({"tool_choice": "weather", "tools": TOOLS}, "'weather' is none; .* 'function NAME'"),
    ],
)
async def test_a_choice_that_cannot_be_kept_is_refused(stack: Any, body: dict[str, Any], said: str) -> None:
    async with AsyncClient(f"grpc://{stack.address}") as client:
        with pytest.raises(InvalidRequest, match=said) as caught:
            await client.chat("Bern?", **body)
        assert caught.value.field == "tool_choice"
    assert stack.scheduler.none("submit")


@pytest.fixture
def make_feed() -> Any:
    """As the edge's own tests make one."""
    from tests.gateway.test_http.conftest import new_feed  # the scripted scheduler of the live view

    return lambda: (None, new_feed())
