"""The serving manifest: one YAML file that describes a deployment (design section 11).

One frozen dataclass per concern. Every field has a key `section.field`, an environment variable
OCTAVO_<SECTION>_<FIELD> and a flag --section.field; `octavo.rpc.settings` reads them. A key whose feature does not
exist yet is refused by `check_features`, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_type_hints

from octavo.errors import OctavoError
from octavo.manifest_bounds import address_problem, dial_problem, number_problem, text_problem
from octavo.manifest_tables import keys_problem, name_problem, slo_problem, tenant_problem, weight_problem


class ManifestError(OctavoError, ValueError):
    """A setting that cannot be used; the message names the key and the fix."""


@dataclass(frozen=True, slots=True)
class Deployment:
    run_dir: str = ".octavo/run"
    """Folder for state, logs and trace files of the local cluster."""
    event_loop: Literal["uvloop", "asyncio"] = "uvloop"
    """The asyncio implementation of every service."""
    log_format: Literal["auto", "text", "json"] = "auto"
    """auto: text on a terminal, JSON elsewhere."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severity that is written."""
    drain_timeout_s: float = 20.0
    """After SIGTERM, how long running requests may go on."""
    wakeup_slice_us: int = 200
    """Time slice of the threads that pass messages on (Linux 6.12 and later): they run soon beside compute threads; 0: the system's."""
    realtime_messages: bool = True
    """The threads of gateway, scheduler and workers that pass messages on run as real-time ones (SCHED_RR, the lowest priority) where the system allows it."""
    compute_nice: int = 5
    """Where it does not: nice value of the threads that compute, above the process's own, so that message threads run before them; 0: none."""
    secret: str = "octavo-development-secret"
    """Server secret of the tenant namespaces (HMAC key); set your own outside development."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    ref: str = "smollm2"
    """`smollm2`, a .gguf path, or a Hugging Face folder."""
    name: str = ""
    """Served model id; empty: derived from ref."""
    weights_blake3: str = ""
    """Expected hash of the weights; empty: not checked."""
    tokenizer_blake3: str = ""
    """Expected hash of the tokenizer; empty: not checked."""
    chat_template_blake3: str = ""
    """Expected hash of the chat template; empty: not checked."""
    parity_prompt_ids: tuple[int, ...] = ()
    """Prompt of the parity check at start; empty: none."""
    parity_greedy_ids: tuple[int, ...] = ()
    """Greedy continuation that the worker must reproduce before it is ready."""


@dataclass(frozen=True, slots=True)
class Engine:
    dtype: Literal["auto", "bfloat16", "float32", "float16"] = "auto"
    """Weights and activations; auto: what the worker measured as faster."""
    weights: Literal["auto", "bf16", "int8", "int4", "w8a8", "fp8", "file"] = "auto"
    """Form of the matrices; auto: as dtype. int8: a scale per row; int4: per group; w8a8, fp8: activations too; file: a GGUF's own."""
    kv_dtype: Literal["auto", "bfloat16", "float32", "float16", "int8", "fp8"] = "auto"
    """KV cache; auto: the dtype of the activations; int8, fp8: half the bytes, a scale per token and head."""
    kv_block_tokens: Literal[8, 16, 32] = 16
    """Tokens per KV block."""
    kv_pool_bytes: int = 512 * 2**20
    """Size of the paged KV pool, bytes."""
    kv_num_blocks: int = 0
    """Blocks in the pool, null block included; 0: from kv_pool_bytes."""
    kv_pool_touch: bool = True
    """On a CPU, take the pool's memory from the system right after the start, beside other work; false: as its blocks are first written, within steps."""
    max_model_len: int = 0
    """Longest prompt + output, tokens; 0: what the model was trained for."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs."""
    kernels: Literal["auto", "native", "torch", "triton", "strict"] = "auto"
    """auto: the native kernels on a CPU that they fit, else what the operation table chooses; another name insists."""
    native_isa: Literal["auto", "amx", "avx512", "avx2"] = "auto"
    """Best instruction set that the native kernels may use; auto: what the CPU has."""
    cuda_graphs: bool = True
    """Capture decode steps and replay them, on a CUDA device with Triton attention."""
    threads: int = 0
    """Compute threads of the worker; 0: all cores."""
    tensor_parallel: int = 1
    """Ranks per model replica."""
    pipeline_parallel: int = 1
    """Pipeline stages per model replica."""
    deterministic: bool = False
    """Batch-invariant native kernels: the same request gives the same bits in any batch, and after a preemption; prefill is slower."""


