"""The one place where a request is checked: `RequestParams` goes in, `AdmittedRequest` comes out and is the proof.

Nothing here knows gRPC, HTTP or the scheduler's stream; nothing after this checks a value again.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from octavo.errors import FieldName, UnknownModel
from octavo.keys import choice_seed, extend_keys, root_of
from octavo.packing import pack_keys

from octavo_gateway import sampling_checks as check
from octavo_gateway.argument_schemas import KnownSchemas
from octavo_gateway.beams import Beams, check_beams, without_draws
from octavo_gateway.body_hash import body_hash
from octavo_gateway.caching.rules import check_cache
from octavo_gateway.caching.tools import callable_names, check_tools, shown_tools
from octavo_gateway.call_opening import is_forced
from octavo_gateway.chat import ChatRenderer, check_messages
from octavo_gateway.namespaces import Namespaces
from octavo_gateway.requests import Encoded, PromptChunk, RequestParams
from octavo_gateway.tokenizer import Tokenizer

COMPLETION_MAX_TOKENS: Final = 16
MAX_NAME_CHARS: Final = 128
I32: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler's Welcome and the settings allow. root_key: 32 bytes, parent of every block key."""

    root_key: bytes
    block_tokens: int
    max_model_len: int
    max_choices: int
    max_stop_strings: int = 16
    max_logprobs: int = 20
    generations: Mapping[str, int] = field(default_factory=dict)  # of rotated tenant namespaces


UNKNOWN_LIMITS: Final = Limits(b"", 16, I32, I32)
"""Before the first Welcome: nothing is too long, but what is wrong anywhere is wrong here."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The model's own sampling defaults (generation_config.json)."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """Checked and complete. top_k 0: off; logprobs -1: none; stop_ids empty: only max_tokens ends it."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float]
    stop_ids: tuple[int, ...]
    min_tokens: int
    logprobs: int


