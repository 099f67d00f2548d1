"""python -m octavo_gpuworker.bench [manifest flags]: answers requests on stdin, one JSON object a line, until stdin ends.

The command line resolves the environment and hands every setting on as a flag.

{"do": "row", "row": "decode/bf16/b1", "steps": 32, "seed"?: 0} -> {"tokens", "steps", "seconds", "floor_s"?, "backend"}
{"do": "check", "row": "decode/bf16/b1"} -> {"fault": "" or what is wrong with the name}; opens no model
{"do": "quality", "weights": "int8", "kv_dtype": "auto", "ids": [...], "through"?: [command]} -> {"nll": [...], "top": [...], "codec"?: {...}}
An error is {"error": "..."} and the process goes on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from octavo.errors import OctavoError
from octavo.rpc.settings import load_settings, set_environment_default

from octavo_gpuworker.bench.bench import Bench
from octavo_gpuworker.bench.row import name_fault


def main() -> int:
    """Runs until stdin ends. Exit code 2 with one line when the settings cannot be used."""
    set_environment_default("OMP_WAIT_POLICY", "PASSIVE")
    try:
        bench = Bench(load_settings(sys.argv[1:], {}).manifest)
    except OctavoError as error:
        print(f"octavo bench: {error}", file=sys.stderr)
        return 2
    for line in sys.stdin:
        try:
            answer = _answer(bench, json.loads(line))
        except OctavoError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    return 0


def _answer(bench: Bench, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "check":
        return {"fault": name_fault(request["row"])}
    if request["do"] == "row":
        return bench.row(request["row"], request["steps"], request.get("seed", 0))
    return bench.quality(request["weights"], request["kv_dtype"], request["ids"], request.get("through") or [])


if __name__ == "__main__":
    sys.exit(main())