@dataclass(frozen=True, slots=True)
class GpuWorker:
    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler that this worker dials."""
    kvstore: str = ""
    """Address (host:port or unix:path) of this host's kvstore; empty: no tiers below the pool."""
    worker_id: str = ""
    """Stable name; empty: host name and pid."""
    role: Literal["both", "prefill", "decode"] = "both"
    """What it does in a cell with prefill workers: prefill hands over after the first token, decode computes no prompt of which it lacks much, both decides by cost."""
    listen: str = "127.0.0.1:0"
    """Health, admin and reflection."""
    metrics_listen: str = "127.0.0.1:0"
    """Prometheus text over HTTP; empty: off."""
    progress_timeout_s: float = 30.0
    """NOT_SERVING when there is work and no token advanced for this long."""
    merge_reports_ms: float = 5.0
    """Decode steps of the same sequences within so many milliseconds share one report and one message to each client; a first token and an end wait for nothing. More gives messages less of the cores, and clients more tokens at once; at most 100."""
    labels: tuple[str, ...] = ()
    """Pools that this worker belongs to, by name; SLO classes choose among them with `pool` and `degrade_pool`."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    listen: str = "127.0.0.1:50051"
    """Where gateways, workers and kvstores dial in."""
    local_listen: str = ""
    """A second address, unix:PATH, for gateways and workers of the same host: a message costs less there. `octavo up` gives one; empty: none."""
    metrics_listen: str = "127.0.0.1:0"
    """Prometheus text over HTTP; empty: off."""
    policy: Literal["fcfs", "priority", "sjf", "slo", "fair", "slo-fair"] = "slo-fair"
    """Order of the waiting queue; a class of slo_classes may name another one for a queue of its own."""
    batching: Literal["continuous", "static", "dynamic"] = "continuous"
    """How requests join running ones: at any step; once the whole batch has ended; the same, after a wait for company."""
    batching_max_wait_ms: float = 10.0
    """Under dynamic batching, how long an idle worker waits for a full batch, from the first request's arrival."""
    max_num_seqs: int = 32
    """Sequences that run at once on a worker."""
    max_num_batched_tokens: int = 512
    """Tokens per step while decodes run."""
    max_num_batched_tokens_alone: int = 0
    """Tokens per step with no decode running; 0: four times max_num_batched_tokens, 2048 at most."""
    pause: Literal["auto", "keep", "offload", "drop"] = "auto"
    """What becomes of the KV of a client that pauses for a tool; auto: what is predicted to cost least."""
    max_waiting_requests: int = 4096
    """Queue limit; more are rejected with RESOURCE_EXHAUSTED."""
    max_waiting_prompt_tokens: int = 2_000_000
    """Queue limit in prompt tokens."""
    max_waiting_kv_tokens: int = 0
    """Queue limit in KV tokens that the waiting requests are expected to hold (prompt and predicted output); 0: none."""
    max_waiting_gpu_s: float = 0.0
    """Queue limit in predicted worker time of the waiting requests, seconds per worker; 0: none."""
    counterfactual_share: float = 0.01
    """Share of the requests that go without a technique (each technique for itself, by a hash of the request id), so that the ledger can hold what it is said to save against them; 0: none."""
    max_overcommit: float = 4.0
    """Most that running sequences may come to hold if each ran to its max_tokens, in sizes of the pool."""
    recovery_grace_s: float = 10.0
    """After start, resubmits go first and are not refused for lack of workers."""
    orphan_grace_s: float = 15.0
    """How long a request runs on after its gateway was lost."""
    worker_silence_s: float = 5.0
    """A worker that reports nothing for this long is lost."""
    progress_timeout_s: float = 30.0
    """A worker with work that advances no token for this long is lost."""
    registry_ttl_s: float = 600.0
    """How long a finished request can be attached to or replayed."""
    registry_bytes: int = 64 * 2**20
    """Bound of the finished requests kept for replay."""
    event_log: str = ""
    """File for every input of the core and its orders, prompts included, to be replayed by `octavo simulate --replay`; an earlier one gets the ending `.earlier`; empty: off."""
    default_slo_class: str = "default"
    """Class of a request that names none."""
    slo_classes: Mapping[str, Mapping[str, float | str]] = field(
        default_factory=lambda: {"default": {"ttft_ms": 1000.0, "itl_p99_ms": 200.0}}
    )
    """Name -> {ttft_ms, itl_p99_ms, policy, weight, deadline_ms, on_overload, pool, degrade_pool, degrade_max_tokens}; see docs/scheduling.md."""


