"""What the driver logs is all that the core depends on: a replay gives the same orders, byte for byte."""

from __future__ import annotations

import io
import json
from array import array
from pathlib import Path
from random import Random

import pytest
from octavo_scheduler.__main__ import open_log
from octavo_scheduler.event_log import BadLog, EventLog, from_plain, replay, to_plain
from octavo_scheduler.events import ChoiceStart, Finish, Reported, StoreChanged, Submitted, WorkerJoined
from octavo_scheduler.orders import Admit, SiblingAdmit
from octavo_scheduler.policy import Policy

from tests.scheduler.chaos_link import LiveGateway, LiveStore, chaos
from tests.scheduler.chaos_store import ChaosStore
from tests.scheduler.test_service import running_cell, running_worker


async def live_log(requests: int, seed: int = 3) -> list[str]:
    """The log of a live cell of two chaos workers, one with a kvstore: shared prefixes, cancels, one worker loss, a drain."""
    draw = Random(seed)
    out = io.StringIO()
    prefixes = [[draw.randint(1, 50) for _ in range(12)] for _ in range(3)]
    store = ChaosStore(Random(seed))
    async with (
        running_cell(Policy(max_num_seqs=4), event_log=out) as cell,
        LiveStore(cell.channel, store),
        running_worker(cell, chaos(seed, store=store)) as first,
        running_worker(cell, chaos(seed + 1, worker_id="w1")),
        LiveGateway(cell.channel) as gateway,
    ):
        await gateway.until(lambda: gateway.welcome.ready)
        for i in range(requests):
            prompt = [*draw.choice(prefixes), *(draw.randint(1, 50) for _ in range(draw.randint(1, 9)))]
            await gateway.submit(f"r{i}", prompt, draw.randint(1, 30), seed=i)
            if i % 7 == 3:
                await gateway.cancel(f"r{draw.randint(0, i)}")
            if i == requests // 2:
                first.kill()
        await gateway.until(lambda: len(gateway.finished) == requests, limit_s=120.0)
        await cell.all_free()
        cell.driver.drain()
        assert cell.driver.core.cell.counters["worker_losses"] >= 1
        assert cell.driver.core.cell.counters["prefix_hit_tokens"] > 0
    return out.getvalue().splitlines()


@pytest.mark.parametrize("requests", [60, pytest.param(500, marks=pytest.mark.soak)])
async def test_a_live_run_replays_to_the_same_orders(requests: int) -> None:
    lines = await live_log(requests)
    kinds = {json.loads(line)[0] for line in lines[1:]}
    assert kinds == {"event", "collect", "drain"}
    played = replay(lines)
    assert played.difference == ""
    assert played.events > requests and played.orders > 2 * requests

    # the comparison can fail: an input that is missing, and an order that is not what was sent
    at = next(k for k, line in enumerate(lines) if '{"":"Submitted"' in line)
    assert replay(lines[:at] + lines[at + 1 :]).difference.startswith("event ")
    at = next(k for k, line in enumerate(lines) if '{"":"Admit"' in line)
    changed = lines[at].replace('"slot":', '"slot":1', 1)
    played = replay([*lines[:at], changed, *lines[at + 1 :]])
    assert "logged" in played.difference and "replayed" in played.difference


