"""Cells: what they share, which are skipped, and that names hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from null_server import NullServer
from octavo.figures import Figures, from_json
from octavo_cli.bench.http_target import HttpTarget
from octavo_cli.bench.matrix import Axes, Cell, cells, named, run_cell, why_skipped
from octavo_cli.bench.matrix_page import grid
from octavo_cli.bench.target import Described
from octavo_cli.bench.work import BadPlan, draw_tokens
from octavo_cli.main import app
from typer.testing import CliRunner


def test_the_whole_matrix_is_crossed() -> None:
    made = list(cells(Axes()))
    assert len(made) == 4 * 3 * 3 * 2 * 3 and len({cell.name for cell in made}) == len(made)


def test_a_cell_beyond_the_context_is_skipped_with_its_reason() -> None:
    described = Described("m", 32000, 8192)
    assert (
        why_skipped(Cell(8192, 16, "none", "greedy", "none"), described) == "needs 8208 tokens of context, m has 8192"
    )
    assert why_skipped(Cell(8192 - 16, 16, "none", "greedy", "none"), described) == ""


@pytest.mark.parametrize(("reuse", "shared"), [("none", 0), ("partial", 50), ("high", 90)])
def test_reuse_is_what_all_prompts_share(reuse: str, shared: int) -> None:
    sessions = Cell(100, 4, reuse, "greedy", "none").sessions(2, 2)
    prompts = [draw_tokens(session.turns[0].pieces, 49152) for session in sessions]
    assert {len(prompt) for prompt in prompts} == {100} and len({tuple(prompt) for prompt in prompts}) == 4
    heads = {tuple(prompt[:shared]) for prompt in prompts}
    assert len(heads) == 1 and len({prompt[shared] for prompt in prompts}) > 1


async def test_a_cell_on_a_server_warm_and_cold() -> None:
    server = NullServer()
    async with server.running(), HttpTarget(server.url) as target:
        described = await target.describe()
        cell = Cell(32, 3, "partial", "top-p", "none")
        cold = named(await run_cell(target, described, cell, 2, 1, "empty"), cell.name, "empty-cache", "BF 16")
        assert len(server.bodies) == 2 and server.bodies[0]["temperature"] == 0.8 and server.bodies[0]["top_p"] == 0.95
        await run_cell(target, described, cell, 2, 1, "warm")
    assert len(server.bodies) == 6 and len({body["cache_salt"] for body in server.bodies}) == 2
    figures = Figures("matrix", tuple(cold))
    assert figures.value("errors/p32/o3/partial/top-p/none/empty-cache/bf-16") == 0


def test_a_wrong_axis_is_named() -> None:
    with pytest.raises(BadPlan, match=r"--reuse: 'half' is unknown; use none, partial, high"):
        Axes(reuses=("half",))
    with pytest.raises(BadPlan, match=r"--prompt: \(0,\) must be sizes"):
        Axes(prompts=(0,))
    with pytest.raises(BadPlan, match="--pause: is empty; use none, short, long"):
        Axes(pauses=())
    with pytest.raises(BadPlan, match="--prompt: names a value twice"):  # two figures of one name, after hours
        Axes(prompts=(8, 8))
    for after in ("inf", "nan", "-1"):
        result = CliRunner().invoke(app, ["bench", "matrix", "--url", "http://127.0.0.1:9/v1", "--after-min", after])
        assert isinstance(result.exception, BadPlan) and "--after-min" in str(result.exception)
    for formats, said in ((["a=", "a="], "'a' is there twice"), (["a='"], "close the quotes")):
        words = [word for item in formats for word in ("--format", item)]
        result = CliRunner().invoke(app, ["bench", "matrix", *words])
        assert isinstance(result.exception, BadPlan) and said in str(result.exception)


async def test_a_cell_whose_requests_fail_fails_the_command() -> None:
    server = NullServer(error_after=1)
    words = ["bench", "matrix", "--prompt", "8", "--output", "3", "--reuse", "none", "--sampling", "greedy"]
    async with server.running():
        words += ["--pause", "none", "--clients", "1", "--each", "1", "--url", server.url]
        result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert result.exit_code == 1 and "p8/o3/none/greedy/none/empty-cache/served" in result.output


async def test_the_command_writes_one_file_and_one_page_with_a_row_per_cell(tmp_path: Path) -> None:
    server = NullServer()
    json_path, html_path = tmp_path / "matrix.json", tmp_path / "matrix.html"
    words = ["bench", "matrix", "--prompt", "8,9000", "--output", "3", "--reuse", "none,high", "--sampling", "greedy"]
    words += ["--pause", "none", "--clients", "2", "--each", "1", "--after-min", "0.001"]
    words += ["--json", str(json_path), "--html", str(html_path)]
    async with server.running():
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--url", server.url])
    assert result.exit_code == 0, result.output
    content = json.loads(json_path.read_text())
    assert {item["name"] for item in content["config"]["skipped"]} == {
        "cold-weights/served", "before-graphs/served", "after-graphs/served",
        "p9000/o3/none/greedy/none/served", "p9000/o3/high/greedy/none/served",
    }  # fmt: skip
    rows = grid(from_json(content))
    assert list(rows) == [
        *(
            f"p8/o3/{reuse}/greedy/none/{state}/served"
            for reuse in ("none", "high")
            for state in ("empty-cache", "warm")
        ),
        "p8/o3/none/greedy/none/aged/served",
    ]
    assert all({"ttft_p50", "throughput/output", "errors"} <= set(row) for row in rows.values())
    page = html_path.read_text()
    assert page.count("<tr>") == 1 + len(rows) and "skipped p9000/o3/high" in page and "2 of 2" in result.output


async def test_a_cell_that_fails_whole_does_not_end_the_others(tmp_path: Path) -> None:
    server = NullServer()
    json_path = tmp_path / "matrix.json"
    words = ["bench", "matrix", "--prompt", "8", "--output", "3,4", "--reuse", "none", "--sampling", "greedy"]
    words += ["--pause", "none", "--clients", "1", "--each", "1", "--json", str(json_path)]
    answer = server._answer

    async def lost(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return False if body.get("max_tokens") == 3 else await answer(path, body, writer)

    server._answer = lost  # type: ignore[method-assign]
    async with server.running():
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--url", server.url])
    assert result.exit_code == 1
    rows = grid(from_json(json.loads(json_path.read_text())))
    assert rows["p8/o4/none/greedy/none/warm/served"]["errors"].value == 0
