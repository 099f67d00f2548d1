"""The interactive chat of `octavo chat`: a conversation with /set, /show, /clear and /bye."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import yaml
from octavo.client import Client, Message
from octavo.client.wire import RequestOptions
from octavo.errors import OctavoError

from octavo_cli.commands.ask import write_chunks

HELP = """/set NAME VALUE   temperature, top_p, top_k, min_p, seed, max_tokens, stop, system, ... (no VALUE: the default)
/show             settings and the last answer's figures
/clear            forget the conversation
/bye              end (as Ctrl-D does); Ctrl-C stops an answer"""
SETTABLE = sorted(set(RequestOptions.__annotations__) - {"request_id", "idempotency_key", "n", "logprobs", "echo"})


class Conversation:
    """The state of one interactive chat: the messages so far and the settings in force."""

    def __init__(
        self, client: Client, options: RequestOptions, system: str = "", read: Callable[[str], str] = input
    ) -> None:
        self._client = client
        self._options: dict[str, Any] = dict(options)
        self._system = system
        self._read = read
        self._messages: list[Message] = []
        self._last = "no answer yet"

    def run(self) -> int:
        """Asks and answers until /bye or the end of input; returns the exit code."""
        prompt = ">>> " if sys.stdin.isatty() else ""
        if prompt:
            import readline  # noqa: F401  line editing and history for input()

            print("Ask away; /? shows the commands.", file=sys.stderr)
        while True:
            try:
                line = self._read(prompt).strip()
            except EOFError:
                return 0
            except KeyboardInterrupt:
                print(file=sys.stderr)
                continue
            if line in ("/bye", "/exit", "/quit"):
                return 0
            if line.startswith("/"):
                print(self.command(line), file=sys.stderr)
            elif line:
                self.ask(line)

    def command(self, line: str) -> str:
        """Obeys a line that begins with a slash; returns what to show."""
        word, _, rest = line.partition(" ")
        if word == "/set":
            return self._set(*rest.strip().partition(" ")[::2])
        if word == "/show":
            shown = {"system": self._system, **self._options} if self._system else self._options
            return "\n".join([*(f"{name} = {value!r}" for name, value in shown.items()), self._last])
        if word == "/clear":
            self._messages.clear()
            return "the conversation begins anew"
        return HELP if word in ("/?", "/help") else f"{word} is no command\n{HELP}"

    def ask(self, text: str) -> None:
        """Sends the conversation with a new message and prints the answer; a failed turn is not remembered."""
        asked = Message("user", text)
        system = [Message("system", self._system)] if self._system else []
        options = cast(RequestOptions, dict(self._options))
        try:
            with self._client.chat_stream([*system, *self._messages, asked], **options) as stream:
                try:
                    write_chunks(stream)
                except KeyboardInterrupt:
                    print("\n(stopped)", file=sys.stderr)
                sys.stdout.write("\n")
                sys.stdout.flush()
                self._messages += [asked, Message("assistant", stream.text)]
                if (done := stream.completion) is not None:
                    self._last = (
                        f"{done.finish_reason}: {done.usage.completion_tokens} tokens after {done.usage.prompt_tokens} "
                        f"({done.usage.cached_tokens} cached), first token {done.first_token_ms:.0f} ms, "
                        f"all {done.last_token_ms:.0f} ms, trace {done.trace_id}"
                    )
        except OctavoError as error:
            print(f"octavo: {error}", file=sys.stderr)

    def _set(self, name: str, text: str) -> str:
        name = name.replace("-", "_")
        if not name:
            return f"/set NAME VALUE; NAME is one of system, {', '.join(SETTABLE)}"
        if name == "system":
            self._system = text.strip()
            return "system message set"
        if name not in SETTABLE:
            return f"{name} cannot be set; choose from system, {', '.join(SETTABLE)}"
        if not text.strip():
            self._options.pop(name, None)
            return f"{name} is the default again"
        self._options[name] = text.strip() if name == "stop" else yaml.safe_load(text)
        return f"{name} = {self._options[name]!r}"
