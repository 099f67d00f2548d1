"""`octavo doctor`: what of this machine is fine, what is not, and what to do. torch is only asked in a child process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Literal

from octavo.errors import OctavoError
from octavo.figures import describe_machine
from octavo.manifest import Manifest, ManifestError
from octavo.memory import tightest
from octavo.rpc.settings import load_settings

from octavo_cli.exits import NoCluster
from octavo_cli.ports import PortLeases
from octavo_cli.state import running_state

Verdict = Literal["ok", "warn", "fail"]
PACKAGES = ("grpcio", "protobuf", "opentelemetry-sdk", "tokenizers", "starlette", "uvicorn", "lmdb", "blake3")
TORCH_PATIENCE_S = 120.0
BUILD_PATIENCE_S = 900.0
"""For the native kernels, which are compiled when they are asked for first."""
TOLD = "octavo: "
"""How the lines begin that a child tells whoever waits."""
_CPU_FLAGS = ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "bf16", "i8mm")
_TELL = f"""
import logging
logging.basicConfig(format="{TOLD}%(message)s", level=logging.WARNING)
logging.getLogger("octavo_gpuworker.native.library").setLevel(logging.INFO)
"""
_TORCH_PROBE = """
import json
found = {}
import torch
found["torch"] = torch.__version__
found["threads"] = torch.get_num_threads()
found["cuda"] = torch.cuda.is_available()
if found["cuda"]:
    found["gpus"] = [
        {"name": torch.cuda.get_device_name(i), "memory_bytes": torch.cuda.get_device_properties(i).total_memory}
        for i in range(torch.cuda.device_count())
    ]
try:
    import triton
    found["triton"] = triton.__version__
except ImportError as error:
    found["triton_error"] = str(error)
print(json.dumps(found))
"""
_KERNEL_PROBE = """
import json
from octavo_gpuworker.backends.native_open import describe as describe_native
from octavo_gpuworker.kernels import describe
print(json.dumps([describe_native(), *describe()]))
"""
_NATIVE_PROBE = """
import json
from octavo.errors import OctavoError
from octavo.manifest import Engine, Manifest, ModelSettings
from octavo_gpuworker.backends.native_open import device_refusal, isas, model_refusal
from octavo_gpuworker.native.library import NativeUnavailable
manifest = Manifest(engine=Engine(**{engine!r}), model=ModelSettings(ref={ref!r}))
answer = dict(elsewhere=device_refusal(manifest))
try:
    answer["refused"] = model_refusal(manifest)
except OctavoError:
    answer["refused"] = ""  # the check of the model says what is wrong
try:
    answer["isas"] = isas()
except NativeUnavailable as error:
    answer["reason"] = str(error)
print(json.dumps(answer))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, how it stands, what was found, and what to do when it is not fine."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def examine(flags: list[str]) -> list[Check]:
    """Every check, in reading order. Nothing here raises: what cannot be found out is a finding."""
    manifest, checks = _manifest(flags)
    checks += [_python(), *_cpu(), _memory(manifest), *_torch(manifest), _compiler(), _native(manifest), _packages()]
    checks += [_model(manifest), *port_checks(manifest), _disk(manifest), _shared_memory(manifest), _cluster(manifest)]
    return checks


def kernel_rows() -> list[str]:
    """The worker's own account of its operation table. Raises OctavoError when the worker package cannot be asked."""
    rows = _ask_python(_KERNEL_PROBE, "the worker's kernel table", BUILD_PATIENCE_S)
    return [str(row) for row in rows]


def compile_kernels(words: list[str]) -> int:
    """Compiles the worker's Triton kernels ahead of time in a process of its own, which prints the rows; its exit code."""
    return subprocess.run([sys.executable, "-m", "octavo_gpuworker.kernels.triton.compile", *words]).returncode


def _manifest(flags: list[str]) -> tuple[Manifest, list[Check]]:
    try:
        settings = load_settings(flags, os.environ)
    except ManifestError as error:
        return Manifest(), [Check("manifest", "fail", str(error), "correct that; the checks below use the defaults")]
    given = sorted(key for key, source in settings.sources.items() if source != "default")
    return settings.manifest, [Check("manifest", "ok", f"valid; given: {', '.join(given) or 'nothing, all defaults'}")]


