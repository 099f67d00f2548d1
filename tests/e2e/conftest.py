"""One cluster per module for the tests that share it; tests that kill things make their own."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

for name in ("cluster", "mann_whitney", "sdk_storm", "storm"):  # sibling modules under importmode=importlib
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)

from cluster import Cluster  # noqa: E402


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of this test alone; all are taken down at its end."""
    made: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        cluster = Cluster(tmp_path / f"run{len(made)}", **options)
        made.append(cluster)
        return cluster

    yield make
    for cluster in made:
        cluster.down()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """The default cluster with the real model, shared by a module."""
    shared = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        await shared.up()
        yield shared
    finally:
        shared.down()
