"""Why a file cannot be read, without the file's name and the error's number."""

from __future__ import annotations

from pathlib import Path

import pytest
from octavo_cli.inputs import reading_fault


def test_the_reason_alone(tmp_path: Path) -> None:
    with pytest.raises(OSError) as absent:
        (tmp_path / "absent").read_text()
    assert reading_fault(absent.value) == "No such file or directory"
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError) as damaged:
        (tmp_path / "bytes").read_text(encoding="utf-8")
    assert "can't decode byte 0xff" in reading_fault(damaged.value)
    assert reading_fault(OSError("no number")) == "no number"