@dataclass(frozen=True, slots=True)
class Cache:
    prefix: bool = True
    """Share KV blocks between requests with the same beginning."""
    tiers: tuple[str, ...] = ("dram", "nvme", "remote")
    """Tiers of the kvstore: dram, nvme, valkey (a shared server), remote (blocks of other hosts' kvstores)."""
    dram_bytes: int = 1 * 2**30
    """Capacity of the DRAM tier, bytes."""
    nvme_bytes: int = 4 * 2**30
    """Capacity of the NVMe tier on disk, bytes, its directory included."""
    nvme_path: str = ""
    """Folder of the NVMe tier; empty: <run_dir>/nvme."""
    nvme_backend: Literal["slab", "lmdb"] = "slab"
    """slab: LMDB is the directory of preallocated files with fixed slots; lmdb: the payload lies in LMDB too."""
    quota_bytes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tenant -> {dram, nvme, valkey: bytes}; `*` stands for each tenant that is not named."""
    max_age_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tenant -> {dram, nvme, valkey: seconds} from which on its blocks are unreadable; `*` stands for each tenant that is not named."""
    valkey_url: str = ""
    """Server of the valkey tier, valkey://HOST:PORT/DB or redis://..., which all hosts of the deployment share."""
    valkey_bytes: int = 4 * 2**30
    """Bytes of that server that blocks may fill, those of other hosts counted."""
    valkey_timeout_s: float = 0.25
    """Longest wait for one answer of it; a slower one is a miss, and the server is then left alone for a while."""
    codec: Literal["none", "int8", "fp8", "zstd"] = "none"
    """Compression below DRAM and between hosts, where encode + transfer + decode is faster than the plain bytes. All are lossy, and off for workers with engine.deterministic."""
    codec_max_error: float = 0.05
    """A lossy form that is measured to change this deployment's blocks by more (root mean square, as a share of the values') is not used; 1 lets all be used."""
    encryption: Literal["off", "aes-gcm"] = "off"
    """Encryption of what the nvme and valkey tiers keep, with a key per tenant derived from deployment.secret."""
    load_path: Literal["auto", "load", "recompute", "overlap"] = "auto"
    """How a prompt gets what the kvstore holds of it: by predicted time, or always one way; overlap computes the head while the tail is loaded."""
    blending: bool = False
    """Reuse the chunks of a request (cache.chunks) where they stand in its prompt. The answer is then not the full prefill's; usage says how many tokens."""
    blending_share: float = 0.15
    """Of the reused tokens, how many are computed again, those that deviate most: 0 to 1; 1 is a full prefill."""
    pin_share: float = 0.5
    """Most of a worker's pool that preloads and pinned requests may hold together, 0 to 1."""
    pin_quota_bytes: Mapping[str, float] = field(default_factory=dict)
    """Tenant -> bytes of KV that it may pin; `*` stands for each tenant that is not named; absent: pin_share alone."""
    preload_reserve_tokens: int = 256
    """Tokens of the context that a preload leaves free for what requests add and the answer."""
    preloads_path: str = ""
    """Folder that keeps preloads and namespace rotations over restarts of the scheduler; empty: <run_dir>/preloads."""


