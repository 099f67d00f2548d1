"""cache: keep documents in the cache, see what is kept, throw it out, and ask why something was not found."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from octavo.client import AsyncCache, AsyncClient, Preload
from octavo.client.cache import BUILD_TIMEOUT_S
from octavo.errors import InvalidRequest, UnknownPreload

from octavo_cli.inputs import reading_fault
from octavo_cli.locate import gateway_url
from octavo_cli.size.report import both

cache_app = typer.Typer(
    help="Keep documents in the cache, see what is kept, throw it out. And ask why something was not found.",
    no_args_is_help=True,
)

Url = Annotated[str, typer.Option("--url", help="grpc://host:port of a gateway; absent: the run folder's cluster.")]
RunDir = Annotated[str, typer.Option("--run-dir", help="Run folder of the cluster; absent: deployment.run_dir.")]
ApiKey = Annotated[str, typer.Option("--api-key", help="Key of your tenant.")]
Tenant = Annotated[str, typer.Option("--tenant", help="Another tenant than your key's; for admins.")]
Name = Annotated[str, typer.Argument(help="A preload's name.")]
Salt = Annotated[str, typer.Option("--salt", help="The cache salt of the requests in question.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ASKED = "Continue."
"""What the first answer from new content is asked for with."""
T = TypeVar("T")


@cache_app.callback()
def cache() -> None:
    """Keep documents in the cache, see what is kept, throw it out. And ask why something was not found."""


@cache_app.command()
def preload(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Text files; - reads standard input.")],
    name: Annotated[str, typer.Option("--name", help="Name by which requests say cache.preload.")],
    form: Annotated[
        str, typer.Option("--form", help="system: a system message that chats continue; raw: bare text.")
    ] = "system",
    salt: Salt = "",
    timeout_s: Annotated[float, typer.Option("--timeout-s", help="Longest wait.")] = BUILD_TIMEOUT_S,
    url: Url = "",
    run_dir: RunDir = "",
    api_key: ApiKey = "",
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Prefill documents once and keep them pinned under a name. A known name is swapped in one go."""
    texts = [_read(item) for item in files]
    address = gateway_url(url, run_dir)
    began_s = time.monotonic()

    async def work() -> dict[str, Any]:
        async with AsyncCache(address, api_key=api_key, tenant=tenant) as keeper:
            done = await keeper.preload(name, texts, form=form, salt=salt, timeout_s=timeout_s)
        answered_s = await _first_answer(address, api_key, name, form) if not tenant else None
        return {
            "preload": asdict(done.preload),
            "replaced": done.replaced,
            "build_s": done.build_s,
            "first_answer_s": None if answered_s is None else answered_s - began_s,
        }

    said = asyncio.run(work())
    if as_json:
        typer.echo(json.dumps(said))
        return
    kept = said["preload"]
    source = ", ".join(f"{count:,} {where}" for where, count in kept["source"].items() if count)
    typer.echo(
        f"{name}: {'replaced' if said['replaced'] else 'kept'} as version {kept['version']}: {kept['tokens']:,} tokens, "
        f"{kept['blocks']:,} blocks, {both(kept['bytes'])}, in {said['build_s']:.2f} s ({source})"
    )
    if said["first_answer_s"] is not None:
        typer.echo(f"first answer from this content after {said['first_answer_s']:.2f} s")


async def _first_answer(address: str, api_key: str, name: str, form: str) -> float:
    """When the first token of a request that names the preload was there."""
    async with AsyncClient(address, api_key=api_key) as client:
        if form == "system":
            await client.chat(ASKED, max_tokens=1, temperature=0.0, cache={"preload": name})
        else:
            await client.generate(ASKED, max_tokens=1, temperature=0.0, cache={"preload": name})
    return time.monotonic()


def _read(path: str) -> str:
    if path == "-":
        return sys.stdin.read()
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"FILE: {path} cannot be read: {reading_fault(error)}; name UTF-8 text files", field="files"
        ) from error


