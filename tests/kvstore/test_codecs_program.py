"""python -m octavo_kvstore.codecs: payloads in, payloads out, figures at the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from octavo_kvstore.codecs.forms import INT8
from octavo_kvstore.codecs.samples import sample_payload
from octavo_kvstore.codecs.shape import PayloadShape

SHAPE = PayloadShape(2, 2, 1, 16, 32, "bfloat16")
ROOT = Path(__file__).parents[2]


def run(words: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/protos{os.pathsep}{ROOT}/kvstore"}
    command = [sys.executable, "-m", "octavo_kvstore.codecs", *words]
    return subprocess.run(command, input=given, capture_output=True, env=environment, timeout=60, check=False)


def test_payloads_go_through_the_form() -> None:
    payloads = [sample_payload(SHAPE, number) for number in range(3)]
    done = run(["int8", *map(str, SHAPE.dims), SHAPE.dtype], b"".join(payloads))
    assert done.returncode == 0
    assert done.stdout == b"".join(INT8.decode(INT8.encode(item, SHAPE) or b"", SHAPE) for item in payloads)
    figures = json.loads(done.stderr)
    assert figures["payloads"] == 3 and 1.7 < figures["ratio"] < 1.8 and figures["encode_bytes_per_s"] > 0


def test_what_cannot_be_used_is_one_line_and_code_2() -> None:
    for words in ([], ["gzip", "2", "2", "1", "16", "32", "bfloat16"], ["int8", "2", "2", "1", "16", "32", "int8"]):
        done = run(words)
        assert done.returncode == 2 and done.stderr.startswith(b"octavo codecs: ")