@dataclass(frozen=True, slots=True)
class KvStore:
    listen: str = "127.0.0.1:0"
    """Where workers of this host dial in (host:port or unix:path)."""
    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler that this kvstore dials; empty: none."""
    store_id: str = ""
    """Stable name per host; empty: the host name."""
    arena_path: str = "/dev/shm"
    """Folder in shared memory for the DRAM tier, so that workers of this host copy from and to it; empty: payload travels in messages."""
    write_behind_bytes: int = 64 * 2**20
    """Blocks that may wait in memory for each tier below DRAM, bytes; more live in DRAM alone."""
    peer_listen: str = ""
    """Where kvstores of other hosts fetch blocks (host:port, told to them by the scheduler); empty: they do not."""
    peers: Mapping[str, str] = field(default_factory=dict)
    """store_id -> address of other hosts' kvstores that the scheduler cannot name rightly; it names the others."""
    metrics_listen: str = "127.0.0.1:0"
    """Prometheus text over HTTP; empty: off."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    grpc_listen: str = "127.0.0.1:50050"
    """octavo.v1.InferenceService."""
    http_listen: str = "127.0.0.1:8000"
    """OpenAI-compatible HTTP and /metrics."""
    scheduler: str = "127.0.0.1:50051"
    """Address of the scheduler that this gateway dials."""
    gateway_id: str = ""
    """Stable name; empty: host name and pid."""
    slow_client_timeout_s: float = 10.0
    """A client that takes no byte for this long loses its request."""
    max_body_bytes: int = 4 * 2**20
    """Largest HTTP body or gRPC request."""
    max_session_calls: int = 1024
    """Calls at once on one Session stream of the gRPC interface."""
    connect_grace_s: float = 10.0
    """How long a new request waits for a scheduler that is reconnecting."""
    max_stop_strings: int = 16
    """Stop strings per request."""
    max_logprobs: int = 20
    """Alternatives per token."""


@dataclass(frozen=True, slots=True)
class Tenants:
    keys: Mapping[str, str] = field(default_factory=dict)
    """API key -> tenant; empty: no key is asked for and everyone is tenant `default`."""
    admins: tuple[str, ...] = ()
    """Tenants whose keys see every tenant's requests, the workers and the ledger in the live view."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Tenant -> share under fair policies."""
    limits: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tenant -> {rate_tokens_per_s, burst_tokens, concurrency, kv_share}; `*`: every tenant that is not named."""


@dataclass(frozen=True, slots=True)
class Speculative:
    method: Literal["none", "ngram", "draft"] = "none"
    """How draft tokens are proposed."""
    max_draft_tokens: int = 0
    """Longest draft."""


@dataclass(frozen=True, slots=True)
class Observability:
    otlp_endpoint: str = ""
    """OTLP gRPC endpoint for spans; empty: OTEL_EXPORTER_OTLP_ENDPOINT, else files only."""
    trace_files: bool = True
    """Write OTLP JSON files into the run folder."""
    trace_sample: float = 1.0
    """Share of root traces that are recorded; a sampled parent is always honoured."""


@dataclass(frozen=True, slots=True)
class ReleaseGate:
    enabled: bool = False
    """The gateway serves nobody until `octavo gate` has passed; `octavo up` runs it before ready."""
    reference: str = ""
    """Reference file of the parity and quality checks; empty: the one that comes with the command."""
    variant: bool = False
    """The weights differ from the reference on purpose (quantized): quality judges them instead of parity."""
    precision: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the served activations; float32 has far closer tolerances."""
    skip: tuple[str, ...] = ()
    """Checks that are not made."""
    bench_requests: int = 16
    """Requests of the benchmark after the checks; 0: none."""
    max_ttft_p99_ms: float = 0.0
    """Slowest p99 time to first token that passes; 0: any."""
    max_itl_p99_ms: float = 0.0
    """Slowest p99 time between chunks that passes; 0: any."""
    min_output_tokens_per_s: float = 0.0
    """Least output throughput that passes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole deployment; every service reads the sections it needs."""

    deployment: Deployment = field(default_factory=Deployment)
    model: ModelSettings = field(default_factory=ModelSettings)
    engine: Engine = field(default_factory=Engine)
    gpuworker: GpuWorker = field(default_factory=GpuWorker)
    scheduler: Scheduler = field(default_factory=Scheduler)
    cache: Cache = field(default_factory=Cache)
    kvstore: KvStore = field(default_factory=KvStore)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    tenants: Tenants = field(default_factory=Tenants)
    speculative: Speculative = field(default_factory=Speculative)
    observability: Observability = field(default_factory=Observability)
    release_gate: ReleaseGate = field(default_factory=ReleaseGate)