def _python() -> Check:
    return Check("python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def _cpu() -> list[Check]:
    machine = describe_machine()
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    line = next((item for item in text.splitlines() if item.startswith(("flags", "Features"))), "")
    flags = [flag for flag in _CPU_FLAGS if flag in line.split()]
    checks = [Check("cpu", "ok", f"{machine['cpu']}, {machine['cores']} cores")]
    fast = "avx2" in flags or "asimd" in flags
    advice = "" if fast else "no wide vector instructions: expect a few tokens per second; use another machine or a GPU"
    checks.append(Check("cpu flags", "ok" if fast else "warn", " ".join(flags) or "none known", advice))
    return checks


def _memory(manifest: Manifest) -> Check:
    memory = tightest()
    wanted = manifest.engine.kv_pool_bytes + (manifest.cache.dram_bytes if "dram" in manifest.cache.tiers else 0)
    whose = f" of the control group {memory.group}" if memory.group else ""
    found = f"{_size(memory.free_bytes)} free of {_size(memory.total_bytes)}{whose}; "
    found += f"a worker's KV pool and the DRAM tier may take {_size(wanted)}"
    if memory.free_bytes < wanted + 2**30:
        return Check("memory", "warn", found, "lower engine.kv_pool_bytes or cache.dram_bytes")
    return Check("memory", "ok", found)


def _torch(manifest: Manifest) -> list[Check]:
    try:
        found = _ask_python(_TORCH_PROBE, "torch")
    except OctavoError as error:
        return [
            Check("torch", "fail", str(error), "install octavo-gpuworker (pip install -e gpuworker) on worker machines")
        ]
    checks = [Check("torch", "ok", f"{found['torch']}, {found['threads']} threads")]
    if "triton" in found:
        checks.append(Check("triton", "ok", str(found["triton"])))
    else:
        verdict: Verdict = "warn" if found["cuda"] else "ok"
        advice = "pip install triton, else the GPU runs the torch rows" if found["cuda"] else ""
        checks.append(Check("triton", verdict, "not installed (only a GPU needs it)", advice))
    if found["cuda"]:
        listed = ", ".join(f"{gpu['name']} {_size(gpu['memory_bytes'])}" for gpu in found["gpus"])
        checks.append(Check("gpu", "ok", listed))
    elif manifest.engine.device == "cuda":
        found_none = "engine.device is cuda, but torch sees no CUDA device: no worker starts"
        checks.append(Check("gpu", "fail", found_none, "set it to auto or cpu, or install a CUDA build of torch"))
    elif shutil.which("nvidia-smi"):
        checks.append(Check("gpu", "warn", "nvidia-smi is here but torch has no CUDA", "install a CUDA build of torch"))
    else:
        checks.append(Check("gpu", "ok", "none: the worker runs on the CPU"))
    return checks


def _compiler() -> Check:
    found = next((path for name in ("c++", "g++", "clang++", "cc", "gcc") if (path := shutil.which(name))), "")
    if not found:
        return Check("compiler", "warn", "none", "install g++ (apt install build-essential) for native CPU kernels")
    return Check("compiler", "ok", found)


def _native(manifest: Manifest) -> Check:
    """Whether the native kernels load (they are built on first use), and what is lost where they do not."""
    lost = "the worker runs on torch: slower steps, a start of some seconds more, and torch's memory"
    bad: Verdict = "warn"
    if manifest.engine.kernels == "native":
        bad, lost = "fail", "no worker starts, since engine.kernels is native; auto lets torch serve"
    probe = _NATIVE_PROBE.format(engine=asdict(manifest.engine), ref=manifest.model.ref)
    try:
        found = _ask_python(probe, "the native kernels", BUILD_PATIENCE_S)
    except OctavoError as error:
        return Check("native kernels", bad, str(error), lost)
    if manifest.engine.kernels not in ("auto", "native"):
        return Check("native kernels", "ok", f"not asked for: engine.kernels is {manifest.engine.kernels}")
    if elsewhere := found.get("elsewhere", ""):
        if bad == "fail":
            return Check("native kernels", bad, elsewhere, lost)
        return Check("native kernels", "ok", f"not used: {elsewhere}")
    if refused := found.get("refused", ""):
        return Check("native kernels", bad, refused, lost)
    if reason := found.get("reason", ""):
        return Check("native kernels", bad, reason, f"{lost}; g++ 11 or clang 14 builds them on the first start")
    isas, wanted = found.get("isas", []), manifest.engine.native_isa
    used = isas[isas.index(wanted) :] if wanted in isas else isas if wanted == "auto" else []
    if not used:
        has = ", ".join(isas) or "none"
        return Check("native kernels", "warn", f"engine.native_isa is {wanted}, this CPU has {has}", "set it to auto")
    fastest = {
        "amx": "",
        "avx512": "",
        "avx2": "without AVX-512 BF16, bf16 weights are widened in registers; try engine.weights int8",
    }
    return Check("native kernels", "ok", f"{used[0]} (this CPU has {', '.join(isas)})", fastest.get(used[0], ""))


def _packages() -> Check:
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", "fail", f"missing: {', '.join(missing)}", "make install")
    return Check("packages", "ok", ", ".join(versions))


def _model(manifest: Manifest) -> Check:
    from octavo import artifacts

    try:
        files = artifacts.resolve_model(manifest.model.ref)
        template = artifacts.chat_template(files)
    except (OctavoError, OSError, ValueError) as error:
        return Check("model", "fail", str(error), "give --model.ref smollm2, a .gguf file or a Hugging Face folder")
    size = _size(sum(path.stat().st_size for path in files.weights))
    found = f"{files.name}: {files.kind}, {size}, {files.path}"
    if template is None:
        return Check(
            "model", "warn", f"{found}; no chat template", "completions work; chat needs a model with a template"
        )
    return Check("model", "ok", found)


def port_checks(manifest: Manifest) -> list[Check]:
    """Whether the addresses that a client or a service dials by default are free, or held by our own cluster."""
    leases = PortLeases()
    checks = []
    try:
        ours = running_state(Path(manifest.deployment.run_dir).absolute())
    except NoCluster:
        held: set[str] = set()
    else:
        held = {item.address for item in ours.services} | {ours.urls.get("http", "").removeprefix("http://")}
    for key, address in (
        ("gateway.grpc_listen", manifest.gateway.grpc_listen),
        ("gateway.http_listen", manifest.gateway.http_listen),
        ("scheduler.listen", manifest.scheduler.listen),
    ):
        if address in held:
            checks.append(Check(f"port {key}", "ok", f"{address} is held by the cluster of this run folder"))
            continue
        try:
            leases.exactly(key, address)
            checks.append(Check(f"port {key}", "ok", f"{address} is free"))
        except ManifestError as error:
            advice = "`octavo up` takes a free one unless you name it; `octavo serve` needs another --" + key
            checks.append(Check(f"port {key}", "warn", str(error), advice))
    leases.close()
    return checks


def _disk(manifest: Manifest) -> Check:
    folder = Path(manifest.cache.nvme_path or manifest.deployment.run_dir).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    wanted = manifest.cache.nvme_bytes if "nvme" in manifest.cache.tiers else 0
    found = f"{_size(free)} free under {existing}; the NVMe tier may take {_size(wanted)}"
    if not os.access(existing, os.W_OK):
        return Check("disk", "fail", f"{existing} cannot be written", "choose another deployment.run_dir")
    if free < wanted + 2**28:
        return Check("disk", "warn", found, "lower cache.nvme_bytes or move cache.nvme_path")
    return Check("disk", "ok", found)


def _shared_memory(manifest: Manifest) -> Check:
    """Where the arena lies: without room for the DRAM tier blocks travel in messages."""
    path = manifest.kvstore.arena_path
    wanted = manifest.cache.dram_bytes if "dram" in manifest.cache.tiers else 0
    if not path or not wanted:
        return Check("shared memory", "ok", "not used by these settings")
    folder, fix = Path(path), f"(docker: --shm-size {_size(wanted)}); until then blocks travel in messages"
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return Check(path, "warn", "absent or not writable", f"mount one {fix}")
    free = shutil.disk_usage(folder).free
    advice = f"enlarge it or lower cache.dram_bytes {fix}" if free < wanted else ""
    return Check(
        path, "warn" if advice else "ok", f"{_size(free)} free; the DRAM tier may take {_size(wanted)}", advice
    )


def _cluster(manifest: Manifest) -> Check:
    folder = Path(manifest.deployment.run_dir).absolute()
    try:
        state = running_state(folder)
    except NoCluster as error:
        return Check("cluster", "ok", str(error))
    return Check("cluster", "ok", f"runs: {', '.join(state.urls.values()) or 'still starting'}")


def _ask_python(code: str, what: str, patience_s: float = TORCH_PATIENCE_S) -> Any:
    """What a child process prints as JSON on its last line; what it logs goes to our own standard error as it comes.

    Raises OctavoError with the child's last word.
    """
    said: list[str] = []
    with tempfile.TemporaryFile("w+", encoding="utf-8") as answer:
        command = [sys.executable, "-c", _TELL + code]
        with subprocess.Popen(command, stdout=answer, stderr=subprocess.PIPE, text=True, errors="replace") as child:
            listening = threading.Thread(target=_pass_on, args=(child.stderr, said))
            listening.start()
            try:
                ended = child.wait(patience_s)
            except subprocess.TimeoutExpired as error:
                raise OctavoError(f"{what} did not answer within {patience_s:.0f} s") from error
            finally:
                child.kill()
                listening.join()
        if ended != 0:
            raise OctavoError(f"{what} cannot be asked: {said[-1] if said else f'exit code {ended}'}")
        answer.seek(0)
        return json.loads(answer.read().strip().splitlines()[-1])


def _pass_on(lines: IO[str], said: list[str]) -> None:
    """Shows what the child tells; keeps the rest, a traceback mostly."""
    for line in lines:
        if line.startswith(TOLD):
            print(line, end="", file=sys.stderr, flush=True)
        elif line.strip():
            said.append(line.strip())


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
