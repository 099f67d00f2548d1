"""chat and complete: ask the model; only its text goes to stdout."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated, Any, cast

import typer
from octavo.client import Client, Message, RetryPolicy, Stream
from octavo.client.wire import RequestOptions
from octavo.errors import InvalidRequest

from octavo_cli.exits import INTERRUPTED
from octavo_cli.locate import gateway_url

Text = Annotated[str, typer.Argument(help="The text; - reads standard input.")]
MaybeText = Annotated[str | None, typer.Argument(help="The message; absent: an interactive chat; -: standard input.")]
Url = Annotated[str, typer.Option("--url", help="grpc://host:port of a gateway; absent: the run folder's cluster.")]
RunDir = Annotated[str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")]
ModelName = Annotated[str, typer.Option("--model", help="Served model id.")]
ApiKey = Annotated[str, typer.Option("--api-key", help="Key of your tenant.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", help="Longest answer.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="0 is greedy.")]
TopP = Annotated[float | None, typer.Option("--top-p", help="Draw from the likeliest that hold this share, 0 to 1.")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Draw from so many likeliest; 0: all.")]
MinP = Annotated[float | None, typer.Option("--min-p", help="Leave out what is below this share of the likeliest.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Same seed, same text.")]
Stop = Annotated[
    list[str] | None, typer.Option("--stop", metavar="<str>", help="Stop string; may be given several times.")
]
Deadline = Annotated[float | None, typer.Option("--deadline-s", help="Seconds the whole answer may take.")]
SloClass = Annotated[str, typer.Option("--slo-class", help="One of scheduler.slo_classes; absent: the default.")]
Priority = Annotated[int | None, typer.Option("--priority", help="Larger is more urgent.")]
Preload = Annotated[str, typer.Option("--preload", help="Continue this preload; see `octavo cache ls`.")]
Chunks = Annotated[
    list[str] | None,
    typer.Option(
        "--chunk", metavar="<str>", help="Continue these preloads, in this order; may be given several times."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON, with usage and timings.")]
System = Annotated[str, typer.Option("--system", help="System message.")]
RETRY = RetryPolicy(max_attempts=4)
"""A person waits: an address where nothing listens is told within a second."""


def complete(
    text: Text,
    url: Url = "",
    run_dir: RunDir = "",
    model: ModelName = "",
    api_key: ApiKey = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    deadline_s: Deadline = None,
    slo_class: SloClass = "",
    priority: Priority = None,
    preload: Preload = "",
    chunks: Chunks = None,
    as_json: AsJson = False,
) -> None:
    """Complete a raw prompt; only the completion is printed."""
    options = _options(locals())
    with Client(gateway_url(url, run_dir), api_key=api_key, retry=RETRY) as client:
        _print_stream(client.generate_stream(_read(text), **options), as_json)


def chat(
    text: MaybeText = None,
    system: System = "",
    url: Url = "",
    run_dir: RunDir = "",
    model: ModelName = "",
    api_key: ApiKey = "",
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    min_p: MinP = None,
    seed: Seed = None,
    stop: Stop = None,
    deadline_s: Deadline = None,
    slo_class: SloClass = "",
    priority: Priority = None,
    preload: Preload = "",
    chunks: Chunks = None,
    as_json: AsJson = False,
) -> None:
    """Talk to the model: one answer with TEXT, a conversation without."""
    options = _options(locals())
    address = gateway_url(url, run_dir)
    with Client(address, api_key=api_key, retry=RETRY) as client:
        if text is None:
            from octavo_cli.repl import Conversation

            raise typer.Exit(Conversation(client, options, system).run())
        messages = [Message("system", system)] if system else []
        _print_stream(client.chat_stream([*messages, Message("user", _read(text))], **options), as_json)


def _options(arguments: dict[str, Any]) -> RequestOptions:
    """Those of a command's arguments that go with the request and were given."""
    asked = {name: value for name, value in arguments.items() if name in RequestOptions.__annotations__}
    if cache := {name: arguments[name] for name in ("preload", "chunks") if arguments[name]}:
        asked["cache"] = cache
    return cast(RequestOptions, {name: value for name, value in asked.items() if value not in (None, "", [])})


def _read(text: str) -> str:
    """The text, or standard input for `-`. Raises InvalidRequest when there is none."""
    found = sys.stdin.read() if text == "-" else text
    if not found:
        raise InvalidRequest("TEXT: there is none; give some, or `-` and something on standard input", field="text")
    return found


def _print_stream(stream: Stream, as_json: bool) -> None:
    """Prints an answer as it comes, and ends the command: 130 when interrupted."""
    with stream:
        try:
            if as_json:
                typer.echo(json.dumps(asdict(stream.result()), default=lambda value: value.hex()))
                return
            write_chunks(stream)
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            raise typer.Exit(INTERRUPTED) from None
    sys.stdout.write("\n")
    if stream.completion is not None and stream.completion.finish_reason == "deadline":
        typer.echo("octavo: the deadline passed before the answer was complete", err=True)
        raise typer.Exit(1)


def write_chunks(stream: Stream) -> None:
    """The first choice's text to stdout, each piece as soon as it is there."""
    for chunk in stream:
        if chunk.index == 0 and chunk.text:
            sys.stdout.write(chunk.text)
            sys.stdout.flush()


def register(app: typer.Typer) -> None:
    """Adds the subcommands of this module."""
    app.command()(chat)
    app.command()(complete)