KEEPING_TIERS = ("dram", "nvme", "valkey")
TIERS = (*KEEPING_TIERS, "remote")
"""What cache.tiers may name."""

NOT_BUILT: dict[str, tuple[Any, ...]] = {
    "engine.tensor_parallel": (1,),
    "engine.pipeline_parallel": (1,),
    "speculative.method": ("none",),
    "speculative.max_draft_tokens": (0,),
}
"""Keys whose feature is not whole yet -> the values that work today."""


def check_features(manifest: Manifest) -> None:
    """Refuses values whose feature does not exist yet. Raises ManifestError naming the key and what works."""
    for key, allowed in NOT_BUILT.items():
        section, name = key.split(".")
        value = getattr(getattr(manifest, section), name)
        if value not in allowed:
            works = ", ".join(repr(item) for item in allowed)
            raise ManifestError(f"{key}: {value!r} is not built yet; use {works}", field=key)


def check_values(manifest: Manifest) -> None:
    """Refuses values that can never work. Raises ManifestError naming the key, the value and the bound."""
    _check_bounds(manifest)
    minimums: dict[str, float] = {
        "deployment.drain_timeout_s": 0,
        "deployment.wakeup_slice_us": 0,
        "deployment.compute_nice": 0,
        "engine.kv_pool_bytes": 1,
        "engine.kv_num_blocks": 0,
        "engine.max_model_len": 0,
        "engine.threads": 0,
        "cache.preload_reserve_tokens": 1,
        "gpuworker.progress_timeout_s": 0.1,
        "gpuworker.merge_reports_ms": 0,
        "scheduler.max_num_seqs": 1,
        "scheduler.max_num_batched_tokens": 1,
        "scheduler.max_num_batched_tokens_alone": 0,
        "scheduler.max_waiting_requests": 1,
        "scheduler.max_waiting_prompt_tokens": 1,
        "scheduler.batching_max_wait_ms": 0,
        "scheduler.max_waiting_kv_tokens": 0,
        "scheduler.max_waiting_gpu_s": 0,
        "scheduler.max_overcommit": 1,
        "scheduler.worker_silence_s": 0.5,
        "scheduler.recovery_grace_s": 0,
        "scheduler.orphan_grace_s": 0,
        "scheduler.registry_ttl_s": 0,
        "scheduler.registry_bytes": 0,
        "scheduler.progress_timeout_s": 0.1,
        "cache.codec_max_error": 0,
        "cache.dram_bytes": 0,
        "cache.valkey_bytes": 0,
        "cache.valkey_timeout_s": 0.001,
        "cache.nvme_bytes": 0,
        "kvstore.write_behind_bytes": 0,
        "gateway.slow_client_timeout_s": 0.1,
        "gateway.max_body_bytes": 1024,
        "gateway.connect_grace_s": 0,
        "gateway.max_session_calls": 1,
        "gateway.max_stop_strings": 0,
        "gateway.max_logprobs": 0,
        "release_gate.bench_requests": 0,
        "release_gate.max_ttft_p99_ms": 0,
        "release_gate.max_itl_p99_ms": 0,
        "release_gate.min_output_tokens_per_s": 0,
    }
    for key, least in minimums.items():
        section, name = key.split(".")
        value = getattr(getattr(manifest, section), name)
        if not value >= least:
            raise ManifestError(f"{key}: {value!r} is too small; give at least {least:g}", field=key)
    sample = manifest.observability.trace_sample
    if not 0 <= sample <= 1:
        raise ManifestError(
            f"observability.trace_sample: {sample!r} must lie in [0, 1]", field="observability.trace_sample"
        )
    if not 0 <= manifest.scheduler.counterfactual_share <= 0.5:
        raise ManifestError(
            f"scheduler.counterfactual_share: {manifest.scheduler.counterfactual_share!r} must lie in [0, 0.5]",
            field="scheduler.counterfactual_share",
        )
    if not 0 <= manifest.cache.blending_share <= 1:
        raise ManifestError(
            f"cache.blending_share: {manifest.cache.blending_share!r} must lie in [0, 1]", field="cache.blending_share"
        )
    if not 0 <= manifest.cache.pin_share <= 1:
        raise ManifestError(
            f"cache.pin_share: {manifest.cache.pin_share!r} must lie in [0, 1]", field="cache.pin_share"
        )
    for tenant, quota in manifest.cache.pin_quota_bytes.items():
        if not quota >= 0:
            raise ManifestError(
                f"cache.pin_quota_bytes.{tenant}: {quota!r} must be bytes, 0 or more", field="cache.pin_quota_bytes"
            )
    for tier in manifest.cache.tiers:
        if tier not in TIERS:
            raise ManifestError(f"cache.tiers: {tier!r} is unknown; use {', '.join(TIERS)}", field="cache.tiers")
    if "valkey" in manifest.cache.tiers and not manifest.cache.valkey_url:
        raise ManifestError(
            "cache.valkey_url: the valkey tier needs a server; give valkey://HOST:PORT/DB", field="cache.valkey_url"
        )
    if manifest.cache.encryption != "off" and manifest.deployment.secret == Deployment().secret:
        raise ManifestError(
            "cache.encryption: the keys come from deployment.secret, whose default everybody knows; set your own",
            field="deployment.secret",
        )
    for key, given in (("quota_bytes", manifest.cache.quota_bytes), ("max_age_s", manifest.cache.max_age_s)):
        _check_tier_limits(f"cache.{key}", given)
    for name, slo in manifest.scheduler.slo_classes.items():
        if problem := name_problem(name):
            raise ManifestError(f"scheduler.slo_classes: {problem}", field="scheduler.slo_classes")
        if problem := slo_problem(slo, get_args(get_type_hints(Scheduler)["policy"])):
            raise ManifestError(f"scheduler.slo_classes.{name}{problem}", field="scheduler.slo_classes")
    for name, limits in manifest.tenants.limits.items():
        if problem := tenant_problem(limits):
            raise ManifestError(f"tenants.limits.{name}{problem}", field="tenants.limits")
    for tenant, weight in manifest.tenants.weights.items():
        if problem := weight_problem(weight):
            raise ManifestError(f"tenants.weights.{tenant}: {problem}", field="tenants.weights")
    if problem := keys_problem(manifest.tenants.keys):
        raise ManifestError(f"tenants.keys: {problem}", field="tenants.keys")


