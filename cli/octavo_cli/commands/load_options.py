"""What `bench serve` and `simulate` ask alike: the options of arrivals and workload."""

from __future__ import annotations

from typing import Annotated

import typer

Burstiness = Annotated[float, typer.Option("--burstiness", help="gamma: deviation over mean of the gaps.")]
Speed = Annotated[float, typer.Option("--speed", help="replay: how much faster than the trace.")]
Workload = Annotated[
    str, typer.Option("--workload", help="random, chat, shared-prefix, long-prompt, rag or multi-turn.")
]
Trace = Annotated[str, typer.Option("--trace", help="A trace file instead; see --trace-format.")]
TraceFormat = Annotated[
    str, typer.Option("--trace-format", help="mooncake, azure, burstgpt, sharegpt; absent: guessed.")
]
PromptTokens = Annotated[int, typer.Option("--prompt-tokens", help="Mean of what each request adds.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", help="Mean output.")]
LengthSpread = Annotated[float, typer.Option("--length-spread", help="Deviation over mean of lognormal lengths.")]
PrefixTokens = Annotated[int, typer.Option("--prefix-tokens", help="Of a shared prefix or document.")]
Prefixes = Annotated[int, typer.Option("--prefixes", help="How many different ones.")]
Turns = Annotated[int, typer.Option("--turns", help="Requests of a conversation or agent.")]
PauseS = Annotated[float, typer.Option("--pause-s", help="Mean pause between turns.")]
JsonPath = Annotated[str, typer.Option("--json", help="Write the figures to this file; -: standard output.")]
