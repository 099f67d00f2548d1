"""The first token of one stream: pairs by turns, each after its pause and with a prompt of its own; the client's clock from asking to tokens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from octavo.errors import OctavoError
from octavo_cli.bench.target import Heard, Request
from octavo_cli.engine_bench import client_child
from octavo_cli.engine_bench.client_child import Client, first_token_s
from octavo_cli.engine_bench.first_token import PAIRS, PAUSE_S, FirstTokens, first_token_figures, first_tokens


class Told:
    """Children that write down what they are asked, and answer with times that say how often."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []

    def child(self, name: str, unit_s: float) -> Any:
        told = self

        class Fake:
            def ask(self, **request: Any) -> dict[str, float]:
                told.log.append((name, request))
                return {"seconds": unit_s * sum(who == name for who, _request in told.log)}

        return Fake()


def test_a_round_asks_by_turns_after_equal_pauses_and_no_prompt_twice() -> None:
    told = Told()
    engine, client = told.child("engine", 0.001), told.child("client", 0.003)
    found = [
        first_tokens(engine, client, "int8", n, lambda pause_s: told.log.append(("pause", pause_s))) for n in (0, 1)
    ]
    whos = [who for who, _request in told.log]
    assert whos == 2 * ["client", *PAIRS * ["pause", "engine", "pause", "client"]]
    assert {request for who, request in told.log if who == "pause"} == {PAUSE_S}
    asked = [request for who, request in told.log if who == "client"]
    assert [request["do"] for request in asked] == 2 * ["open", *PAIRS * ["ask"]]
    assert len({request["seed"] for request in asked}) == len(asked)
    bare = [request for who, request in told.log if who == "engine"]
    assert {(request["do"], request["row"], request["steps"]) for request in bare} == {("row", "run/int8/b1/ctx128", 1)}
    assert len({request["seed"] for request in bare}) == len(bare)
    assert found[0].opening_ms == pytest.approx(3) and found[0].pairs[:2] == (
        pytest.approx((1, 6)),
        pytest.approx((2, 9)),
    )


def test_the_figure_is_the_median_of_differences_not_the_difference_of_medians() -> None:
    rounds = [FirstTokens(50.0, ((10.0, 12.0), (30.0, 31.0))), FirstTokens(70.0, ((20.0, 60.0), (25.0, 28.0)))]
    added, through, alone, opening = first_token_figures("services/bf16/c1", rounds)
    assert (added.name, added.value, added.unit, added.n) == ("services/bf16/c1/ttft_over_engine", 2.5, "ms", 4)
    assert added.spread == (pytest.approx(1.75), pytest.approx(12.25))
    assert (through.value, alone.value, opening.value, opening.n) == (29.5, 22.5, 60.0, 2)


class Server:
    """Answers after some chunks without tokens, as the way through the services begins."""

    def __init__(self, clock: list[float], tokens: int) -> None:
        self.clock, self.tokens = clock, tokens
        self.asked: list[Request] = []
        self.whole = 0

    async def send(self, request: Request, heard: Heard) -> None:
        self.asked.append(request)
        self.clock[0] += 1.0
        heard.part(0)
        for _ in range(self.tokens):
            self.clock[0] += 2.0
            assert not heard.part(1, (7,), "x")
        self.whole += 1


def test_the_clients_clock_stops_at_the_first_tokens_and_the_answer_is_read_to_its_end(monkeypatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(client_child.time, "perf_counter", lambda: clock[0])
    server: Any = Server(clock, 2)
    assert [asyncio.run(first_token_s(server, 49_000, seed)) for seed in (1, 2)] == [3.0, 3.0]
    first, second = server.asked
    assert server.whole == 2 and len(first.token_ids) == len(second.token_ids) == client_child.PROMPT_TOKENS
    assert first.token_ids[:16] != second.token_ids[:16]  # a block of it would be cached
    assert first.max_tokens == client_child.OUTPUT_TOKENS and first.temperature == 0


def test_an_answer_without_a_token_and_a_client_that_was_not_opened_are_told() -> None:
    silent: Any = Server([0.0], 0)
    with pytest.raises(OctavoError, match="without a token"):
        asyncio.run(first_token_s(silent, 49_000, 1))
    with pytest.raises(OctavoError, match="say open first"):
        asyncio.run(Client("grpc://127.0.0.1:1").answer({"do": "ask", "seed": 1}))
