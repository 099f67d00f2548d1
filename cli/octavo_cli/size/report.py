"""Sizes as one object for machines and as lines for people; bytes in GB and GiB."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from octavo_cli.size.cag import Plan, Rates, SelfHosted
from octavo_cli.size.kv import KvSize, kv_size
from octavo_cli.size.shape import BadSize, ModelShape
from octavo_cli.size.weights import FORMATS, step_buffers, weight_size

GB, GIB, MIB = 10**9, 2**30, 2**20


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a model. Capacities in bytes, tiers fastest first; context 0: what the model was trained for."""

    context: int
    concurrency: int
    kv_dtype: str
    tp: int
    block_tokens: int
    step_tokens: int
    tiers: Mapping[str, int]


def size_report(shape: ModelShape, asked: Question) -> dict[str, Any]:
    """Everything about one model. Raises BadSize."""
    context = asked.context or shape.max_position
    for name, value in (("context", asked.context), ("concurrency", asked.concurrency)):
        if value < 0:
            raise BadSize(f"--{name}: {value} is negative; give 0 (the default) or more", field=name)
    kv = kv_size(shape, asked.kv_dtype, asked.block_tokens, asked.tp)
    per_sequence = kv.context_bytes(context)
    sequences = asked.concurrency or max(1, kv.concurrency(asked.tiers["hbm"], context))
    buffers = step_buffers(shape, asked.step_tokens, sequences, context, asked.block_tokens, tp=asked.tp)
    return {
        "model": shape.name,
        "architecture": shape.architecture,
        "attention": shape.attention,
        "parameters": shape.parameters,
        "file_bytes": shape.file_bytes,
        "weights": {form: found for form in FORMATS if (found := _weights(shape, form)) is not None},
        "kv": {
            "dtype": asked.kv_dtype,
            "token_bytes": kv.token_bytes,
            "whole_token_bytes": kv.whole_token_bytes,
            "block_tokens": kv.block_tokens,
            "block_bytes": kv.block_bytes,
            "block_metadata_bytes": kv.metadata_bytes,
            "tensor_parallel": kv.tp,
            "heads_per_rank": kv.rank_heads,
            "copies_of_a_head": kv.replicated,
            "context": context,
            "context_blocks": kv.blocks(context),
            "context_bytes": per_sequence,
            "rounding_bytes": per_sequence - context * kv.token_bytes,
        },
        "concurrency": {
            "asked": asked.concurrency,
            "pool_bytes_for_it": kv.pool_bytes(context, asked.concurrency) if asked.concurrency else 0,
        },
        "tiers": {name: _tier(kv, capacity, context, name == "hbm") for name, capacity in asked.tiers.items()},
        "step": {"tokens": asked.step_tokens, "sequences": sequences, **asdict(buffers), "total": buffers.total},
    }


def _weights(shape: ModelShape, form: str) -> dict[str, int] | None:
    try:
        size = weight_size(shape, form)
    except BadSize:
        return None
    return {
        "codes": size.codes, "scales": size.scales, "zeros": size.zeros, "packing": size.packing, "total": size.total
    }  # fmt: skip


def _tier(kv: KvSize, capacity: int, context: int, pool: bool) -> dict[str, int]:
    return {
        "capacity_bytes": capacity,
        "tokens": kv.tokens(capacity, pool),
        "sequences": kv.concurrency(capacity, context, pool),
    }


