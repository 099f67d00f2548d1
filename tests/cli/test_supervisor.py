"""The supervisor: its release gate before and after ready, and whom it watches whatever is said or shown."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from octavo.rpc.host import State
from octavo.v1 import admin_pb2
from octavo_cli import supervisor as module
from octavo_cli.console import ConsoleWatcher
from octavo_cli.exits import StartFailed
from octavo_cli.gate_process import WAITING, run_gate_process
from octavo_cli.plan import ServicePlan
from octavo_cli.service_log import STATES, ServiceLog
from octavo_cli.state import Process, ServiceState
from octavo_cli.supervisor import Supervisor
from rich.console import Console


class Heard:
    """A watcher that keeps the gate's events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.troubles: list[tuple[str, str]] = []

    def gate(self, state: str, said: str) -> None:
        self.events.append((state, said))

    def trouble(self, service: str, why: str) -> None:
        self.troubles.append((service, why))

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def waiting_cluster(tmp_path: Path, ready: bool) -> tuple[Supervisor, Heard]:
    heard = Heard()
    supervisor = Supervisor([], tmp_path, 1.0, heard, gate_flags=[])
    services = (
        ServiceState("scheduler", "scheduler", "", state="serving"),
        ServiceState("gateway", "gateway", "", state="not serving", why=WAITING),
    )
    supervisor.state = replace(supervisor.state, services=services, ready=ready)
    return supervisor, heard


def gates(monkeypatch: pytest.MonkeyPatch, codes: Sequence[int], then: Callable[[], None]) -> None:
    """Gate runs that end with these codes; `then` is called by the last one."""
    left = list(codes)

    async def run(_flags: Sequence[str], _run_dir: Path, on_line: Callable[[str], None]) -> tuple[int, str]:
        code = left.pop(0)
        on_line("greedy parity: passed")
        if not left:
            then()
        return code, "its last line"

    monkeypatch.setattr(module, "run_gate_process", run)
    monkeypatch.setattr(module, "FIRST_GATE_RETRY_S", 0.01)
    monkeypatch.setattr(module, "POLL_SERVING_S", 0.01)


def opened(supervisor: Supervisor) -> None:
    gateway = replace(supervisor.state.services[1], state="serving", why="")
    supervisor.state = replace(supervisor.state, services=(supervisor.state.services[0], gateway))


async def test_a_gate_that_fails_after_ready_is_told_and_run_again(tmp_path: Path, monkeypatch: Any) -> None:
    supervisor, heard = waiting_cluster(tmp_path, ready=True)
    gates(monkeypatch, [1, 1, 0], lambda: opened(supervisor))
    keeping = asyncio.create_task(supervisor._keep_gate())
    async with asyncio.timeout(10):
        while heard.events[-1:] != [("passed", "its last line")]:
            await asyncio.sleep(0.01)
    keeping.cancel()
    failures = [said for state, said in heard.events if state == "failed"]
    assert [said.split("; ")[0] for said in failures] == ["its last line"] * 2
    assert "again in 0.01 s" in failures[0] and "again in 0.02 s" in failures[1]  # later each time
    assert [said for state, said in heard.events if state == "running"].count("greedy parity: passed") == 3
    assert not supervisor._stopping.is_set()


async def test_a_gate_that_fails_before_ready_ends_the_cluster(tmp_path: Path, monkeypatch: Any) -> None:
    supervisor, heard = waiting_cluster(tmp_path, ready=False)
    gates(monkeypatch, [1], lambda: None)
    async with asyncio.timeout(10):
        await supervisor._keep_gate()
    assert isinstance(supervisor._failure, StartFailed) and "its last line" in str(supervisor._failure)
    assert supervisor._stopping.is_set() and ("failed", "its last line") not in heard.events


