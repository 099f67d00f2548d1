"""The client SDK: AsyncClient on your loop, Client without one, and the values they return."""

from octavo.client.aio import AsyncClient
from octavo.client.blocking import Client, Stream
from octavo.client.cache import AsyncCache, CacheExplanation, Preload
from octavo.client.retry import RetryPolicy
from octavo.client.stream import AsyncStream
from octavo.client.types import (
    Cancellation,
    Choice,
    Chunk,
    Completion,
    Cost,
    Message,
    ModelInfo,
    Pausing,
    Timings,
    TokenCount,
    TokenLogprob,
    Tokens,
    ToolCall,
    ToolCallPart,
    Usage,
)

__all__ = [
    "AsyncCache",
    "AsyncClient",
    "AsyncStream",
    "CacheExplanation",
    "Cancellation",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "Cost",
    "Message",
    "ModelInfo",
    "Pausing",
    "Preload",
    "RetryPolicy",
    "Stream",
    "Timings",
    "TokenCount",
    "TokenLogprob",
    "Tokens",
    "ToolCall",
    "ToolCallPart",
    "Usage",
]
