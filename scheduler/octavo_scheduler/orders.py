"""Orders to workers and the facts that the core hands to the shell; the same records that the chaos worker reads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SiblingAdmit:
    seq: int
    slot: int
    seed: int
    block_ids: list[int]
    tokens: bytes = b""  # packed u32, all of it; empty: the leader's


@dataclass(slots=True)
class BlendPart:
    """[start, start + count) takes the KV of positions [first, first + count) of a chain that lies in `block_ids`."""

    start: int
    count: int
    first: int
    block_ids: list[int]


@dataclass(slots=True)
class Admit:
    seq: int
    slot: int
    tokens: bytes  # packed u32
    prompt_len: int
    cached_len: int
    block_ids: list[int]
    sampling: bytes
    seed: int
    deadline_us: int
    rank: int
    max_len: int
    request_id: str
    traceparent: str
    wait_xfer: int = 0
    wait_base: int = 0
    stop_after: int = 0  # output tokens in this residency; 0: none
    siblings: list[SiblingAdmit] = field(default_factory=list)
    blend_parts: list[BlendPart] = field(default_factory=list)
    blend_share: float = 0.0
    split_len: int = 0  # common tokens of siblings that bring their own; 0: they have the same


@dataclass(slots=True)
class Grant:
    seq: int
    block_ids: list[int]


@dataclass(slots=True)
class Fork:
    """Beams take their next tokens. `parents`: the place in `seqs` of the beam that each goes on from, mostly its own."""

    seqs: list[int]
    parents: list[int]
    tokens: list[int]


@dataclass(slots=True)
class Stop:
    seq: int
    reason: str  # cancel, preempt, finished, deadline


@dataclass(slots=True)
class Offload:
    xfer_id: int
    block_ids: list[int]
    keys: list[bytes]
    parents: list[bytes]  # zeros: the head of a chain
    # one per block, or none when no block has any
    namespaces: list[bytes] = field(default_factory=list)  # 16 bytes each, or empty
    ttl_us: list[int] = field(default_factory=list)
    priorities: list[int] = field(default_factory=list)
    recompute_us: list[int] = field(default_factory=list)
    tiers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class LoadSource:
    """keys[first : first + count] of a load are believed to be held by another host's kvstore."""

    store_id: str
    first: int
    count: int


@dataclass(slots=True)
class Load:
    xfer_id: int
    keys: list[bytes]
    block_ids: list[int]
    limit_us: int
    sources: list[LoadSource] = field(default_factory=list)


@dataclass(slots=True)
class Abort:
    """End this transfer as soon as its copy can be fenced."""

    xfer_id: int


@dataclass(slots=True)
class Label:
    block_ids: list[int]
    keys: list[bytes]
    parents: list[bytes] = field(default_factory=list)  # zeros: the head of a chain

    @property
    def can_wait(self) -> bool:
        """It only names blocks: nothing that runs asks for that before the next order, behind which it must not come."""
        return len(self.keys) == len(self.block_ids)


@dataclass(slots=True)
class Update:
    seq: int
    rank: int
    paused: bool = False
    draft_len: int = 0


@dataclass(slots=True)
class StepPolicy:
    budget_with_decodes: int
    budget_alone: int
    max_seqs: int


@dataclass(slots=True)
class Leave:
    """Say in every report that you drain, and end with this stream."""


Order = Admit | Grant | Fork | Stop | Offload | Load | Abort | Label | Update | StepPolicy | Leave


@dataclass(slots=True)
class Forget:
    """To a kvstore: the blocks of these keys and all chained from them, or all of a namespace."""

    keys: list[bytes]
    namespace: bytes = b""


@dataclass(slots=True)
class Keep:
    """To a kvstore: never evict the blocks of these keys; or, not `pinned`, let them go again."""

    keys: list[bytes]
    pinned: bool


@dataclass(slots=True)
class Fact:
    """Something that became true and may be a span: name, parent, [start_us, end_us] on the shell's clock, attributes."""

    name: str  # queue, rejected, kv.load, attempt, preempted, handoff, pause, cancel, request_end
    traceparent: str
    start_us: int
    end_us: int
    attributes: dict[str, str | int | float] = field(default_factory=dict)


@dataclass(slots=True)
class Effects:
    """What the shell must do after one event."""

    orders: list[tuple[int, list[Order]]]  # (epoch, orders in order)
    close_workers: list[tuple[int, str]]  # (epoch, why)
    ask_inventory: list[str]  # store ids
    dirty_gateways: set[int]
    facts: list[Fact]
    limits_changed: bool
    next_wakeup_us: int
    stores: list[tuple[str, Forget | Keep]] = field(default_factory=list)  # (store id, what)
    prefetch: list[tuple[str, list[bytes]]] = field(default_factory=list)  # (store id, keys of a chain)
