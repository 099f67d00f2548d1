"""Octavo: `octavo.Client` and `octavo.AsyncClient` speak to a gateway; exceptions are in `octavo.errors`.

Names are looked up on first use, so that a service which imports `octavo.keys` does not load the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from octavo.polling import poll_directly

if TYPE_CHECKING:
    from octavo import errors
    from octavo.client import AsyncClient, Chunk, Client, Completion, Message, RetryPolicy

__all__ = ["AsyncClient", "Chunk", "Client", "Completion", "Message", "RetryPolicy", "errors"]

poll_directly()


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("octavo.errors")
    if name in __all__:
        return getattr(importlib.import_module("octavo.client"), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