@cache_app.command("ls")
def list_preloads(
    url: Url = "", run_dir: RunDir = "", api_key: ApiKey = "", tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """List the preloads, how they are, and the pin quota."""
    found = _ask(url, run_dir, api_key, tenant, lambda keeper: keeper.preloads())
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    for item in found.preloads:
        typer.echo(_line(item))
    if not found.preloads:
        typer.echo("no preloads; `octavo cache preload FILE --name NAME` makes one")
    typer.echo(f"pinned {both(found.pinned_bytes)} of {both(found.pin_quota_bytes)}")


def _line(item: Preload) -> str:
    pinned = "pinned" if item.pinned else "not pinned"
    why = f": {item.why}" if item.why else ""
    return (
        f"{item.name:<24} v{item.version:<4} {item.state:<9} {item.tokens:>9,} tokens {both(item.bytes, short=True):>12}  "
        f"{pinned:<10} {item.uses:>6} uses  {item.worker}{why}"
    )


@cache_app.command()
def stat(
    name: Name, url: Url = "", run_dir: RunDir = "", api_key: ApiKey = "", tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """Show one preload: state, size, uses. And where its tokens came from when it was last built."""
    found = _known(name, _ask(url, run_dir, api_key, tenant, lambda keeper: keeper.stat(name)))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    typer.echo(_line(found))
    for where, count in found.source.items():
        typer.echo(f"  {count:>9,} tokens {where}")


@cache_app.command()
def rm(
    name: Name, url: Url = "", run_dir: RunDir = "", api_key: ApiKey = "", tenant: Tenant = "", as_json: AsJson = False
) -> None:
    """Forget a preload and its blocks in every tier. Requests that run on it finish."""
    gone = _known(name, _ask(url, run_dir, api_key, tenant, lambda keeper: keeper.remove(name)))
    said = {"removed": name, "blocks": gone.blocks}
    typer.echo(json.dumps(said) if as_json else f"{name}: removed, {gone.blocks:,} blocks thrown out")


@cache_app.command()
def pin(
    name: Name,
    off: Annotated[bool, typer.Option("--off", help="Let its blocks go when room is needed.")] = False,
    url: Url = "",
    run_dir: RunDir = "",
    api_key: ApiKey = "",
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Pin a preload again, or stop pinning it. Computes what is gone."""
    found = _known(name, _ask(url, run_dir, api_key, tenant, lambda keeper: keeper.pin(name, not off)))
    typer.echo(json.dumps(asdict(found)) if as_json else _line(found))


@cache_app.command()
def evict(
    name: Annotated[str, typer.Option("--name", help="A preload; it stays known and can be pinned again.")] = "",
    prefix: Annotated[str, typer.Option("--prefix", help="Everything that begins with this text.")] = "",
    prefix_file: Annotated[str, typer.Option("--prefix-file", help="The same, from a file.")] = "",
    form: Annotated[
        str, typer.Option("--form", help="Of the prefix: raw, or system for chats with this system message.")
    ] = "raw",
    salt: Salt = "",
    everything: Annotated[bool, typer.Option("--all", help="Everything of the tenant.")] = False,
    url: Url = "",
    run_dir: RunDir = "",
    api_key: ApiKey = "",
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Throw cached blocks out of every tier. By preload, by beginning, or all of a tenant."""
    if sum(map(bool, (name, prefix, prefix_file, everything))) != 1:
        raise InvalidRequest("--name, --prefix, --prefix-file, --all: give exactly one of them", field="name")
    text = _read(prefix_file) if prefix_file else prefix

    def work(keeper: AsyncCache) -> Awaitable[Any]:
        return keeper.evict(name=name, prefix=text, form=form, salt=salt, whole_tenant=everything)

    gone = _ask(url, run_dir, api_key, tenant, work)
    stores = f"; kvstores told: {gone.stores}" if gone.stores else ""
    typer.echo(json.dumps(asdict(gone)) if as_json else f"{gone.blocks:,} blocks thrown out of the pools{stores}")


@cache_app.command()
def rotate(
    tenant: Annotated[str, typer.Argument(help="The tenant; your key's own, or any for admins.")],
    url: Url = "",
    run_dir: RunDir = "",
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Give a tenant a new namespace. What was cached for it is never found again, and is thrown out."""
    done = _ask(url, run_dir, api_key, tenant, lambda keeper: keeper.rotate())
    typer.echo(
        json.dumps(asdict(done))
        if as_json
        else f"{tenant}: namespace generation {done.generation}; {done.blocks:,} blocks thrown out; "
        f"kvstores told: {done.stores}; preloads to compute again: {done.preloads}"
    )


@cache_app.command()
def explain(
    request: Annotated[str, typer.Argument(help="A request id, of the last minutes.")],
    url: Url = "",
    run_dir: RunDir = "",
    api_key: ApiKey = "",
    tenant: Tenant = "",
    as_json: AsJson = False,
) -> None:
    """Say where a request left the nearest cached prefix, and why."""
    found = _ask(url, run_dir, api_key, tenant, lambda keeper: keeper.explain(request))
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    typer.echo(f"{found.reason}: {found.message}")
    typer.echo(
        f"{found.cached_tokens:,} of {found.prompt_tokens:,} prompt tokens were found, up to token {found.left_at:,}"
    )
    if found.nearest and found.reason != "whole":
        typer.echo(f"  this request from token {found.around_from:,}: {found.own_text!r}")
        typer.echo(f"  {found.nearest}: {found.other_text!r}")


def _ask(url: str, run_dir: str, api_key: str, tenant: str, work: Callable[[AsyncCache], Awaitable[T]]) -> T:
    address = gateway_url(url, run_dir)

    async def asked() -> T:
        async with AsyncCache(address, api_key=api_key, tenant=tenant) as keeper:
            return await work(keeper)

    return asyncio.run(asked())


def _known(name: str, found: T | None) -> T:
    if found is None:
        raise UnknownPreload(f"NAME: {name!r} is no preload; `octavo cache ls` lists them", field="name")
    return found


def register(app: typer.Typer) -> None:
    """Adds the group."""
    app.add_typer(cache_app, name="cache")