def _check_bounds(manifest: Manifest) -> None:
    for section in fields(Manifest):
        for item in fields(given := getattr(manifest, section.name)):
            key, value = f"{section.name}.{item.name}", getattr(given, item.name)
            if key in ("deployment.secret", "tenants.keys"):
                continue  # no message repeats a secret
            problem = number_problem(key, value) or text_problem(value)
            if isinstance(value, str):
                problem = problem or address_problem(key, value)
            if problem:
                raise ManifestError(f"{key}: {problem}", field=key)
    for name in ("secret", "run_dir"):
        if not getattr(manifest.deployment, name):
            raise ManifestError(
                f"deployment.{name}: it is empty; give at least one character", field=f"deployment.{name}"
            )
    for store_id, address in manifest.kvstore.peers.items():
        if problem := dial_problem(address):
            raise ManifestError(f"kvstore.peers.{store_id}: {problem}", field="kvstore.peers")
    name, classes = manifest.scheduler.default_slo_class, manifest.scheduler.slo_classes
    if name not in classes and name != Scheduler().default_slo_class:  # that one may do without targets
        known = ", ".join(classes) or "none"
        raise ManifestError(
            f"scheduler.default_slo_class: {name!r} is no class of scheduler.slo_classes ({known}); name one of them",
            field="scheduler.default_slo_class",
        )


def _check_tier_limits(key: str, given: Mapping[str, Mapping[str, float]]) -> None:
    for tenant, limits in given.items():
        for tier, limit in limits.items():
            if tier not in KEEPING_TIERS:
                raise ManifestError(f"{key}.{tenant}: {tier!r} is unknown; use {', '.join(KEEPING_TIERS)}", field=key)
            if not limit >= 0:
                raise ManifestError(f"{key}.{tenant}.{tier}: {limit!r} is too small; give at least 0", field=key)
