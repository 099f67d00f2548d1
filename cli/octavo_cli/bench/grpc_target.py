"""Our own protocol, through the SDK as any client speaks it."""

from __future__ import annotations

from typing import Any, Self

from octavo.client import AsyncClient, Message, RetryPolicy, Timings
from octavo.client.targets import dial_address
from octavo.errors import DeadlineExceeded, InternalError

from octavo_cli.bench.sample import ServerTimes
from octavo_cli.bench.target import Described, Heard, Request, Usage
from octavo_cli.probe import Probe

NO_RETRY = RetryPolicy(max_attempts=1, resume_window_s=0)
INFO_TIMEOUT_S = 5.0


class GrpcTarget:
    """octavo.v1.InferenceService at grpc://host:port. `multiplex`: the SDK's own way, all requests on one stream."""

    def __init__(self, url: str, api_key: str = "", model: str = "", *, multiplex: bool = True) -> None:
        self._address = dial_address(url)
        self._model = model
        self._multiplex = multiplex
        self._client = AsyncClient(url, api_key=api_key, retry=NO_RETRY, multiplex=multiplex)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def describe(self) -> Described:
        served = await self._client.models()
        found = next((item for item in served if item.id == self._model or not self._model), None)
        if found is None:
            raise InternalError("the gateway serves no such model; see `octavo status`")
        facts: dict[str, Any] = {
            "protocol": "grpc",
            "multiplex": self._multiplex,
            "model": found.id,
            "model_fingerprint": found.fingerprint,
            **await self._settings(),
        }
        return Described(found.id, found.vocab_size or 32000, found.max_model_len or 4096, facts)

    async def send(self, request: Request, heard: Heard) -> None:
        options: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "ignore_eos": request.ignore_eos,
            "cache_salt": request.cache_salt,
        }
        if request.messages:
            stream = self._client.chat_stream([Message(role, said) for role, said in request.messages], **options)
        else:
            stream = self._client.generate_stream(request.token_ids, **options)
        async with stream:
            async for chunk in stream:
                if heard.part(len(chunk.token_ids), chunk.token_ids, chunk.text):
                    return  # leaving the context ends the call, which cancels the request
        done = stream.completion
        if done is None:
            raise InternalError("the stream ended without a terminal event")
        usage = Usage(done.usage.prompt_tokens, done.usage.cached_tokens, done.usage.completion_tokens)
        heard.usage(usage, server_times(done.timings))
        if done.finish_reason == "deadline":
            raise DeadlineExceeded("the deadline passed before the answer was whole")

    async def _settings(self) -> dict[str, Any]:
        """Version and settings that are not defaults, of the gateway: the manifest is the same for all services."""
        async with Probe(self._address, INFO_TIMEOUT_S) as probe:
            info = await probe.info()
        if info is None:
            return {}  # another gateway in front, or an older one: the comparison then lists less
        # addresses and folders name this start of the cluster, not what it serves
        told = {
            item.key: item.value
            for item in info.settings
            if item.source != "default" and not item.key.startswith(("deployment.", "gateway.", "kvstore.listen"))
        }
        return {"version": info.version, "settings": told}


def server_times(timings: Timings) -> ServerTimes:
    """The gateway's account in milliseconds since it received the request."""
    waited_us = max(0, timings.t_prefill_start_us - timings.t_admitted_us - timings.kv_load_us)
    return ServerTimes(
        timings.t_first_token_us / 1000.0 if timings.t_first_token_us else None,
        timings.t_complete_us / 1000.0 if timings.t_complete_us else None,
        timings.queue_us / 1000.0,
        timings.prefill_us / 1000.0,
        waited_us / 1000.0 if timings.t_prefill_start_us else None,
    )
