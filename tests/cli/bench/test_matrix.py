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
from octavo_cli.bench.matrix import Axes, Cell, Group, cells, groups, named, why_skipped
from octavo_cli.bench.matrix_group import GroupRuns, cut, joined
from octavo_cli.bench.matrix_page import grid
from octavo_cli.bench.matrix_run import MatrixRun
from octavo_cli.bench.sample import Run, Sample
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


async def test_a_fresh_cluster_is_asked_nothing_that_does_not_fit() -> None:
    """`target`: there is none to ask."""
    run = MatrixRun(Axes(prompts=(9000,), outputs=(3,)), 1, 1, 10.0, 0.0, "", lambda text: None)
    await run._first(None, Described("m", 49152, 8192), "bf16", True)  # type: ignore[arg-type]
    assert run.table.skipped[0].name == "cold-weights/bf16" and "needs 9003 tokens" in run.table.skipped[0].why
    assert not run.failed


@pytest.mark.parametrize(("reuse", "shared"), [("none", 0), ("partial", 50), ("high", 90)])
def test_reuse_is_what_all_prompts_share(reuse: str, shared: int) -> None:
    group = Group(100, reuse, "greedy", (4, 16), ("none",))
    sessions = [*group.sessions(2, 0), *group.sessions(2, 1)]
    prompts = [draw_tokens(session.turns[0].pieces, 49152) for session in sessions]
    assert {len(prompt) for prompt in prompts} == {100} and len({tuple(prompt) for prompt in prompts}) == 4
    heads = {tuple(prompt[:shared]) for prompt in prompts}
    assert len(heads) == 1 and len({prompt[shared] for prompt in prompts}) > 1
    head = group.head()
    assert (head is None) == (not shared)
    if head is not None:
        assert draw_tokens(head.turns[0].pieces, 49152) == prompts[0][:shared]
    assert {session.turns[0].max_tokens for session in sessions} == {16}


def test_groups_come_in_the_order_of_what_they_differ_in_and_hold_every_cell() -> None:
    described = Described("m", 49152, 8192)
    made = groups(Axes(), described)
    assert [group.name for group in made[:5]] == [
        "p128/none/greedy", "p128/none/top-p", "p128/partial/greedy", "p128/high/greedy", "p1024/none/greedy"
    ]  # fmt: skip
    held = {group.cell(tokens, pause) for group in made for tokens in group.outputs for pause in group.pauses}
    assert held == {cell for cell in cells(Axes()) if not why_skipped(cell, described)} and len(held) == 108
    assert groups(Axes(), Described("m", 49152, 1100))[-1].outputs == (16,)
    assert len(made[0].rows()) == len(set(made[0].rows())) == 3 + 9


def sample(name: str, at_s: float, ends: list[float], outcome: str = "ok") -> Sample:
    arrivals = [(end, 2) for end in ends]
    made = Sample(name, 0, at_s, sent_s=at_s, arrivals=arrivals, ended_s=ends[-1], output_tokens=2 * len(ends))
    made.outcome = outcome  # type: ignore[assignment]
    return made


def test_shorter_outputs_are_the_first_tokens_of_the_longest() -> None:
    run = Run((sample("a", 0.0, [1.0, 2.0, 3.0]), sample("b", 0.5, [1.5, 2.5], "failed")), 0.1)
    short = cut(run, 3)
    assert [(item.output_tokens, item.ended_s, item.outcome) for item in short.samples] == [
        (3, 2.0, "ok"),
        (3, 2.5, "ok"),
    ]
    assert short.samples[0].arrivals == [(1.0, 2), (2.0, 1)] and short.samples[0].ttft_ms == 1000.0
    assert cut(run, 4).samples[1] is run.samples[1], "it never had more than four"
    assert cut(run, 6).samples == run.samples


def test_laps_stand_one_behind_the_other() -> None:
    runs = [Run((sample("a", 5.0, [6.0, 7.0]),)), Run((sample("b", 2.0, [3.0, 5.0]),))]
    whole = joined(runs)
    assert whole.wall_s == sum(run.wall_s for run in runs) == 5.0
    assert [item.e2e_ms for item in whole.samples] == [2000.0, 3000.0]