def test_every_kind_of_value_survives() -> None:
    kept = [
        Submitted(
            1,
            2,
            "a",
            array("I", [1, 2**32 - 1]),
            3,
            [ChoiceStart(2**64 - 1, array("I", [7]), "stop")],
            sampling=b"\0\xff",
        ),
        WorkerJoined(5, 1, "w", 4, 16, 2, 64, resident=[(1, bytes(32))]),
        Reported(9, 1, slots=[0], counts=[1], tokens=array("I", [4]), finishes=[Finish(0, 1, "stop")], live_seqs=[]),
        StoreChanged(9, "s", 1, 4, [(b"k", True)]),
        Admit(1, 2, b"\1", 1, 0, [3], b"", 4, 5, 6, 7, "a", "", siblings=[SiblingAdmit(1, 2, 3, [4])]),
    ]
    for value in kept:
        assert from_plain(json.loads(json.dumps(to_plain(value)))) == value


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "line 1: the log is empty"),
        (["{"], "line 1: is not JSON"),
        (['{"a": 1}'], "scheduler.event_log"),
        (['{"octavo_event_log": 1, "now_us": 0, "policy": {}}', "3"], "line 2: must be a list"),
        (['{"octavo_event_log": 1, "now_us": 0, "policy": {}}', '["event", {"": "Boom"}, []]'], "'Boom' is no event"),
        (['{"octavo_event_log": 1, "now_us": 0, "policy": {}}', '["event", {"": "Tick"}, []]'], "Tick: "),
        (['{"octavo_event_log": 1, "now_us": 0, "policy": {}}', '["what"]'], "'what' is neither"),
    ],
)
def test_a_bad_log_is_named_with_its_line(lines: list[str], what: str) -> None:
    with pytest.raises(BadLog, match=what):
        replay(lines)


def test_the_setting_names_a_file_that_can_be_written(tmp_path: Path) -> None:
    from octavo.manifest import ManifestError
    from octavo_scheduler.__main__ import open_log

    assert open_log("") is None
    with pytest.raises(ManifestError, match=r"scheduler\.event_log: .* cannot be written"):
        open_log(str(tmp_path / "nowhere" / "log"))
    out = open_log(str(tmp_path / "log"))
    assert out is not None
    out.close()


class FullDisk(io.StringIO):
    """Takes the header and one line."""

    def write(self, text: str) -> int:
        if self.getvalue().count("\n") >= 2:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_a_full_disk_ends_the_log_and_not_the_core() -> None:
    told: list[str] = []
    log = EventLog(FullDisk(), Policy(), 0, told.append)
    for _ in range(5):
        log.drained()
        log.flush()
    assert told == ["[Errno 28] No space left on device"]  # once


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"octavo_event_log": 1, "now_us": 0, "policy": {"x": 1}}'], "line 1: policy is of another version"),
        (['{"octavo_event_log": 1, "now_us": "0", "policy": {}}'], "line 1: policy must be an object and now_us"),
        (
            ['{"octavo_event_log": 1, "now_us": 0, "policy": {}}', '["event"]'],
            'event 1: must be \\["event", event, orders',
        ),
        (['{"octavo_event_log": 1, "now_us": 0, "policy": {}}', "[" * 100_000], "line 2: is not JSON"),
    ],
)
def test_a_damaged_log_is_told(lines: list[str], said: str) -> None:
    with pytest.raises(BadLog, match=said):
        replay(lines)


def test_the_log_of_an_earlier_process_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text("what led to the crash\n")
    out = open_log(str(path))
    assert out is not None
    out.close()
    assert (tmp_path / "events.jsonl.earlier").read_text() == "what led to the crash\n" and not path.read_text()


HEADER = '{"octavo_event_log": 1, "now_us": 0, "policy": {}}'


@pytest.mark.parametrize(
    "entry",
    [
        '["event", {"": "Tick", "now_us": "soon"}, []]',
        '["event", {"": "Tick", "now_us": {"b": "zz"}}, []]',
        '["event", {"": "Tick", "now_us": {"u": "000"}}, []]',
        '["event", {"": "Tick", "now_us": {"t": 3}}, []]',
        '["event", {"": {}}, []]',
        '["event", {"": "Policy"}, []]',
        '["collect", {}]',
    ],
)
def test_fields_that_no_event_has_are_told_with_the_event_s_number(entry: str) -> None:
    with pytest.raises(BadLog):
        replay([HEADER, entry])


def test_the_log_of_a_scheduler_that_was_killed_ends_inside_a_line() -> None:
    whole = [HEADER, '["event",{"":"Tick","now_us":1},[]]']
    assert replay(whole).cut is False
    played = replay([*whole, '["event",{"":"Tick","no'])
    assert (played.events, played.difference, played.cut) == (1, "", True)
    with pytest.raises(BadLog, match="line 2: is not JSON"):
        replay([HEADER, '["event",{"":"Ti', whole[1]])