def size_lines(report: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    kv, tiers = report["kv"], report["tiers"]
    lines = [
        f"{report['model']}: {report['architecture']}, {report['attention']}, {report['parameters'] / 1e9:.3f}e9 parameters",
        "",
        f"{'weights':<14}{'total':>26}  codes, scales, zero points, packing",
    ]
    for form, item in report["weights"].items():
        parts = ", ".join(both(item[name], short=True) for name in ("codes", "scales", "zeros", "packing"))
        lines.append(f"  {form:<12}{both(item['total']):>26}  {parts}")
    lines += [
        "",
        f"KV ({kv['dtype']}, tp {kv['tensor_parallel']}, {kv['heads_per_rank']} heads a rank"
        + (f", {kv['copies_of_a_head']} copies of each" if kv["copies_of_a_head"] > 1 else "")
        + ")",
        f"  per token       {kv['token_bytes']:,} bytes a rank, {kv['whole_token_bytes']:,} in all",
        f"  per block       {kv['block_bytes']:,} bytes of {kv['block_tokens']} tokens, and {kv['block_metadata_bytes']} of metadata",
        f"  {kv['context']:,} tokens   {both(kv['context_bytes'])} a rank, of which {kv['rounding_bytes']:,} bytes round up the last block",
    ]
    if report["concurrency"]["asked"]:
        lines.append(
            f"  {report['concurrency']['asked']} of them      a pool of {both(report['concurrency']['pool_bytes_for_it'])} a rank"
        )
    lines += ["", f"{'tier':<8}{'capacity':>26}{'tokens':>14}{'sequences of this context':>28}"]
    for name, tier in tiers.items():
        lines.append(f"{name:<8}{both(tier['capacity_bytes']):>26}{tier['tokens']:>14,}{tier['sequences']:>28,}")
    step = report["step"]
    lines += [
        "",
        f"a step of {step['tokens']} tokens over {step['sequences']} sequences: activations {both(step['activations'], short=True)}, "
        f"logits {both(step['logits'], short=True)}, inputs {both(step['inputs'], short=True)}",
    ]
    return lines


def both(size: int, short: bool = False) -> str:
    """Bytes in both units: 14.00 GB = 13.04 GiB; small ones in MiB."""
    if size < 0.01 * GB:
        return f"{size / MIB:.2f} MiB" if size >= 0.01 * MIB else f"{size} B"
    return f"{size / GB:.2f} GB" if short else f"{size / GB:.2f} GB = {size / GIB:.2f} GiB"


def cag_report(plan: Plan, hosted: SelfHosted | None, rates: Rates | None) -> dict[str, Any]:
    """Managed prices, and this deployment's times when its rates are known. A break-even that never comes is null."""
    report: dict[str, Any] = {
        "plan": asdict(plan),
        "managed": {
            "rag": {"price": plan.rag_price, "equivalents": plan.rag_equivalents, "uncached_tokens": plan.rag_uncached},
            "cag": {"price": plan.cag_price, "equivalents": plan.cag_equivalents, "uncached_tokens": plan.cag_uncached},
            "break_even_reuse": _finite(plan.break_even),
        },
        "self_hosted": None,
    }
    if hosted is not None and rates is not None:
        report["self_hosted"] = {
            "rates": asdict(rates),
            "rag": {"ms": hosted.rag_ms, "retrieval_ms": hosted.rag_retrieval_ms, "prefill_ms": hosted.rag_prefill_ms},
            "cag": {
                "ms": hosted.cag_ms,
                "build_ms": hosted.build_ms,
                "storage_ms": hosted.storage_ms,
                "transfer_ms": hosted.transfer_ms,
                "suffix_prefill_ms": hosted.suffix_ms,
            },
            "break_even_reuse": _finite(hosted.break_even),
        }
    return report


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def cag_lines(report: Mapping[str, Any]) -> list[str]:
    """The same for people."""
    managed, hosted, reuse = report["managed"], report["self_hosted"], report["plan"]["reuse"]
    lines = [f"{'managed':<14}{'price a request':>18}{'token equivalents':>20}{'uncached tokens':>18}"]
    for name in ("rag", "cag"):
        item = managed[name]
        lines.append(
            f"  {name.upper():<12}{item['price']:>18.6f}{item['equivalents']:>20,.0f}{item['uncached_tokens']:>18,}"
        )
    lines.append(f"  {_even(managed['break_even_reuse'], reuse)}")
    if hosted is None:
        lines.append("self-hosted: no rates; start a cluster, or give --prefill-us")
        return lines
    rag, cag = hosted["rag"], hosted["cag"]
    lines += [
        f"self-hosted   by {hosted['rates']['source']}",
        f"  RAG         {rag['ms']:,.1f} ms: retrieval {rag['retrieval_ms']:,.1f}, prefill {rag['prefill_ms']:,.1f}",
        f"  CAG         {cag['ms']:,.1f} ms: build {cag['build_ms']:,.0f} over {reuse} uses, storage {cag['storage_ms']:,.1f}, "
        f"transfer {cag['transfer_ms']:,.1f}, suffix prefill {cag['suffix_prefill_ms']:,.1f}",
        f"  {_even(hosted['break_even_reuse'], reuse)}",
    ]
    return lines


def _even(value: float | None, reuse: int) -> str:
    if value is None:
        return "CAG never pays: a use of the cached corpus costs no less than retrieval"
    return f"CAG pays from {value:,.0f} uses of one build on; {reuse} are planned"
