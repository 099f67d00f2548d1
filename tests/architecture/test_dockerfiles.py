"""The Dockerfiles: what they install, as whom they run, and (soak) that their install lines work in a fresh venv."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERVICES = ("gateway", "scheduler", "gpuworker", "kvstore")


def instructions(service: str) -> list[tuple[str, str]]:
    """(instruction, rest) of a Dockerfile, continued lines joined."""
    text = (ROOT / service / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def install_lines(service: str) -> list[str]:
    return [rest for word, rest in instructions(service) if word == "RUN" and rest.startswith("pip install")]


@pytest.mark.parametrize("service", SERVICES)
def test_the_form(service: str) -> None:
    words = instructions(service)
    assert words[0] == ("FROM", "python:3.11-slim")
    order = [word for word, _ in words]
    assert ("USER", "octavo") in words
    assert order.index("USER") > max(at for at, word in enumerate(order) if word == "RUN"), "root only to install"
    assert words[-1] == ("CMD", f'["python", "-m", "octavo_{service}"]')
    lines = install_lines(service)
    assert lines and all("-c constraints.txt" in line and "--no-cache-dir" in line for line in lines)
    assert any("./protos[service]" in line and f"./{service}" in line for line in lines)


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_copied_exists_and_passes_the_dockerignore(service: str) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [name for word, rest in instructions(service) if word == "COPY" for name in rest.split()[:-1]]
    assert {"constraints.txt", "protos", service} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists() and f"!{name}" in ignore


@pytest.mark.parametrize("service", ["gateway", "scheduler", "kvstore"])
def test_only_the_worker_asks_for_torch(service: str) -> None:
    named = re.findall(r"[\w-]+", " ".join(install_lines(service)))
    project = tomllib.loads((ROOT / service / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [re.split(r"[\s<>=\[;]", item)[0] for item in project["dependencies"]]
    assert not {"torch", "triton", "llama-cpp-python"} & {*named, *wanted}
    assert project.get("optional-dependencies", {}).get("triton") is None


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("service", SERVICES)
def test_the_install_lines_work_in_a_fresh_venv(service: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    binaries = tmp_path / "venv/bin"
    arguments = {name.split("=")[0]: "" for word, name in instructions(service) if word == "ARG"}
    path = f"{binaries}:/usr/bin:/bin"
    for line in install_lines(service):
        subprocess.run(
            ["sh", "-ec", line], cwd=ROOT, env={"PATH": path, **arguments, "HOME": str(tmp_path)}, check=True
        )
    listed = subprocess.run([binaries / "pip", "list", "--format=freeze"], capture_output=True, text=True, check=True)
    packages = {line.split("==")[0].lower() for line in listed.stdout.splitlines()}
    assert {"octavo", f"octavo-{service}"} <= packages
    assert ("torch" in packages) == (service == "gpuworker")
    # the command of the image finds its module, and tells a wrong setting from a missing package
    command = [binaries / "python", "-m", f"octavo_{service}", "--no.such_setting", "1"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and "is not a setting" in result.stderr
