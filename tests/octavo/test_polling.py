"""gRPC's older polling is asked for where the names are known, and never against the operator."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata

import pytest
from octavo import polling
from octavo.polling import DIRECT, EXPERIMENTS_ENV, TESTED, poll_directly

ASKS = "import octavo, os, grpc, grpc.aio; grpc.aio.init_grpc_aio(); print(os.environ.get('GRPC_EXPERIMENTS'))"


@pytest.fixture
def version(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv(EXPERIMENTS_ENV, raising=False)
    monkeypatch.setattr(polling.metadata, "version", lambda _name: f"{TESTED[0]}9")
    return monkeypatch


def test_a_known_version_is_asked(version: pytest.MonkeyPatch) -> None:
    assert poll_directly() and os.environ[EXPERIMENTS_ENV] == DIRECT


def test_what_the_operator_says_stays(version: pytest.MonkeyPatch) -> None:
    version.setenv(EXPERIMENTS_ENV, "")
    assert poll_directly() and os.environ[EXPERIMENTS_ENV] == ""


def test_another_version_keeps_its_own_way(version: pytest.MonkeyPatch) -> None:
    version.setattr(polling.metadata, "version", lambda _name: "1.850.0")
    assert not poll_directly() and EXPERIMENTS_ENV not in os.environ


def test_a_grpc_without_metadata_can_be_imported(version: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    version.setattr(polling.metadata, "version", unknown)
    assert not poll_directly() and EXPERIMENTS_ENV not in os.environ


def test_this_grpc_knows_the_names() -> None:
    environment = {name: value for name, value in os.environ.items() if name != EXPERIMENTS_ENV}
    done = subprocess.run([sys.executable, "-c", ASKS], env=environment, capture_output=True, text=True, check=True)
    asked = DIRECT if metadata.version("grpcio").startswith(TESTED) else "None"
    assert done.stdout.strip() == asked and "experiment" not in done.stderr.lower()
