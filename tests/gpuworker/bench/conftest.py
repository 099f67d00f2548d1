"""The tiny decoder of the engine's tests."""

from __future__ import annotations

from tests.gpuworker.conftest import decoder, one_thread

__all__ = ["decoder", "one_thread"]
