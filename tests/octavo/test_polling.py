"""Direct polling: asked for before gRPC is imported, an operator's word goes first, and gRPC then really polls so."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest
from octavo import polling

MESSAGES = 300
PROGRAM = """
import asyncio, sys
from pathlib import Path
import octavo
from grpc import GenericRpcHandler, aio, stream_stream_rpc_method_handler

def switches():
    total = 0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("event_engine"):
            lines = (task / "status").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total

class Handler(GenericRpcHandler):
    def service(self, details):
        async def echo(_, context):
            while (message := await context.read()) is not aio.EOF:
                await context.write(message)
        return stream_stream_rpc_method_handler(echo)

async def main(messages):
    server = aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = channel.stream_stream("/test/echo")()
        before = switches()
        for _ in range(messages):
            await stream.write(b"word")
            assert await stream.read() == b"word"
        print(switches() - before)
        stream.cancel()
    await server.stop(0)

asyncio.run(main(int(sys.argv[1])))
"""

knows = pytest.mark.skipif(
    sys.platform != "linux" or not metadata.version("grpcio").startswith(polling.TESTED),
    reason="this grpcio is left as it is",
)


def switches_of_the_pool(**environment: str) -> int:
    """How often the threads of gRPC's pool went to sleep while a process exchanged MESSAGES messages with itself."""
    given = {name: value for name, value in os.environ.items() if name != polling.EXPERIMENTS_ENV}
    words = [sys.executable, "-c", PROGRAM, str(MESSAGES)]
    done = subprocess.run(words, env={**given, **environment}, check=True, capture_output=True, text=True, timeout=60)
    return int(done.stdout.split()[0])


@knows
def test_a_process_that_imports_octavo_first_has_an_idle_pool() -> None:
    """The second half shows that the first can fail."""
    assert switches_of_the_pool() < MESSAGES / 2
    assert switches_of_the_pool(**{polling.EXPERIMENTS_ENV: ""}) > MESSAGES


def seen_by_a_child(*before: str, **environment: str) -> list[str]:
    """What octavo said, the variable in a program that imported it, and in what that program starts, as JSON words."""
    program = f"""
{"; ".join(before)}
import json, os, subprocess, sys
import octavo, octavo.client
from octavo import polling
own = os.environ.get(polling.EXPERIMENTS_ENV)
words = [sys.executable, "-c", "import json, os; print(json.dumps(os.environ.get('GRPC_EXPERIMENTS')))"]
print(json.dumps(polling.poll_directly()), json.dumps(own), subprocess.run(words, capture_output=True, text=True).stdout)
"""
    given = {name: value for name, value in os.environ.items() if name != polling.EXPERIMENTS_ENV}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env={**given, **environment}, check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.split()


def test_what_a_program_starts_inherits_nothing() -> None:
    """A second call finds gRPC imported and does nothing."""
    assert seen_by_a_child() == ["false", "null", "null"]
    assert seen_by_a_child("import grpc") == ["false", "null", "null"]


@pytest.mark.parametrize("value", ["", "-their_own"])
def test_an_operators_own_value_stands_and_is_inherited(value: str) -> None:
    assert seen_by_a_child(**{polling.EXPERIMENTS_ENV: value}) == ["false", f'"{value}"', f'"{value}"']


class Importing:
    """What stands for the import of gRPC in a program that has not imported it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: ImportError | None = None) -> None:
        self.asked_for: list[str | None] = []
        self.error = error
        monkeypatch.delitem(sys.modules, "grpc")
        monkeypatch.setattr("importlib.import_module", self.take)

    def take(self, name: str) -> None:
        assert name == "grpc"
        self.asked_for.append(os.environ.get(polling.EXPERIMENTS_ENV))
        if self.error is not None:
            raise self.error


@knows
def test_it_is_asked_for_while_grpc_is_imported_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(polling.EXPERIMENTS_ENV, raising=False)
    importing = Importing(monkeypatch)
    assert polling.poll_directly()
    assert importing.asked_for == [polling.DIRECT] and polling.EXPERIMENTS_ENV not in os.environ


@knows
def test_an_import_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(polling.EXPERIMENTS_ENV, raising=False)
    Importing(monkeypatch, ImportError("no libstdc++"))
    with pytest.raises(ImportError, match="libstdc"):
        polling.poll_directly()
    assert polling.EXPERIMENTS_ENV not in os.environ


@pytest.mark.parametrize("version", ["1.84.0", "1.86.0", "1.850.0", "2.0.0"])
def test_another_version_of_grpcio_is_left_alone(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    monkeypatch.delenv(polling.EXPERIMENTS_ENV, raising=False)
    importing = Importing(monkeypatch)
    assert not polling.poll_directly()
    assert importing.asked_for == []


def test_a_grpcio_without_metadata_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a bundled program, which must still be able to import octavo."""

    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", unknown)
    monkeypatch.delenv(polling.EXPERIMENTS_ENV, raising=False)
    importing = Importing(monkeypatch)
    assert not polling.poll_directly()
    assert importing.asked_for == []


@pytest.mark.parametrize(
    "module",
    ["octavo_gateway.__main__", "octavo_scheduler.__main__", "octavo_gpuworker.service", "octavo_kvstore.__main__",
     "octavo_cli.main", "octavo.client"],
)  # fmt: skip
def test_every_program_imports_octavo_before_grpc(module: str) -> None:
    program = f"""
import sys
begun = []
class Noting:
    def find_spec(name, path=None, target=None):
        begun.append(name)
sys.meta_path.insert(0, Noting)
import {module}
print(begun.index("octavo") < begun.index("grpc"))
"""
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "True", done.stderr
