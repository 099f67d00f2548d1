"""Every option that takes an address: what nobody can dial is refused by the option's own name, before anything is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from octavo.errors import InvalidRequest
from octavo_cli.addresses import checked_gateway, checked_http, checked_scheduler
from octavo_cli.exits import USAGE, exit_code
from octavo_cli.locate import server_url
from octavo_cli.main import app
from typer.testing import CliRunner

TREE: Any = typer.main.get_command(app)
ALSO = {
    "complete": ["text"], "chat": ["text"], "drain": ["worker"], "gate": ["--release_gate.enabled", "true"],
    "cache preload": [__file__, "--name", "x"], "cache stat": ["x"], "cache rm": ["x"], "cache pin": ["x"],
    "cache evict": ["--all"], "cache explain": ["req-1"], "check": ["--url", "grpc://127.0.0.1:1"],
    "cache rotate": ["default"],
}  # fmt: skip
"""What else a command must be given."""


def takers(group: Any, option: str, words: tuple[str, ...] = ()) -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from takers(command, option, (*words, name))
        elif any(option in parameter.opts for parameter in command.params):
            yield " ".join((*words, name))


def refused(words: str, option: str, address: str) -> str:
    result = CliRunner().invoke(
        app, [*words.split(), *ALSO.get(words, []), option, address]
    )  # the last one of an option counts
    assert isinstance(result.exception, InvalidRequest), (words, result.exception, result.output)
    assert exit_code(result.exception) == USAGE and result.exception.field == option.removeprefix("--")
    return str(result.exception)


@pytest.mark.parametrize(
    "address", ["http://", "grpc://", "grpc://h:0", "grpc://h:99999", "nonsense", "grpc://a/b:1", "unix:"]
)
@pytest.mark.parametrize("words", list(takers(TREE, "--url")))
def test_every_url_is_checked_by_name(words: str, address: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(words, "--url", address)
    form = (
        "http://host:port"
        if words == "top" or (words.startswith("bench") and "http" in address)
        else "grpc://host:port"
    )
    assert said.startswith(f"--url: {address!r} is no ") and form in said and "\n" not in said


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "nonsense", "grpc://h:port"])
@pytest.mark.parametrize("words", list(takers(TREE, "--scheduler")))
def test_every_scheduler_is_checked_by_name(words: str, address: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(words, "--scheduler", address) == (
        f"--scheduler: {address!r} is no address of a scheduler; write host:port"
    )


def test_the_address_of_the_other_edge_is_told_apart() -> None:
    with pytest.raises(InvalidRequest, match="its HTTP address is another; `octavo status` shows both"):
        checked_gateway("http://127.0.0.1:8000")
    with pytest.raises(InvalidRequest, match=r"is no HTTP address; write http://host:port$"):
        checked_http("grpc://127.0.0.1:50050")


@pytest.mark.parametrize("address", ["grpc://h:1", "h:1", "[::1]:50050", "unix:/run/octavo.sock", "grpc://h:1/"])
def test_what_can_be_dialled_passes(address: str) -> None:
    assert checked_gateway(address) == server_url(address) == address
    assert checked_scheduler(address).endswith(("h:1", "[::1]:50050", "sock"))
    assert checked_http("http://h:1/v1/") == server_url("http://h:1/v1/") == "http://h:1/v1"
