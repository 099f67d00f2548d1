"""Peers: other engines measured in turn with ours, each a process that answers the same row requests.

llama.cpp comes through its Python binding; any other one is a command of the user's (`--peer NAME=COMMAND`), which reads
{"do": "row", "row": "decode/bf16/b16", "steps": 24} and answers {"tokens": 384, "steps": 24, "seconds": 0.5}, or {"skip": "why"}
for a row that it does not have.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from octavo.artifacts import resolve_model
from octavo.errors import OctavoError
from octavo.rpc.settings import Settings

from octavo_cli.bench.work import BadPlan
from octavo_cli.engine_bench.child import Child

LLAMACPP: Final = "llamacpp"
HAS: Final = {"prefill": ("bf16", "int8"), "decode": ("bf16", "int8", "int4")}
"""Kinds and weights that llama.cpp's side measures."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


class Peer:
    """One peer's process and the rows that it has."""

    def __init__(self, name: str, child: Child) -> None:
        self.name = name
        self.child = child
        self.skipped: dict[str, str] = {}

    def measure(self, row: str, steps: int) -> dict[str, Any] | None:
        """One sample of the row; None where the peer has no such row. Raises OctavoError with the peer's own words."""
        if row in self.skipped or (self.name == LLAMACPP and not llamacpp_has(row)):
            return None
        answer = self.child.ask(do="row", row=row, steps=steps)
        if "skip" in answer:
            self.skipped[row] = str(answer["skip"])
            return None
        for field in ("tokens", "steps", "seconds"):
            value = answer.get(field)
            if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
                raise OctavoError(f"peer {self.name}: {row}: {field} is {value!r}; expected a number above 0")
        return answer


def llamacpp_has(row: str) -> bool:
    """Whether llama.cpp's side measures such a row."""
    kind, weights, *extras = row.split("/")
    return weights in HAS.get(kind, ()) and not {"sampled", "kv-int8"} & set(extras)


def parse_peers(texts: Sequence[str]) -> dict[str, list[str]]:
    """Name -> command of every NAME=COMMAND. Raises BadPlan."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name, separator, command = text.partition("=")
        if not separator or not _NAME.fullmatch(name):
            raise BadPlan(f"--peer: {text!r} must be NAME=COMMAND, the name of a-z, 0-9, . and -", field="peer")
        if name == LLAMACPP or name in found:
            raise BadPlan(f"--peer: {name!r} is taken; give each peer a name of its own", field="peer")
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise BadPlan(f"--peer: {text!r}: {error}; close the quotes", field="peer") from error
        if not words:
            raise BadPlan(f"--peer: {name!r} has no command", field="peer")
        found[name] = words
    return found


def start_peers(
    settings: Settings, own: bool, commands: dict[str, list[str]], stack: ExitStack, facts: dict[str, str]
) -> list[Peer]:
    """The peers' processes, which end with the stack; `own`: llama.cpp too, where it is found. `facts` says who is there."""
    peers = []
    if own:
        command = _llamacpp(settings)
        facts[f"peer/{LLAMACPP}"] = command if isinstance(command, str) else "present"
        if not isinstance(command, str):
            child = Child.of_module("llama.cpp", "octavo_cli.engine_bench.llamacpp_child", command)
            peers.append(Peer(LLAMACPP, stack.enter_context(child)))
    for name, words in commands.items():
        facts[f"peer/{name}"] = shlex.join(words)
        peers.append(Peer(name, stack.enter_context(Child(f"peer {name}", words))))
    return peers


def _llamacpp(settings: Settings) -> list[str] | str:
    """The arguments of llama.cpp's side, or why it is absent."""
    if importlib.util.find_spec("llama_cpp") is None:
        return "absent: no llama_cpp in this Python (pip install llama-cpp-python); see bench/README.md"
    files = resolve_model(settings.manifest.model.ref)
    if files.kind != "gguf":
        return f"absent: it reads GGUF, and {files.name} is a folder of safetensors"
    threads = settings.manifest.engine.threads or len(os.sched_getaffinity(0))
    return [str(files.path), str(threads)]
