"""The form of the code base: fresh generated code, buf's rules, files that stay small, no catch-all modules."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE_FOLDERS = (
    "protos/octavo",
    *(f"{name}/octavo_{name}" for name in ("gateway", "scheduler", "gpuworker", "kvstore", "cli")),
)
MAX_LINES, LONG_LINES = 600, 400
PROTOS = sorted((ROOT / "protos/octavo/v1").glob("*.proto"))


def written_files() -> list[Path]:
    """Every hand-written Python file of the product and its tests."""
    found = [path for folder in (*PACKAGE_FOLDERS, "tests", "bench") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in found if "/v1/" not in path.as_posix()]


def test_generated_code_is_fresh(tmp_path: Path) -> None:
    names = [str(path.relative_to(ROOT / "protos")) for path in PROTOS]
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *names],
        cwd=ROOT / "protos",
        check=True,
        timeout=60,
    )
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*.py*"))
    assert len(made) == 3 * len(PROTOS)
    stale = [str(path) for path in made if (tmp_path / path).read_bytes() != (ROOT / "protos" / path).read_bytes()]
    assert stale == [], "run `make protos`"
    kept = {path.relative_to(ROOT / "protos") for path in (ROOT / "protos/octavo/v1").glob("*_pb2*.py*")}
    assert kept == set(made), "generated code of a proto that is gone"


def buf_lint(folder: Path) -> subprocess.CompletedProcess[str]:
    buf = str(Path(sys.executable).with_name("buf"))
    return subprocess.run([buf, "lint"], cwd=folder, capture_output=True, text=True, timeout=60)


def test_buf_lint() -> None:
    result = buf_lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_buf_lint_would_find_a_shared_response_type(tmp_path: Path) -> None:
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(ROOT / "protos/octavo/v1", tmp_path / "protos/octavo/v1", ignore=shutil.ignore_patterns("*.py*"))
    path = tmp_path / "protos/octavo/v1/kvstore.proto"
    path.write_text(path.read_text().replace("returns (UnpinResponse)", "returns (PinResponse)"))
    result = buf_lint(tmp_path)
    assert result.returncode != 0 and "RPC" in result.stdout


def test_every_rpc_has_its_comment() -> None:
    bare = []
    for path in PROTOS:
        lines = path.read_text(encoding="utf-8").splitlines()
        for above, line in itertools.pairwise(lines):
            if line.strip().startswith("rpc ") and not above.strip().startswith("//"):
                bare.append(f"{path.name}: {line.strip()}")
    assert bare == []


def test_files_stay_small(record_property: pytest.RecordProperty) -> None:
    sizes = {path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines()) for path in written_files()}
    long = {name: lines for name, lines in sorted(sizes.items()) if lines > LONG_LINES}
    for name, lines in long.items():
        record_property(name, lines)
        print(f"{lines:5} lines: {name}")
    assert {name: lines for name, lines in long.items() if lines > MAX_LINES} == {}


def test_no_catch_all_modules() -> None:
    assert [str(path) for path in written_files() if path.stem in {"utils", "util", "common", "helpers", "misc"}] == []


@pytest.mark.parametrize("folder", ["protos", "gateway", "scheduler", "gpuworker", "kvstore", "cli"])
def test_each_folder_is_one_distribution(folder: str) -> None:
    text = (ROOT / folder / "pyproject.toml").read_text(encoding="utf-8")
    assert 'license = "Apache-2.0"' in text and "requires-python" in text
