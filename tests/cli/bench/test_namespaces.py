"""What isolation costs, on a trace whose sharing is known by hand."""

from __future__ import annotations

import pytest
from octavo_cli.bench.namespaces import isolated_rows, measure_namespaces, namespace_counts
from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload


def trace(sessions: int, shared: int = 160) -> Workload:
    """Every session begins with the same `shared` tokens and goes on with 32 of its own."""
    turns = [Turn(2, (Piece("common", shared), Piece(f"own{i}", 32))) for i in range(sessions)]
    return Workload("by hand", tuple(Session(f"s{i}", (turn,), at_s=2.0 * i) for i, turn in enumerate(turns)))


def test_each_namespace_computes_the_shared_part_once() -> None:
    figures = {item.name: item.value for item in measure_namespaces(trace(8), [1, 2, 4], 0.0).results}
    assert figures["hit_tokens/ns1"] == 7 * 160
    assert figures["hit_tokens/ns2"] == 6 * 160 and figures["hit_tokens_lost/ns2"] == 160
    assert figures["hit_tokens/ns4"] == 4 * 160 and figures["hit_share_lost/ns4"] == pytest.approx(3 / 7)
    assert figures["hit_tokens_lost/ns1"] == figures["hit_share_lost/ns1"] == 0
    assert figures["ttft_p50/ns4"] > 0


def test_a_session_keeps_its_namespace_over_its_turns() -> None:
    rows = [{"pieces": [["a", 1]]}, {"pieces": [["b", 1]], "after": 0}, {"pieces": [["a", 1]]}]
    assert [row["pieces"][0][0] for row in isolated_rows(rows, 2)] == ["namespace0/a", "namespace0/b", "namespace1/a"]
    assert [row["tenant"] for row in isolated_rows(rows, 2)] == ["namespace0", "namespace0", "namespace1"]


def test_counts() -> None:
    assert namespace_counts("16, 4") == [1, 4, 16]
    for text in ("", "0", "a", "1,-4"):
        with pytest.raises(BadPlan, match="--namespaces"):
            namespace_counts(text)
