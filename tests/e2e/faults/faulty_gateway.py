"""A gateway with one planted fault: `python -m faulty_gateway <fault> <flags>`."""

from __future__ import annotations

import secrets
import sys
from typing import Any

from octavo.keys import namespace_root
from octavo.rpc.host import run_service
from octavo_gateway import admission, inference_wire, stops
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


FAULTS = {fault.__name__: fault for fault in (stop_rule, seed_ignored, seed_constant, logprob_shift, shared_namespace)}

if __name__ == "__main__":
    FAULTS[sys.argv[1]]()
    sys.exit(run_service("gateway", setup, sys.argv[2:]))
