"""Which gateway or scheduler a command speaks to: --url or --scheduler, or the cluster of the run folder."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.rpc.settings import load_settings

from octavo_cli.addresses import HTTP, checked_gateway, checked_http, checked_scheduler
from octavo_cli.exits import NoCluster
from octavo_cli.state import running_state


def run_dir_of(run_dir: str = "", manifest: str = "") -> Path:
    """The run folder named by a flag, else by the manifest and the environment."""
    if run_dir:
        return Path(run_dir).absolute()
    flags = ["--manifest", manifest] if manifest else []
    return Path(load_settings(flags, os.environ).manifest.deployment.run_dir).absolute()


def run_folder(run_dir: str = "") -> Path:
    """As `run_dir_of`, of a cluster that may be over. Raises NoCluster when there is no such folder."""
    folder = run_dir_of(run_dir)
    if not folder.is_dir():
        raise NoCluster(f"there is no run folder {folder}; `octavo up` makes one, --run-dir names another")
    return folder


def gateway_url(url: str, run_dir: str = "", manifest: str = "") -> str:
    """grpc://host:port to dial. Raises NoCluster when nothing is named and nothing runs, InvalidRequest for an address that is none."""
    return checked_gateway(url) if url else _running_urls(run_dir, manifest)["grpc"]


def server_url(url: str, run_dir: str = "") -> str:
    """As `gateway_url`, or http(s)://host:port/v1 of any OpenAI-compatible server."""
    return checked_http(url, "http://host:port/v1") if url.startswith(HTTP) else gateway_url(url, run_dir)


def scheduler_address(scheduler: str, run_dir: str = "") -> str:
    """host:port of the scheduler to ask. Raises as `gateway_url`."""
    if scheduler:
        return checked_scheduler(scheduler)
    return next(item.address for item in running_state(run_dir_of(run_dir)).services if item.kind == "scheduler")


def http_url(url: str, run_dir: str) -> str:
    """http://host:port to ask, without a slash at its end. Raises as `gateway_url`."""
    return checked_http(url) if url else _running_urls(run_dir)["http"].rstrip("/")


def _running_urls(run_dir: str, manifest: str = "") -> dict[str, str]:
    folder = run_dir_of(run_dir, manifest)
    state = running_state(folder)
    if state.stopping:
        raise NoCluster(f"the cluster of {folder} is stopping")
    if not state.ready:
        raise NoCluster(f"the cluster of {folder} is still starting; `octavo status` shows how far it is")
    return state.urls
