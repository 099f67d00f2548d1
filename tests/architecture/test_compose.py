"""docker-compose.yml without Docker: its form, its promises, and each service's own command until it is healthy.

compose_spec.json is the Compose specification's schema as shipped in the PyPI package docker-compose 1.29.2 (Apache-2.0).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from octavo.manifest import Manifest
from octavo.rpc.settings import load_settings

ROOT = Path(__file__).parents[2]
OURS = ("gateway", "scheduler", "gpuworker", "gpuworker-gpu", "kvstore")
PATHS = os.pathsep.join(str(ROOT / name) for name in ("protos", "gateway", "scheduler", "gpuworker", "kvstore", "cli"))


def interpolate(text: str) -> str:
    """`${NAME:-default}` as Compose reads it with an empty environment."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded = yaml.safe_load(interpolate((ROOT / "docker-compose.yml").read_text(encoding="utf-8")))
    assert isinstance(loaded, dict)
    return loaded


def seconds(text: str) -> float:
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert match, text
    return 60.0 * int(match[1] or 0) + int(match[2] or 0)


def test_it_fits_the_schema(compose: dict[str, Any]) -> None:
    schema = json.loads((Path(__file__).parent / "compose_spec.json").read_text(encoding="utf-8"))
    # the project name came into the specification later, with this pattern
    schema["properties"]["name"] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"}
    jsonschema.validate(compose, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**compose, "services": {"gateway": {"comand": ["x"]}}}, schema)