async def test_the_lines_of_a_gate_are_heard(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines: list[str] = []
    code, last = await run_gate_process(["--release_gate.enabled", "false"], tmp_path, lines.append)
    assert code == 2 and "release_gate" in last and lines[-1] == last


async def test_on_a_full_disk_every_service_is_stopped_all_the_same(tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    supervisor, heard = waiting_cluster(tmp_path, ready=True)
    stopped: list[str] = []

    async def stop(process: Any) -> bool:
        stopped.append(process.plan.kind)
        return True

    heard.draining = full  # type: ignore[attr-defined]
    monkeypatch.setattr(module, "write_state", full)
    monkeypatch.setattr(supervisor, "_stop", stop)
    kinds = ("scheduler", "gpuworker", "gateway", "kvstore")
    supervisor._running = {kind: SimpleNamespace(plan=SimpleNamespace(kind=kind)) for kind in kinds}  # type: ignore[misc]
    assert await supervisor._drain(asked=True)
    assert stopped[0] == "gateway" and sorted(stopped) == sorted(kinds)


async def test_a_gate_that_cannot_be_run_counts_as_failed(tmp_path: Path, monkeypatch: Any) -> None:
    async def run(*_: object) -> tuple[int, str]:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    supervisor, _heard = waiting_cluster(tmp_path, ready=False)
    monkeypatch.setattr(module, "run_gate_process", run)
    async with asyncio.timeout(10):
        await supervisor._keep_gate()
    assert (
        "cannot be run: [Errno 11] Resource temporarily" in str(supervisor._failure) and supervisor._stopping.is_set()
    )


PLAN = ServicePlan("kvstore", "kvstore", "no_module", "127.0.0.1:1", ())


class Answers:
    """A probe of a service that answers these in turn, the last one for ever; an exception is raised."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)

    async def info(self) -> object:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        pass


@contextlib.asynccontextmanager
async def watched(
    tmp_path: Path, monkeypatch: Any, answers: Answers, watcher: Any, said: Sequence[str] = ()
) -> AsyncIterator[Supervisor]:
    """A supervisor that watches a service which logged this and answers that."""
    log = ServiceLog(tmp_path / "service.log")
    log.path.write_text("".join(line + "\n" for line in said))
    process = SimpleNamespace(identity=Process(7, "start"), read_log=log.new_records)
    monkeypatch.setattr(module, "open_probe", lambda _plan: answers)
    monkeypatch.setattr(module, "POLL_SERVING_S", 0.001)
    monkeypatch.setattr(module, "POLL_STARTING_S", 0.001)
    supervisor = Supervisor([PLAN, replace(PLAN, name="gateway", kind="gateway")], tmp_path, 1.0, watcher)
    watching = asyncio.create_task(supervisor._keep_watching(PLAN, process))  # type: ignore[arg-type]
    try:
        yield supervisor
        assert not watching.done()
    finally:
        watching.cancel()


async def state_becomes(supervisor: Supervisor, state: str) -> None:
    async with asyncio.timeout(10):
        while supervisor.state.services[0].state != state:
            await asyncio.sleep(0.001)


def answer(state: str, why: str = "", pid: int = 7) -> admin_pb2.GetInfoResponse:
    return admin_pb2.GetInfoResponse(state=state, why=why, pid=pid)


async def test_a_service_is_watched_again_after_what_cannot_be_followed(tmp_path: Path, monkeypatch: Any) -> None:
    bad = RuntimeError("no sense in it")
    answers = Answers(answer("starting", "a"), bad, bad, answer("serving", pid=8), answer("serving"))
    heard = Heard()
    async with watched(tmp_path, monkeypatch, answers, heard) as supervisor:
        await state_becomes(supervisor, "serving")
        assert heard.troubles == [("kvstore", "RuntimeError('no sense in it')")]  # once, however often
        answers.answers = [answer("not_serving", "stalled")]
        await state_becomes(supervisor, "not_serving")


@pytest.mark.parametrize("kind", ["changed", "record", "ready", "draining", "died", "gate", "trouble"])
async def test_an_output_that_takes_nothing_ends_no_watch(tmp_path: Path, monkeypatch: Any, kind: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    heard = Heard()
    setattr(heard, kind, full)
    answers = Answers(answer("starting", "loading"), RuntimeError("x"), answer("serving"))
    async with watched(tmp_path, monkeypatch, answers, heard, ["a line"]) as supervisor:
        supervisor.state = supervisor.state.with_service(replace(supervisor.state.services[1], state="serving"))
        await state_becomes(supervisor, "serving")
        assert supervisor.state.ready
        answers.answers = [answer("not_serving", "stalled")]
        await state_becomes(supervisor, "not_serving")
    assert await supervisor._drain(asked=True)


async def test_lines_that_make_no_sense_are_passed_over(tmp_path: Path, monkeypatch: Any) -> None:
    huge = "9" * 5000
    lines = [
        "[" * 200_000,
        f'{{"level": "info", "message": "loading {huge} of {huge}"}}',
        f"{huge}.{huge}%",
        '{"level": 1}',
    ]
    out = io.StringIO()
    answers = Answers(answer("starting", f"loading {huge}/{huge}"), answer("serving"))
    worker = replace(PLAN, kind="gpuworker", name="gpuworker-0")
    monkeypatch.setitem(globals(), "PLAN", worker)
    async with watched(tmp_path, monkeypatch, answers, ConsoleWatcher(Console(file=out)), lines) as supervisor:
        await state_becomes(supervisor, "serving")
    assert "cannot be followed" not in out.getvalue() and "gpuworker-0  ready" in out.getvalue()


async def test_a_state_that_came_and_went_between_two_questions_is_shown(tmp_path: Path, monkeypatch: Any) -> None:
    out = io.StringIO()
    answers = Answers(answer("starting"), answer("serving"))
    async with watched(
        tmp_path, monkeypatch, answers, ConsoleWatcher(Console(file=out)), ["state serving"]
    ) as supervisor:
        await state_becomes(supervisor, "serving")
        with (tmp_path / "service.log").open("a") as log:  # in one go: no question falls between them
            for form in ("12:30:01 kvstore INFO state {}\n", '{{"level": "info", "message": "state {}"}}\n'):
                log.write(
                    "".join(form.format(said) for said in ("not_serving: the tier is full", "serving", "of the art"))
                )
            log.write('{"level": "warning", "message": "state draining"}\nstate draining\n')
        async with asyncio.timeout(10):
            while out.getvalue().count(" ready ") < 3:
                await asyncio.sleep(0.001)
        assert supervisor.state.services[0].state == "serving"
    said = [" ".join(line.split()[:5]) for line in out.getvalue().splitlines()]
    assert said[0].startswith("kvstore ready")
    assert [line.startswith("kvstore ready") for line in said] == [True, False, True, False, True]
    assert said[1] == said[3] == "kvstore not_serving: the tier is"


async def test_what_a_service_logs_before_it_serves_is_no_state_yet(tmp_path: Path, monkeypatch: Any) -> None:
    answers = Answers(answer("starting", "loading"))
    line = '{"level": "info", "message": "state serving"}'
    async with watched(tmp_path, monkeypatch, answers, Heard(), [line]) as supervisor:
        async with asyncio.timeout(10):
            while supervisor.state.services[0].why != "loading":
                await asyncio.sleep(0.001)
        assert (
            supervisor.state.services[0].state == "starting"
        )  # its address is asked for it: the answer says where else it listens


def test_the_states_that_are_read_are_those_that_are_logged() -> None:
    assert get_args(State) == STATES


async def test_a_process_that_cannot_be_started_again_is_tried_again(tmp_path: Path, monkeypatch: Any) -> None:
    tried: list[str] = []

    async def start(plan: ServicePlan, _log: Path) -> None:
        tried.append(plan.name)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(module.ServiceProcess, "start", start)
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.001)
    supervisor = Supervisor([PLAN], tmp_path, 1.0, Heard())
    with pytest.raises(StartFailed, match=r"kvstore did not start: its process cannot be started: .*unavailable"):
        await supervisor._keep(PLAN)
    supervisor.state = replace(supervisor.state, ready=True)
    keeping = asyncio.create_task(supervisor._keep(PLAN))
    async with asyncio.timeout(10):
        while len(tried) < 4:
            await asyncio.sleep(0.001)
    assert supervisor.state.services[0].state == "restarting" and not keeping.done()
    keeping.cancel()


async def test_a_service_whose_answers_are_alike_is_asked_less_often(tmp_path: Path, monkeypatch: Any) -> None:
    paused: list[float] = []
    ask_again_s = module._pause_s

    def pause_s(serving: bool, alike: int) -> float:
        paused.append(ask_again_s(serving, alike))
        return 0.0

    monkeypatch.setattr(module, "_pause_s", pause_s)
    monkeypatch.setattr(module, "STEADY_POLLS", 3)
    answers = Answers(answer("starting"), *[answer("serving")] * 5, answer("not_serving", "stalled"), answer("serving"))
    async with watched(tmp_path, monkeypatch, answers, Heard()):
        async with asyncio.timeout(10):
            while len(paused) < 12:
                await asyncio.sleep(0.001)
    starting, serving, steady = module.POLL_STARTING_S, module.POLL_SERVING_S, module.POLL_STEADY_S
    assert (starting, serving) == (0.001, 0.001) and steady > 1
    assert paused[:12] == [0.001] * 4 + [steady] * 2 + [0.001] * 4 + [steady] * 2