async def test_a_group_on_a_server_empty_and_warm() -> None:
    server = NullServer()
    async with server.running(), HttpTarget(server.url) as target:
        described = await target.describe()
        runs = GroupRuns(Group(32, "partial", "top-p", (2, 3), ("none",)))
        await runs.lap(target, described, 2, 0)
    assert len(server.bodies) == 1 + 2 + 2 and len({body["cache_salt"] for body in server.bodies}) == 1
    assert server.bodies[0]["temperature"] == 0.8 and server.bodies[0]["top_p"] == 0.95
    head, first, *_ = (body["prompt"] for body in server.bodies)
    assert len(head) == 16 and first[:16] == head
    assert [body["prompt"] for body in server.bodies[3:]] == [body["prompt"] for body in server.bodies[1:3]]
    found = runs.figures()
    assert sorted(found) == sorted(runs.group.rows())
    figures = Figures("matrix", tuple(named(found["p32/o2/partial/top-p/none/warm"], "x", "BF 16")))
    assert figures.value("errors/x/bf-16") == 0 and figures.value("throughput/output/x/bf-16") > 0


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
    assert content["config"]["served"].keys() == {"served"}
    assert list(rows) == [
        *(
            f"p8/o3/{reuse}/greedy/none/{state}/served"
            for reuse in ("none", "high")
            for state in ("empty-cache", "warm")
        ),
        "p8/o3/none/greedy/none/aged/served",
        "p8/o3/none/greedy/none/aged-warm/served",
    ]
    assert all({"ttft_p50", "throughput/output", "errors"} <= set(row) for row in rows.values())
    page = html_path.read_text()
    assert page.count("<tr>") == 1 + len(rows) and "skipped p9000/o3/high" in page and "2 of 2" in result.output


async def test_a_cell_that_fails_whole_does_not_end_the_others(tmp_path: Path) -> None:
    server = NullServer()
    json_path = tmp_path / "matrix.json"
    words = ["bench", "matrix", "--prompt", "8,9", "--output", "3", "--reuse", "none", "--sampling", "greedy"]
    words += ["--pause", "none", "--clients", "1", "--each", "1", "--json", str(json_path)]
    answer = server._answer

    async def lost(path: str, body: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        return False if len(body.get("prompt") or ()) == 8 else await answer(path, body, writer)

    server._answer = lost  # type: ignore[method-assign]
    async with server.running():
        result = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--url", server.url])
    assert result.exit_code == 1
    rows = grid(from_json(json.loads(json_path.read_text())))
    assert rows["p9/o3/none/greedy/none/warm/served"]["errors"].value == 0


def matrix_words(server: NullServer, json_path: Path, *more: str) -> list[str]:
    words = ["bench", "matrix", "--prompt", "8,16", "--output", "2,4", "--reuse", "none", "--sampling", "greedy"]
    return [
        *words,
        "--pause",
        "none",
        "--clients",
        "1",
        "--each",
        "1",
        "--json",
        str(json_path),
        "--url",
        server.url,
        *more,
    ]


async def test_what_the_budget_leaves_out_is_listed_and_a_resume_measures_just_that(tmp_path: Path) -> None:
    server, json_path = NullServer(), tmp_path / "matrix.json"

    async def run(*more: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, app, matrix_words(server, json_path, *more))

    async with server.running():
        assert (await run("--budget-s", "0.000001")).exit_code == 0
        content = json.loads(json_path.read_text())
        late = [item for item in content["config"]["skipped"] if "--resume" in item["why"]]
        assert [item["name"] for item in late] == ["p8/none/greedy/served", "p16/none/greedy/served"] and not content[
            "results"
        ]
        other = await run("--resume", "--prompt", "8")
        assert isinstance(other.exception, BadPlan) and "has axes" in str(other.exception)
        assert (await run("--resume")).exit_code == 0
        asked = len(server.bodies)
        assert asked == 4
        content = json.loads(json_path.read_text())
        assert not [item for item in content["config"]["skipped"] if "--resume" in item["why"]]
        # a group of which one row is missing is measured again, the other one is not
        content["results"] = [item for item in content["results"] if "p16/o4/none/greedy/none/warm" not in item["name"]]
        json_path.write_text(json.dumps(content))
        assert (await run("--resume")).exit_code == 0 and len(server.bodies) == asked + 2
        assert len(grid(from_json(json.loads(json_path.read_text())))) == 2 * 2 * 2
        json_path.write_text("{")
        broken = await run("--resume")
        assert isinstance(broken.exception, BadPlan) and "leave --resume out" in str(broken.exception)


async def test_a_budget_with_room_asks_more_than_once(tmp_path: Path) -> None:
    server, json_path = NullServer(), tmp_path / "matrix.json"
    async with server.running():
        words = [word if word != "1" else "3" for word in matrix_words(server, json_path)]
        assert (await asyncio.to_thread(CliRunner().invoke, app, words)).exit_code == 0
    figures = from_json(json.loads(json_path.read_text()))
    (count,) = [item.n for item in figures.results if item.name == "errors/p8/o2/none/greedy/none/warm/served"]
    assert count == 9 and len({tuple(body["prompt"]) for body in server.bodies}) == 2 * 9