@dataclass(frozen=True, slots=True)
class TextRules:
    """How output ids become text; together with the ids all that another gateway needs to go on."""

    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    include_stop_str: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    echo: bool = False
    tools: frozenset[str] = frozenset()  # functions that the model may call
    opening: str = ""  # of a call that the answer must be: its first words, which the prompt ended with
    schemas: tuple[
        tuple[str, str], ...
    ] = ()  # then also: a function's name and the JSON schema that its arguments must fit


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that may enter the queue. Only `Admission.admit` makes one."""

    request_id: str
    idempotency_key: str
    kind: str
    tenant: str
    model: str
    prompt_ids: list[int]
    prompt_keys: bytes  # packed 32-byte keys of the full blocks; empty: cache off
    root_key: bytes  # what the keys were derived from
    namespace_root: bytes  # 32 bytes, parent of the first block's key; empty: cache off
    sampling: Sampling
    text: TextRules
    max_tokens: int
    n: int
    seed: int
    seeds: tuple[int, ...]  # one per choice
    priority: int
    slo_class: str
    deadline_s: float | None
    cache_off: bool
    cache_salt: str
    body_hash: bytes
    cache_ttl_s: float = 0.0
    cache_pin: bool = False
    cache_priority: int = 0
    cache_tiers: Sequence[str] = ()
    cache_preload: str = ""
    chunks: Sequence[PromptChunk] = ()
    pause_tool: str = ""
    pause_expected_ms: int = 0
    resumes: str = ""
    generation: int = 0  # of the tenant's namespace, in the keys
    namespace_tag: bytes = b""  # 16 bytes, by which stores tell tenants apart
    beams: Beams | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Checks requests for one model. `draw_seed` and `draw_id` are replaced in tests."""

    model: str
    tokenizer: Tokenizer
    chat: ChatRenderer
    secret: bytes
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    draw_seed: Callable[[], int] = lambda: secrets.randbits(63)
    draw_id: Callable[[], str] = lambda: f"req-{secrets.token_hex(12)}"
    known_schemas: KnownSchemas = field(default_factory=KnownSchemas)
    namespaces: Namespaces = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "namespaces", Namespaces(self.secret))

    def check(self, params: RequestParams, limits: Limits) -> None:
        """Everything that needs no tokenization. Raises InvalidRequest or UnknownModel."""
        self.check_model(params.model)
        check.name("request_id", params.request_id, MAX_NAME_CHARS)
        check.name("idempotency_key", params.idempotency_key, MAX_NAME_CHARS)
        check.name("slo_class", params.slo_class, MAX_NAME_CHARS)
        check_cache(params)
        check.name("pause.tool", params.pause_tool, MAX_NAME_CHARS)
        check.integer("pause.expected_ms", params.pause_expected_ms, 0, 2**32 - 1)
        check.name("resumes", params.resumes, MAX_NAME_CHARS)
        check.integer("priority", params.priority, -I32 - 1, I32)
        check.integer("deadline_ms", params.deadline_ms, 0, 2**32 - 1)
        if params.n is not None:
            check.integer("n", params.n, 1, limits.max_choices)
        if params.max_tokens is not None:
            check.integer("max_tokens", params.max_tokens, 1, limits.max_model_len)
        check.integer("min_tokens", params.min_tokens, 0, limits.max_model_len)
        if params.echo and params.kind != "generate":
            raise check.invalid("echo", "it is for raw prompts only; leave it out")
        check_tools(params)
        self._opening(params)
        self._check_prompt(params, limits)

    def check_sampling(self, params: RequestParams, limits: Limits) -> None:
        """What `admit` checks beyond the prompt's length, for a request that cannot be admitted yet."""
        check_beams(params, limits, self.tokenizer.vocab_size)
        self._sampling(params, limits)
        self._seed(params)
        check.stop_strings(params.stop, limits.max_stop_strings)

    def check_model(self, model: str) -> None:
        """UnknownModel unless `model` is empty or the served one."""
        if model not in ("", self.model):
            raise UnknownModel(f"model: {model[:80]!r} is not served here; use {self.model!r}", field="model")

    def _opening(self, params: RequestParams) -> str:
        """What the answer begins with; empty unless it must be a call. FeatureOff when this model's template has no such opening."""
        return self.chat.opening(params.tool_choice) if is_forced(params.tool_choice) else ""

    def _check_prompt(self, params: RequestParams, limits: Limits) -> None:
        if params.kind == "chat":
            check_messages(params.messages)
            self._check_size("messages", sum(len(message.content) for message in params.messages), limits)
            return
        if (params.prompt_text is None) == (params.prompt_ids is None):
            raise check.invalid("prompt", "send either text or token ids")
        if not (params.prompt_text or params.prompt_ids):
            raise check.invalid("prompt", "it is empty; send at least one character or token")
        if params.prompt_ids is not None:
            if len(params.prompt_ids) >= limits.max_model_len:
                raise too_long("prompt", len(params.prompt_ids), limits)
            check.token_ids("prompt", params.prompt_ids, self.tokenizer.vocab_size)
        else:
            self._check_size("prompt", len(check.text("prompt", params.prompt_text or "")), limits)

    def _check_size(self, name: str, chars: int, limits: Limits) -> None:
        # No token is longer than the longest one, so this many characters cannot fit: refused before tokenizing them.
        at_least = chars // self.tokenizer.longest_token_bytes
        if at_least >= limits.max_model_len:
            raise too_long(name, at_least, limits, "at least ")

    def encode(self, params: RequestParams) -> Encoded:
        """The prompt of a checked request; may run in a thread. InvalidRequest for what a template or a schema makes of it."""
        if params.kind == "chat":
            forced = is_forced(params.tool_choice)
            schemas = self.known_schemas.check(params, callable_names(params)) if forced else ()
            ids = self.chat.encode(
                params.messages,
                add_generation_prompt=params.add_generation_prompt,
                tools=shown_tools(params),
                opening=self._opening(params),
            )
            return Encoded(ids, schemas)
        if params.prompt_ids is not None:
            return Encoded(list(params.prompt_ids))
        return Encoded(self.tokenizer.with_bos(self.tokenizer.encode(params.prompt_text or "")))

    def admit(
        self,
        params: RequestParams,
        encoded: Encoded,
        tenant: str,
        deadline_s: float | None,
        limits: Limits,
        chunks: Sequence[PromptChunk] = (),
    ) -> AdmittedRequest:
        """The proof, from a request that `check` passed and its prompt from `encode`. InvalidRequest as `check`."""
        prompt_ids = encoded.prompt_ids
        prompt_field = "messages" if params.kind == "chat" else "prompt"
        if not prompt_ids:
            raise check.invalid(prompt_field, "it has no tokens; send some text")
        if len(prompt_ids) >= limits.max_model_len:
            raise too_long(prompt_field, len(prompt_ids), limits)
        max_tokens = self._max_tokens(params, len(prompt_ids), limits)
        if params.min_tokens > max_tokens:
            problem = f"{params.min_tokens} is more than "
            raise check.invalid("min_tokens", problem, FieldName("max_tokens"), f" ({max_tokens}); lower it")
        beams = check_beams(params, limits, self.tokenizer.vocab_size)
        sampling = self._sampling(params if beams is None else without_draws(params), limits)
        seed = self._seed(params)
        n = params.n or (beams.width if beams is not None else 1)
        root = b"" if params.cache_off else self.root(tenant, params.cache_salt, limits)
        return AdmittedRequest(
            request_id=params.request_id or self.draw_id(),
            idempotency_key=params.idempotency_key,
            kind=params.kind,
            tenant=tenant,
            model=self.model,
            prompt_ids=prompt_ids,
            prompt_keys=pack_keys(extend_keys(root, prompt_ids, limits.block_tokens)) if root else b"",
            root_key=limits.root_key,
            namespace_root=root,
            sampling=sampling,
            text=TextRules(
                stops=check.stop_strings(params.stop, limits.max_stop_strings),
                stop_ids=frozenset(sampling.stop_ids),
                include_stop_str=params.include_stop_str,
                min_tokens=params.min_tokens,
                skip_special_tokens=params.skip_special_tokens,
                echo=params.echo,
                tools=callable_names(params),
                opening=self._opening(params),
                schemas=encoded.schemas,
            ),
            max_tokens=max_tokens,
            n=n,
            seed=seed,
            seeds=tuple(choice_seed(seed, i) for i in range(n)),
            priority=params.priority,
            slo_class=params.slo_class,
            deadline_s=deadline_s,
            cache_off=params.cache_off,
            cache_salt=params.cache_salt,
            body_hash=body_hash(params, tenant),
            cache_ttl_s=params.cache_ttl_s,
            cache_pin=params.cache_pin,
            cache_priority=params.cache_priority,
            cache_tiers=tuple(params.cache_tiers),
            cache_preload=params.cache_preload,
            chunks=tuple(chunks),
            pause_tool=params.pause_tool,
            pause_expected_ms=params.pause_expected_ms,
            resumes=params.resumes,
            generation=limits.generations.get(tenant, 0),
            namespace_tag=self.namespaces.tag(tenant),
            beams=beams,
        )

    def keys(self, prompt_ids: Sequence[int], tenant: str, salt: str, limits: Limits) -> bytes:
        """Packed keys of the prompt's full blocks in the tenant's namespace."""
        return pack_keys(extend_keys(self.root(tenant, salt, limits), prompt_ids, limits.block_tokens))

    def root(self, tenant: str, salt: str, limits: Limits) -> bytes:
        """The parent of a first block's key in the tenant's namespace."""
        return root_of(limits.root_key, self.namespaces.mac(tenant, limits.generations.get(tenant, 0)), salt)

    def rekey(self, admitted: AdmittedRequest, limits: Limits) -> AdmittedRequest:
        """The same request under another root key or namespace: a worker of another make came, or it was rotated."""
        keys = root = b""
        if not admitted.cache_off:
            keys = self.keys(admitted.prompt_ids, admitted.tenant, admitted.cache_salt, limits)
            root = self.root(admitted.tenant, admitted.cache_salt, limits)
        generation = limits.generations.get(admitted.tenant, 0)
        return replace(
            admitted,
            prompt_keys=keys,
            root_key=limits.root_key,
            namespace_root=root,
            generation=generation,
            namespace_tag=self.namespaces.tag(admitted.tenant),
        )

    def _max_tokens(self, params: RequestParams, prompt_tokens: int, limits: Limits) -> int:
        room = limits.max_model_len - prompt_tokens
        if params.max_tokens is None:
            return room if params.kind == "chat" else min(COMPLETION_MAX_TOKENS, room)
        if params.max_tokens > room:
            problem = (
                f"{params.max_tokens} after a prompt of {prompt_tokens} tokens is beyond the context of "
                f"{limits.max_model_len}; use at most {room}"
            )
            raise check.invalid("max_tokens", problem)
        return params.max_tokens

    def _seed(self, params: RequestParams) -> int:
        if params.seed is None:
            return self.draw_seed()
        return check.integer("seed", params.seed, 0, check.U64 - 1, fix="an integer from 0 to 2^64 - 1")

    def _sampling(self, params: RequestParams, limits: Limits) -> Sampling:
        vocab_size, defaults = self.tokenizer.vocab_size, self.defaults
        own_stops = check.token_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        if len(own_stops) > check.MAX_STOP_IDS:
            raise check.invalid("stop_token_ids", f"{len(own_stops)} ids; use at most {check.MAX_STOP_IDS}")
        ends = () if params.ignore_eos else self.tokenizer.eos_ids
        top_k = defaults.top_k if params.top_k is None else params.top_k
        fix_k = "-1 or 0 (off), or a positive integer"
        repetition = defaults.repetition_penalty if params.repetition_penalty is None else params.repetition_penalty
        logprobs = -1
        if params.logprobs is not None:
            logprobs = check.integer("logprobs", params.logprobs, 0, limits.max_logprobs)
        return Sampling(
            temperature=check.temperature(defaults.temperature if params.temperature is None else params.temperature),
            top_p=check.above_zero("top_p", defaults.top_p if params.top_p is None else params.top_p, 1),
            top_k=max(0, check.integer("top_k", top_k, -1, I32, fix=fix_k)),
            min_p=check.number("min_p", defaults.min_p if params.min_p is None else params.min_p, 0, 1),
            presence_penalty=check.number("presence_penalty", params.presence_penalty or 0.0, -2, 2),
            frequency_penalty=check.number("frequency_penalty", params.frequency_penalty or 0.0, -2, 2),
            repetition_penalty=check.above_zero("repetition_penalty", repetition, 100),
            logit_bias=check.logit_bias(params.logit_bias, vocab_size),
            stop_ids=tuple(dict.fromkeys((*ends, *own_stops))),
            min_tokens=params.min_tokens,
            logprobs=logprobs,
        )


def prompt_chars(params: RequestParams) -> int:
    """About how long the text is that is tokenized: what messages say and call, and the tools that are told of."""
    chars = len(params.prompt_text or "") + sum(len(message.content) for message in params.messages)
    chars += sum(len(call.arguments) for message in params.messages for call in message.tool_calls)
    return chars + (len(json.dumps(list(shown_tools(params)))) if params.tools else 0)


def too_long(field: str, tokens: int, limits: Limits, about: str = "") -> Exception:
    """The error of a prompt that leaves no room for output."""
    most = limits.max_model_len - 1
    return check.invalid(
        field, f"{about}{tokens} tokens do not fit a context of {limits.max_model_len}; send at most {most}"
    )