def test_the_cell_is_whole(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {*OURS, "jaeger", "prometheus", "grafana"}
    jaeger = compose["services"]["jaeger"]
    assert jaeger["image"] == "jaegertracing/jaeger:2.20.0"
    assert {"16686:16686", "4317:4317"} <= set(jaeger["ports"])


def test_without_a_flag_it_is_the_cpu_cluster(compose: dict[str, Any]) -> None:
    profiles = {name: service.get("profiles", []) for name, service in compose["services"].items()}
    assert profiles.pop("gpuworker") == ["cpu"] and profiles.pop("gpuworker-gpu") == ["gpu"]
    assert profiles.pop("prometheus") == profiles.pop("grafana") == ["observability"]
    assert all(not names for names in profiles.values())
    assert "COMPOSE_PROFILES=cpu" in (ROOT / ".env").read_text(encoding="utf-8").splitlines()


def test_prometheus_asks_every_service_where_it_answers(compose: dict[str, Any]) -> None:
    scraped = yaml.safe_load((ROOT / "observability/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    fixed = {target for job in scraped for config in job.get("static_configs", []) for target in config["targets"]}
    found = {
        f"{name}:{config['port']}"
        for job in scraped
        for config in job.get("dns_sd_configs", [])
        for name in config["names"]
    }
    answers = set()
    for name in OURS:
        manifest = load_settings([], compose["services"][name]["environment"]).manifest
        section = name.removesuffix("-gpu")
        listen = manifest.gateway.http_listen if name == "gateway" else getattr(manifest, section).metrics_listen
        answers.add(f"{name}:{listen.rpartition(':')[2]}")
    assert fixed | found == answers
    for volume in (*compose["services"]["prometheus"]["volumes"], *compose["services"]["grafana"]["volumes"]):
        assert (ROOT / volume.split(":")[0]).exists(), volume


@pytest.mark.parametrize("name", OURS)
def test_each_service_keeps_the_house_rules(compose: dict[str, Any], name: str) -> None:
    service = compose["services"][name]
    assert service["init"] is True
    assert "container_name" not in service
    drain_s = float(service["environment"]["OCTAVO_DEPLOYMENT_DRAIN_TIMEOUT_S"])
    assert seconds(service["stop_grace_period"]) > drain_s
    assert service["healthcheck"]["test"][:4] == ["CMD", "python", "-m", "octavo.rpc.healthcheck"]
    assert "ports" not in service or name == "gateway"
    assert set(service["environment"]) == {key for key in service["environment"] if key.startswith("OCTAVO_")}
    dockerfile = ROOT / service["build"]["dockerfile"]
    assert dockerfile.is_file() and dockerfile.parent.name == name.removesuffix("-gpu")
    for other, condition in service.get("depends_on", {}).items():
        assert other in compose["services"] and not compose["services"][other].get("profiles")
        # everyone dials and dials again, so nobody needs to wait for the health of another
        assert condition == {"condition": "service_started"}


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting_and_addresses_meet(compose: dict[str, Any], name: str) -> None:
    manifest = load_settings([], compose["services"][name]["environment"]).manifest
    listen = {
        "gateway": manifest.gateway.grpc_listen,
        "scheduler": manifest.scheduler.listen,
        "gpuworker": manifest.gpuworker.listen,
        "gpuworker-gpu": manifest.gpuworker.listen,
        "kvstore": manifest.kvstore.listen,
    }[name]
    probed = compose["services"][name]["healthcheck"]["test"][4]
    assert probed == listen.replace("0.0.0.0", "127.0.0.1"), "the health check asks the port that is served"
    scheduler = load_settings([], compose["services"]["scheduler"]["environment"]).manifest.scheduler
    dialled = {manifest.gateway.scheduler, manifest.gpuworker.scheduler, manifest.kvstore.scheduler}
    if name != "scheduler":
        assert f"scheduler:{scheduler.listen.rpartition(':')[2]}" in dialled - {Manifest().gateway.scheduler}
    if name.startswith("gpuworker"):
        kvstore = load_settings([], compose["services"]["kvstore"]["environment"]).manifest.kvstore
        assert manifest.gpuworker.kvstore == kvstore.listen
        assert compose["services"]["kvstore"]["volumes"][0] in compose["services"][name]["volumes"]


# running it


class Machine:
    """Loopback in place of the network, folders in place of volumes."""

    def __init__(self, compose: Mapping[str, Any], folder: Path) -> None:
        self.compose, self.folder = compose, folder
        self.ports: dict[str, int] = {}
        (folder / "run").mkdir()

    def mapped(self, text: str, service: str) -> str:
        names = "|".join([*self.compose["services"], r"0\.0\.0\.0", r"127\.0\.0\.1"])
        text = re.sub(rf"\b(?:{names}):(\d+)", lambda match: f"127.0.0.1:{self.port(match[1])}", text)
        text = text.replace("/run/octavo", str(self.folder / "run"))
        return text.replace("/var/lib/octavo", str(self.folder / service))

    def port(self, inside: str) -> int:
        if inside not in self.ports:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.ports[inside] = probe.getsockname()[1]
        return self.ports[inside]

    def environment(self, name: str) -> dict[str, str]:
        service = self.compose["services"][name]
        given = {**image_environment(ROOT / service["build"]["dockerfile"]), **service["environment"]}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OCTAVO_", "OTEL_"))}
        return {**kept, **{key: self.mapped(str(value), name) for key, value in given.items()}, "PYTHONPATH": PATHS}

    def command(self, name: str, words: list[str]) -> list[str]:
        return [sys.executable if word == "python" else self.mapped(word, name) for word in words]

    async def start(self, name: str) -> asyncio.subprocess.Process:
        (self.folder / name).mkdir()
        with (self.folder / f"{name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                *self.command(name, self.compose["services"][name]["command"]),
                env=self.environment(name),
                cwd=self.folder / name,
                stdout=log,
                stderr=log,
            )

    async def is_healthy(self, name: str) -> bool:
        words = self.compose["services"][name]["healthcheck"]["test"]
        probe = await asyncio.create_subprocess_exec(
            *self.command(name, words[1:]), env=self.environment(name), stdout=asyncio.subprocess.DEVNULL
        )
        return await probe.wait() == 0

    async def run_until_healthy(self, names: list[str], timeout_s: float) -> None:
        """Starts the services in this order, waits for all of them, stops them all; each must end with code 0."""
        running = {name: await self.start(name) for name in names}
        try:
            async with asyncio.timeout(timeout_s):
                for name, process in running.items():
                    while not await self.is_healthy(name):
                        assert process.returncode is None, f"{name}: {self.log(name)}"
                        await asyncio.sleep(0.3)
        except TimeoutError:
            pytest.fail("\n".join(f"--- {name}\n{self.log(name)}" for name in names))
        finally:
            for process in reversed(running.values()):
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
            codes = {name: await asyncio.wait_for(process.wait(), 30) for name, process in running.items()}
        assert codes == dict.fromkeys(names, 0), {name: self.log(name) for name in names if codes[name]}

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-2000:]


def image_environment(dockerfile: Path) -> dict[str, str]:
    """The variables that an ENV line of the image sets."""
    words = [
        word
        for line in dockerfile.read_text(encoding="utf-8").splitlines()
        if line.startswith("ENV ")
        for word in line.split()[1:]
    ]
    return dict(word.split("=", 1) for word in words)


async def test_the_kvstores_own_command_gets_healthy(compose: dict[str, Any], tmp_path: Path) -> None:
    await Machine(compose, tmp_path).run_until_healthy(["kvstore"], 30)
    assert (tmp_path / "kvstore/nvme/data.mdb").exists(), "the blocks lie in the named volume"


@pytest.mark.e2e
@pytest.mark.timeout(240)
async def test_the_cpu_cluster_gets_healthy(compose: dict[str, Any], tmp_path: Path) -> None:
    """Exactly the file's commands, environments and health checks, all four services at once."""
    await Machine(compose, tmp_path).run_until_healthy(["scheduler", "kvstore", "gpuworker", "gateway"], 180)
