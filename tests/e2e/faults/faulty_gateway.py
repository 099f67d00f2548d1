"""A gateway with one planted fault: `python -m faulty_gateway <fault> <flags>`."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from typing import Any

from octavo.keys import namespace_root
from octavo.rpc.host import run_service
from octavo_gateway import admission, choice, inference_wire, stops
from octavo_gateway.__main__ import setup


def stop_rule() -> None:
    """Stop strings are not looked for."""
    stops.StopMatcher.feed = lambda self, text, *, armed=True: text  # type: ignore[method-assign]


def seed_ignored() -> None:
    """Every request draws a seed of its own."""
    admission.Admission._seed = lambda self, params: secrets.randbits(63)  # type: ignore[method-assign]


def seed_constant() -> None:
    """Every request has the same seed."""
    admission.Admission._seed = lambda self, params: 7  # type: ignore[method-assign]


def logprob_shift() -> None:
    """Every logprob is 0.1 too low."""
    honest = inference_wire._logprob_message

    def shifted(logprob: Any) -> Any:
        message = honest(logprob)
        message.logprob -= 0.1
        return message

    inference_wire._logprob_message = shifted


def shared_namespace() -> None:
    """All tenants and salts share one prefix cache."""
    admission.Admission.root = (  # type: ignore[method-assign]
        lambda self, tenant, salt, limits: namespace_root(limits.root_key, self.secret, "everybody")
    )


def tool_json_cut() -> None:
    """The arguments of a tool call lose their last character."""
    honest = choice.named_calls
    choice.named_calls = (
        lambda request_id, output: [  # type: ignore[assignment]
            replace(call, arguments=call.arguments[:-1]) for call in honest(request_id, output)
        ]
    )


ALL = (stop_rule, seed_ignored, seed_constant, logprob_shift, shared_namespace, tool_json_cut)
FAULTS = {fault.__name__: fault for fault in ALL}

if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.exit(run_service("gateway", setup, sys.argv[2:]))
