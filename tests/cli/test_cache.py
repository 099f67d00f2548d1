"""octavo cache: arguments, the lines for people, and what a gateway without the service answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from octavo.client import Preload
from octavo.errors import UnknownPreload
from octavo_cli.commands.cache import _known, _line

SHOWN = Preload("t", "docs", 3, "system", "", "ready", "", 1000, 62, 22_855_680, True, "w0", 7, 1.0, {"computed": 1000})


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("preload", "nowhere.txt", "--name", "x", "--url", "grpc://127.0.0.1:1"), 2, "nowhere.txt cannot be read"),
        (("evict", "--url", "grpc://127.0.0.1:1"), 2, "give exactly one of them"),
        (("evict", "--name", "a", "--all", "--url", "grpc://127.0.0.1:1"), 2, "give exactly one of them"),
        (("ls", "--url", "grpc://127.0.0.1:1"), 4, "no answer from 127.0.0.1:1"),
        (("stat", "docs", "--url", "nonsense"), 2, "grpc://host:port"),
        (("explain", "r1"), 4, ""),
    ],
)
def test_bad_arguments_and_no_cluster(octavo: Any, words: tuple[str, ...], code: int, said: str) -> None:
    done = octavo("cache", *words)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (code, 1), done.stderr
    assert said in done.stderr


def test_a_file_that_is_no_text_is_named(octavo: Any, tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(b"\xff\xfe\xff")
    done = octavo("cache", "preload", str(path), "--name", "x", "--url", "grpc://127.0.0.1:1")
    assert done.returncode == 2 and "name UTF-8 text files" in done.stderr


def test_lines_for_people() -> None:
    line = _line(SHOWN)
    assert line.split()[:3] == ["docs", "v3", "ready"] and "1,000 tokens" in line and "pinned" in line
    assert _known("docs", SHOWN) is SHOWN
    with pytest.raises(UnknownPreload, match="octavo cache ls"):
        _known("docs", None)
