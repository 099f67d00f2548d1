"""NativeModel: a whole mixed step, sampling included, in one C call with the GIL released.

How a backend uses it (all of it without torch):

    library = load_library()                                        # NativeUnavailable: why the torch path must serve
    reason = refusal(config, "bf16", kv_dtype="bf16")               # "" or why this model is not taken
    packed = pack(files, config, "bf16", library, cache=folder)     # mapped, shared by workers
    pool = new_pool(config, "bf16", num_blocks, block_tokens)       # uint8 [num_blocks, block_bytes], KvPool's own bytes
    model = NativeModel(library, config, packed, kv_dtype="bf16", pool=pool, block_tokens=16, threads=2)
    arrays = model.arrays()                                         # StepArrays: fill its first entries (reserve() for room)
    model.step(arrays, tokens=T, sequences=S, rows=R)               # results in arrays.out_tokens[:R], ...

A row whose logits are not finite gets token -1 and fails alone. A malformed step raises StepError naming the field, before
any memory was touched. Steps of one model run one at a time; `step` may be called from any thread.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import weakref
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.model.config import ModelConfig
from octavo_gpuworker.model.rope import frequencies
from octavo_gpuworker.native import abi
from octavo_gpuworker.native.batch import StepArrays
from octavo_gpuworker.native.library import ISA_CODES, Isa, Library
from octavo_gpuworker.native.packer import head_format, padded
from octavo_gpuworker.native.packing import Packed

KvDtype = Literal["bf16", "f32", "int8"]
KV_BYTES: Final[dict[str, int]] = {"bf16": 2, "f32": 4, "int8": 1}
PAGE: Final = 4096
TAKEN: Final = frozenset(
    (
        "architecture", "layers", "d_model", "q_heads", "kv_heads", "head_dim", "ffn", "vocab_size", "max_position", "norm_eps",
        "rope_theta", "rope_scaling", "tied_embeddings", "qkv_bias", "o_bias", "qk_norm", "sliding_window", "full_layers",
        "activation", "eos_token_ids", "bos_token_id", "query_scale", "embedding_scale", "norm_offset",
    )
)  # fmt: skip
"""What of ModelConfig the kernels honour; any other field must stand at its default, so a new one is refused until it is taken."""


class StepError(ValueError):
    """A step that cannot run; the message names the field at fault."""


def refusal(config: ModelConfig, weights: str, *, kv_dtype: str) -> str:
    """Why the native kernels do not take this model, or an empty string."""
    for field in dataclasses.fields(config):
        if field.name not in TAKEN and getattr(config, field.name) != field.default:
            return f"{field.name} is {getattr(config, field.name)}, which the native kernels do not have"
    if config.rope_scaling is not None and config.rope_scaling.kind == "yarn":
        return "rope_scaling is yarn, which the native kernels do not have"
    if kv_dtype not in KV_BYTES:
        return f"kv_dtype is {kv_dtype}; the native kernels take {', '.join(KV_BYTES)}"
    if weights not in abi.FORMATS:
        return f"weights is {weights}; the native kernels take {', '.join(abi.FORMATS)}"
    if weights != "bf16" and config.head_dim % 32:
        return f"head_dim is {config.head_dim}; {weights} weights need a multiple of 32"
    if config.head_dim > 1024:
        return f"head_dim is {config.head_dim}, at most 1024 is taken"
    return ""


def block_bytes(config: ModelConfig, kv_dtype: KvDtype, block_tokens: int) -> int:
    """Bytes of one block of all layers, as model.pool.block_bytes says."""
    row = config.head_dim * KV_BYTES[kv_dtype] + (4 if kv_dtype == "int8" else 0)
    return config.layers * 2 * config.kv_heads * block_tokens * row


def new_pool(config: ModelConfig, kv_dtype: KvDtype, num_blocks: int, block_tokens: int) -> NDArray[np.uint8]:
    """A zeroed pool [num_blocks, block_bytes] at a page's start; memory is taken as blocks are written.

    An array of numpy's own begins 16 bytes into a page, so each of its rows would lie in three lines of a cache instead of two.
    """
    size = block_bytes(config, kv_dtype, block_tokens)
    memory = np.zeros(num_blocks * size + PAGE, np.uint8)
    start = -memory.ctypes.data % PAGE
    return memory[start : start + num_blocks * size].reshape(num_blocks, size)


class NativeModel:
    """Packed weights, a pool and threads of its own. `close` ends the threads; a closed model cannot step."""

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        packed: Packed,
        *,
        kv_dtype: KvDtype,
        pool: NDArray[np.uint8],
        block_tokens: int,
        threads: int,
        isa: Isa = "auto",
        deterministic: bool = False,
    ) -> None:
        """ValueError: the model is not taken, the pool has another shape or layout, or a number is out of range.

        `isa` bounds the instruction set from above: the best one that this CPU has at or below it is used.
        `deterministic`: a token's bits depend on its own beginning alone. AMX is not used then, since it takes many rows
        in another order than few.
        """
        if reason := refusal(config, packed.format, kv_dtype=kv_dtype):
            raise ValueError(reason)
        if pool.dtype != np.uint8 or pool.ndim != 2 or not pool.flags.c_contiguous or not pool.flags.writeable:
            raise ValueError("pool must be a writeable contiguous uint8 array [num_blocks, block_bytes]")
        if isa not in ISA_CODES:
            raise ValueError(f"isa is {isa!r}; expected {', '.join(ISA_CODES)}")
        self.config, self.packed, self.pool, self.threads = config, packed, pool, threads
        self.kv_dtype: KvDtype = kv_dtype
        self.block_tokens = block_tokens
        self._made_from = library, isa, deterministic
        self._library = library.handle
        self._error = ctypes.create_string_buffer(abi.ERROR_BYTES)
        self._bell = 0
        self._memory: tuple[object, ...] = ()
        self._frequencies = frequencies(config)
        layers = (abi.Layer * config.layers)(*(self._layer(index) for index in range(config.layers)))
        weights = abi.Weights(
            layers=layers,
            norm=self._address("norm"),
            inverse_frequencies=self._frequencies.ctypes.data,
            embedding=self._address("embedding"),
            head=self._matrix("head", config.vocab_size, config.d_model),
        )
        made = ctypes.c_void_p()
        settings = self._settings(pool.shape[0], "avx512" if deterministic and isa in ("auto", "amx") else isa)
        settings.deterministic = deterministic
        if self._library.octavo_create(
            settings, weights, pool.ctypes.data, pool.shape[1], made, self._error, abi.ERROR_BYTES
        ):
            raise ValueError(self._error.value.decode())
        self._handle: ctypes.c_void_p | None = made
        self._end = weakref.finalize(self, self._library.octavo_destroy, made)

    @property
    def isa(self) -> str:
        """The instruction set in use: amx, avx512 or avx2."""
        code = self._library.octavo_isa_of(self._open())
        return next(name for name, known in ISA_CODES.items() if known == code)

    def arrays(self, *, want_logits: bool = False) -> StepArrays:
        """Memory for steps of this model; `want_logits` keeps the raw logits of every row, for tests."""
        return StepArrays(self.config.vocab_size, want_logits=want_logits)

    def step(self, arrays: StepArrays, *, tokens: int, sequences: int, rows: int) -> None:
        """Runs one step over the first entries of `arrays`: writes KV to the pool and results to `arrays`.

        StepError: a field of the step is wrong (nothing was touched), or memory for it could not be had.
        """
        batch = arrays.struct(tokens=tokens, sequences=sequences, rows=rows)
        batch.bell, self._bell = self._bell, 0
        if self._library.octavo_step(self._open(), batch, self._error, abi.ERROR_BYTES):
            raise self._refused(batch)

    def begin(self, batch: abi.Batch, flight: abi.Flight, memory: tuple[object, ...]) -> None:
        """Begins steps that the library runs by itself; see NativeFlight. StepError: it could not begin.

        `memory`: what holds all that the two point to; it lives until the next flight or the model's end, whoever else lets go of it.
        """
        batch.bell, self._bell = self._bell, 0
        if self._library.octavo_begin(self._open(), batch, flight, self._error, abi.ERROR_BYTES):
            raise self._refused(batch)
        self._memory = memory  # the flight before is over

    def _refused(self, batch: abi.Batch) -> StepError:
        """What the library said of a step that did not begin; whoever waits for its bell hears it all the same."""
        if batch.bell:
            os.eventfd_write(batch.bell, 1)
        return StepError(self._error.value.decode())

    @property
    def library(self) -> ctypes.CDLL:
        """Its functions, declared."""
        return self._library

    @property
    def handle(self) -> ctypes.c_void_p:
        """What they take first. RuntimeError: the model is closed."""
        return self._open()

    def ring_at_start(self, bell: int) -> None:
        """The next step rings this eventfd once its threads were told to begin, or once it has failed."""
        self._bell = bell

    def touch(self, first: int, count: int) -> None:
        """Has the system back blocks [first, first + count) of the pool with memory now; they keep their bytes. From any thread: a
        thread without the interpreter's lock does it, on cores that nobody else wants."""
        blocks = self.pool[first : first + count]
        self._library.octavo_touch(blocks.ctypes.data, blocks.nbytes)

    def beginning(self, layers: int, pool: NDArray[np.uint8]) -> NativeModel:
        """The first `layers` layers with the same weights and threads of their own, over a pool of that many layers."""
        library, isa, deterministic = self._made_from
        return NativeModel(
            library,
            dataclasses.replace(self.config, layers=layers),
            self.packed,
            kv_dtype=self.kv_dtype,
            pool=pool,
            block_tokens=self.block_tokens,
            threads=self.threads,
            isa=isa,
            deterministic=deterministic,
        )

    def close(self) -> None:
        """Ends the threads. May be called twice."""
        self._handle = None
        self._end()

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise RuntimeError("the native model is closed")
        return self._handle

    def _settings(self, num_blocks: int, isa: Isa) -> abi.Config:
        config = self.config
        return abi.Config(
            layers=config.layers,
            d_model=config.d_model,
            q_heads=config.q_heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            ffn=config.ffn,
            vocab=config.vocab_size,
            activation=abi.ACTIVATIONS[config.activation],
            format=abi.FORMATS[self.packed.format],
            head_format=abi.FORMATS[head_format(self.packed.format)],
            kv_dtype=abi.KV_DTYPES[self.kv_dtype],
            block_tokens=self.block_tokens,
            num_blocks=num_blocks,
            qk_norm=config.qk_norm,
            tied=config.tied_embeddings,
            threads=self.threads,
            norm_eps=config.norm_eps,
            attention_scale=config.score_scale,
            embedding_scale=config.embedding_scale,
            isa=ISA_CODES[isa],
        )

    def _layer(self, index: int) -> abi.Layer:
        config, name = self.config, f"layers.{index}."
        width, q_rows = config.d_model, config.q_heads * config.head_dim
        heads = config.q_heads + 2 * config.kv_heads
        return abi.Layer(
            attn_norm=self._address(f"{name}attn_norm"),
            q_norm=self._address(f"{name}q_norm"),
            k_norm=self._address(f"{name}k_norm"),
            mlp_norm=self._address(f"{name}mlp_norm"),
            qkv=self._matrix(f"{name}qkv", heads * padded(config.head_dim), width),
            o=self._matrix(f"{name}o", width, q_rows),
            gate_up=self._matrix(f"{name}gate_up", 2 * padded(config.ffn), width),
            down=self._matrix(f"{name}down", width, config.ffn),
            window=0 if index in config.full_layers else config.sliding_window or 0,
        )

    def _matrix(self, name: str, columns: int, depth: int) -> abi.Matrix:
        return abi.Matrix(
            data=self._address(name),
            bias=self._address(f"{name}.bias"),
            columns=padded(columns),
            depth=padded(depth),
        )

    def _address(self, name: str) -> int | None:
        found = self.packed.array(name)
        return None if found is None else found.ctypes.data
