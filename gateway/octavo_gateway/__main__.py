"""`python -m octavo_gateway`: the gateway's process."""

from __future__ import annotations

import gc
import os
import socket
import sys
import time

from octavo.artifacts import (
    BadArtifact,
    ModelFiles,
    chat_template,
    chat_template_hash,
    read_gguf_metadata,
    read_json,
    resolve_model,
    tokenizer_hash,
)
from octavo.errors import OctavoError
from octavo.manifest import ModelSettings
from octavo.rpc.channels import open_channel
from octavo.rpc.host import EXIT_MISMATCH, Host, run_service
from octavo.v1 import cache_pb2, inference_pb2

from octavo_gateway.admission import Admission, GenerationDefaults
from octavo_gateway.caching.cache_link import CacheLink
from octavo_gateway.caching.preloads import Preloads
from octavo_gateway.caching.service_wire import CacheServicer, register_cache
from octavo_gateway.chat import ChatRenderer
from octavo_gateway.gate_link import start_gate
from octavo_gateway.gateway import ModelFacts, OctavoGateway
from octavo_gateway.http.server import start_http
from octavo_gateway.metrics import GatewayMetrics
from octavo_gateway.page.cell_wire import CellWatch
from octavo_gateway.page.feed import LiveFeed
from octavo_gateway.page.latency import LatencyWindow
from octavo_gateway.release_gate import Gate
from octavo_gateway.service import InferenceServicer, abort, edge_context, register
from octavo_gateway.tenants import TenantDirectory
from octavo_gateway.tokenizer_files import generation_defaults, load_tokenizer
from octavo_gateway.upstream import Upstream, UpstreamSettings


class ArtifactRefused(OctavoError):
    """A model file that cannot be served, or that is not the one in the manifest."""

    exit_code = EXIT_MISMATCH


def check_hashes(files: ModelFiles, expected: ModelSettings) -> None:
    """ArtifactRefused, naming the artifact, when tokenizer or chat template is not the one of the manifest."""
    for name, want, have in (
        ("tokenizer", expected.tokenizer_blake3, tokenizer_hash),
        ("chat template", expected.chat_template_blake3, chat_template_hash),
    ):
        if want and (found := have(files)) != want:
            raise ArtifactRefused(
                f"{name} of {files.path} has blake3 {found}, the manifest says {want}; serve the right files or update it"
            )


def load_admission(files: ModelFiles, name: str, secret: str) -> Admission:
    """Tokenizer, chat template and sampling defaults of a model. BadArtifact when one cannot be served."""
    tokenizer = load_tokenizer(files)
    renderer = ChatRenderer(chat_template(files), tokenizer)
    return Admission(name, tokenizer, renderer, secret.encode(), GenerationDefaults(**generation_defaults(files)))


def architecture_of(files: ModelFiles) -> str:
    """The architecture's name in the model's own file."""
    if files.kind == "gguf":
        return read_gguf_metadata(files.path).text("general.architecture")
    names = read_json(files.config_json).get("architectures") or [""]
    return str(names[0])


async def setup(host: Host) -> None:
    """Both edges on one loop; ready once a worker is."""
    manifest, settings = host.manifest, host.manifest.gateway
    try:
        files = resolve_model(manifest.model.ref)
        check_hashes(files, manifest.model)
        admission = load_admission(files, manifest.model.name or files.name, manifest.deployment.secret)
        facts = ModelFacts(architecture_of(files), int(files.path.stat().st_mtime))
    except BadArtifact as error:
        raise ArtifactRefused(str(error)) from error

    gate = Gate(open=not manifest.release_gate.enabled)

    def tell_state() -> None:
        if host.state != "draining":
            why = (
                ""
                if upstream.ready and gate.open
                else gate.why
                if upstream.ready
                else "no scheduler with a ready worker"
            )
            host.set_state("not_serving" if why else "serving", why)

    gate.on_change.append(tell_state)

    channel = open_channel(settings.scheduler)
    upstream = Upstream(
        channel,
        UpstreamSettings(
            gateway_id=settings.gateway_id or f"{socket.gethostname()}-{os.getpid()}",
            connect_grace_s=settings.connect_grace_s,
            max_stop_strings=settings.max_stop_strings,
            max_logprobs=settings.max_logprobs,
        ),
        admission.rekey,
        time.monotonic,
        host.log,
        lambda _ready: tell_state(),
        lambda load: metrics.cell_load(load),
    )
    metrics = GatewayMetrics(
        host.metrics,
        lambda: upstream.live_count,
        manifest.scheduler.slo_classes,
        manifest.scheduler.default_slo_class,
        admission.model,
    )
    window = LatencyWindow(time.monotonic, manifest.scheduler.default_slo_class, metrics.missed_by)
    tenants = TenantDirectory(manifest.tenants.keys, manifest.tenants.admins)
    cache = CacheLink(channel)
    gateway = OctavoGateway(
        admission, upstream, tenants, facts, metrics, host.tracer, host.log,
        time.monotonic, settings.slow_client_timeout_s, gate, window.ended, Preloads(cache),
    )  # fmt: skip
    feed = LiveFeed(
        CellWatch(channel), window, upstream.live_requests, time.monotonic, admission.model, host.log,
        closed=lambda: "" if gate.open else gate.why,
    )  # fmt: skip
    metrics.watch_viewers(lambda: feed.viewers)
    servicer = InferenceServicer(gateway, host.log, most_calls=settings.max_session_calls)
    register(servicer, host.server, settings.max_body_bytes)
    caching = CacheServicer(cache, admission, tenants, gate, lambda context: edge_context(context).api_key, abort)
    register_cache(caching, host.server, abort, settings.max_body_bytes)
    host.announce(cache_pb2.DESCRIPTOR)
    host.announce(inference_pb2.DESCRIPTOR)
    host.on_drain(gateway.drain)
    host.on_drain(servicer.end_sessions)
    await host.listen(settings.grpc_listen)
    host.set_state("not_serving", "no scheduler with a ready worker")
    if not gate.open:
        await start_gate(gateway, gate, host)
    await start_http(gateway, feed, host)
    host.log.info("gRPC on %s, HTTP on %s", host.urls["grpc"], host.urls["http"])
    host.spawn(upstream.run(), "upstream")
    gc.freeze()


if __name__ == "__main__":
    sys.exit(run_service("gateway", setup, sys.argv[1:]))
