"""sample in Triton: which launches a step's draw takes, from shapes and from what the batch asks for. No sort of a row,
no answer read back: tokens stay on the device for the next step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from octavo_gpuworker.kernels.sampling_ops import SampleInputs, SampleOutputs
from octavo_gpuworker.kernels.triton.launch import Launch, ceil_div, run_all
from octavo_gpuworker.kernels.triton.requirements import MAX_VOCABULARY
from octavo_gpuworker.kernels.triton.sampling_draw import (
    sample_best_kernel,
    sample_draw_kernel,
    sample_finish_kernel,
    sample_scan_kernel,
)
from octavo_gpuworker.kernels.triton.sampling_edit import bias_launch, penalty_launches
from octavo_gpuworker.kernels.triton.sampling_search import sample_gather_kernel, sample_search_kernel

TILE: Final = 1024
"""Tokens whose maximum is kept: the grain of skipping."""
TILES_PER_SEGMENT: Final = 8
"""Tiles of one program: a vocabulary of 128k makes 16 programs per row."""
MAX_TILES: Final = MAX_VOCABULARY // TILE
MAX_SEGMENTS: Final = MAX_TILES // TILES_PER_SEGMENT
CHUNK: Final = 1024
"""Candidates read at once while bisecting."""


@dataclass(frozen=True, slots=True)
class _Grid:
    """How a row of logits is cut up."""

    rows: int
    vocab_size: int
    tiles: int
    segments: int

    @property
    def constants(self) -> dict[str, int]:
        return {"TILE": TILE, "TILES_PER_SEGMENT": TILES_PER_SEGMENT}

    def shape(self, logits: Tensor) -> dict[str, int]:
        return {
            "vocab_size": self.vocab_size,
            "stride_logits": logits.stride(0),
            "tiles": self.tiles,
            "segments": self.segments,
        }


@dataclass(frozen=True, slots=True)
class _Scan:
    """What `sample_scan` leaves of some logits."""

    tile_max: Tensor
    segment_max: Tensor
    segment_sum: Tensor


def _grid(logits: Tensor) -> _Grid:
    rows, vocab_size = logits.shape
    tiles = ceil_div(vocab_size, TILE)
    return _Grid(rows, vocab_size, tiles, ceil_div(tiles, TILES_PER_SEGMENT))


def _scan(logits: Tensor, grid: _Grid, inputs: SampleInputs, raw: bool) -> tuple[_Scan, Launch]:
    found = _Scan(
        *(torch.empty(grid.rows, n, device=logits.device) for n in (grid.tiles, grid.segments, grid.segments))
    )
    grammar = None if raw else inputs.grammar
    launch = Launch(
        sample_scan_kernel,
        (grid.rows, grid.segments),
        {
            "tile_max": found.tile_max,
            "segment_max": found.segment_max,
            "segment_sum": found.segment_sum,
            "logits": logits,
            "temperature": None if raw else inputs.temperature,
            "allowed": None if grammar is None else grammar.allowed,
            "allowed_rows": None if grammar is None else grammar.rows,
            "stride_allowed": 0 if grammar is None else grammar.allowed.stride(0),
            **grid.shape(logits),
        },
        {**grid.constants, "SCALED": not raw, "GRAMMAR": grammar is not None},
    )
    return found, launch


def _threshold(
    logits: Tensor, grid: _Grid, inputs: SampleInputs, scan: _Scan, counts: Tensor
) -> tuple[Tensor, list[Launch]]:
    """[R] float32 and the launches that fill it; `counts` [R] int32 of zeros."""
    candidates = torch.empty(grid.rows, grid.vocab_size, device=logits.device)
    threshold = torch.empty(grid.rows, device=logits.device)
    shared = {
        "candidates": candidates,
        "counts": counts,
        "segment_max": scan.segment_max,
        "segment_sum": scan.segment_sum,
        "temperature": inputs.temperature,
        "top_k": inputs.top_k,
        "top_p": inputs.top_p,
        "min_p": inputs.min_p,
    }
    gather = Launch(
        sample_gather_kernel,
        (grid.rows, grid.segments),
        {**shared, "logits": logits, "tile_max": scan.tile_max, **grid.shape(logits)},
        {**grid.constants, "TILES": MAX_TILES, "SEGMENTS": MAX_SEGMENTS},
    )
    search = Launch(
        sample_search_kernel,
        (grid.rows,),
        {**shared, "threshold": threshold, "vocab_size": grid.vocab_size, "segments": grid.segments},
        {"SEGMENTS": MAX_SEGMENTS, "CHUNK": CHUNK},
        warps=8,
    )
    return threshold, [gather, search]


def _best(raw: Tensor, grid: _Grid, scan: _Scan, outputs: SampleOutputs, wanted: int) -> Launch:
    shape = grid.shape(raw)
    shape["stride_raw"] = shape.pop("stride_logits")
    return Launch(
        sample_best_kernel,
        (grid.rows if wanted else 0,),
        {
            "top_tokens": outputs.top_tokens,
            "top_logprobs": outputs.top_logprobs,
            "raw": raw,
            "tile_max": scan.tile_max,
            "raw_max": scan.segment_max,
            "raw_sum": scan.segment_sum,
            "wanted": wanted,
            **shape,
        },
        {"TILE": TILE, "TILES": MAX_TILES, "SEGMENTS": MAX_SEGMENTS},
    )


def sample_launches(logits: Tensor, inputs: SampleInputs, truncates: bool = True) -> tuple[SampleOutputs, list[Launch]]:
    """The outputs and the launches that fill them, in order. logits [R, V] float32, rows of any stride; edited in place.
    ValueError: a vocabulary above MAX_VOCABULARY.

    `truncates`: some row has a top-k, a top-p below 1 or a min-p; else two launches are left out.
    """
    if logits.shape[1] > MAX_VOCABULARY:
        raise ValueError(f"the vocabulary has {logits.shape[1]} tokens, at most {MAX_VOCABULARY}; use the torch row")
    grid, device = _grid(logits), logits.device
    outputs = SampleOutputs(torch.empty(grid.rows, dtype=torch.int64, device=device))
    wants, launches = inputs.max_logprobs, []
    raw, raw_scan = logits, None
    if wants >= 0:
        edits = any(edit is not None for edit in (inputs.penalties, inputs.bias, inputs.grammar))
        raw = logits.clone() if edits else logits
        raw_scan, launch = _scan(raw, grid, inputs, raw=True)
        outputs.logprobs = torch.empty(grid.rows, device=device)
        outputs.top_tokens = torch.empty(grid.rows, wants, dtype=torch.int64, device=device)
        outputs.top_logprobs = torch.empty(grid.rows, wants, device=device)
        launches += [launch, _best(raw, grid, raw_scan, outputs, wants)]
    if inputs.penalties is not None:
        launches += penalty_launches(logits, inputs.penalties)
    if inputs.bias is not None:
        launches.append(bias_launch(logits, inputs.bias))
    scan, launch = _scan(logits, grid, inputs, raw=False)
    launches.append(launch)
    threshold = torch.full((grid.rows,), -torch.inf, device=device)
    if truncates:
        counts = torch.zeros(grid.rows, dtype=torch.int32, device=device)
        threshold, found = _threshold(logits, grid, inputs, scan, counts)
        launches += found
    launches += _draw(logits, raw, grid, inputs, (scan, raw_scan), threshold, outputs)
    return outputs, launches


def _draw(
    logits: Tensor,
    raw: Tensor,
    grid: _Grid,
    inputs: SampleInputs,
    scans: tuple[_Scan, _Scan | None],
    threshold: Tensor,
    outputs: SampleOutputs,
) -> list[Launch]:
    """The draw per segment and its reduction."""
    scan, raw_scan = scans
    best = torch.empty(grid.rows, grid.segments, device=logits.device)
    best_token = torch.empty(grid.rows, grid.segments, dtype=torch.int32, device=logits.device)
    draw = Launch(
        sample_draw_kernel,
        (grid.rows, grid.segments),
        {
            "best": best,
            "best_token": best_token,
            "logits": logits,
            "tile_max": scan.tile_max,
            "threshold": threshold,
            "temperature": inputs.temperature,
            "seeds": inputs.seeds,
            "positions": inputs.positions,
            **grid.shape(logits),
        },
        grid.constants,
    )
    finish = Launch(
        sample_finish_kernel,
        (grid.rows,),
        {
            "tokens": outputs.tokens,
            "logprobs": outputs.logprobs,
            "best": best,
            "best_token": best_token,
            "segment_sum": scan.segment_sum,
            "raw": None if raw_scan is None else raw,
            "raw_max": None if raw_scan is None else raw_scan.segment_max,
            "raw_sum": None if raw_scan is None else raw_scan.segment_sum,
            "stride_raw": raw.stride(0),
            "segments": grid.segments,
        },
        {"SEGMENTS": MAX_SEGMENTS, "LOGPROBS": raw_scan is not None},
        warps=1,
    )
    return [draw, finish]


def sample_triton(logits: Tensor, inputs: SampleInputs) -> SampleOutputs:
    """As `sample_torch`; log-probabilities of a NO_TOKEN row mean nothing."""
    outputs, launches = sample_launches(logits, inputs)
    run_all(launches)
    return outputs
