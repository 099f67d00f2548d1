from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PinRequest(_message.Message):
    __slots__ = ("keys", "layout", "limit_us", "exact", "sources", "arena_client")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_US_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ARENA_CLIENT_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    limit_us: int
    exact: bool
    sources: _containers.RepeatedCompositeFieldContainer[BlockSource]
    arena_client: int
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., limit_us: _Optional[int] = ..., exact: _Optional[bool] = ..., sources: _Optional[_Iterable[_Union[BlockSource, _Mapping]]] = ..., arena_client: _Optional[int] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("lease", "held", "slots")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    lease: int
    held: int
    slots: _containers.RepeatedCompositeFieldContainer[SlotRef]
    def __init__(self, lease: _Optional[int] = ..., held: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[SlotRef, _Mapping]]] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    def __init__(self, lease: _Optional[int] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("keys", "layout", "lease", "exact", "sources", "arena_client", "groups")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ARENA_CLIENT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    lease: int
    exact: bool
    sources: _containers.RepeatedCompositeFieldContainer[BlockSource]
    arena_client: int
    groups: bool
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., lease: _Optional[int] = ..., exact: _Optional[bool] = ..., sources: _Optional[_Iterable[_Union[BlockSource, _Mapping]]] = ..., arena_client: _Optional[int] = ..., groups: _Optional[bool] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("key", "payload", "checksum", "tier", "slot", "parent", "meta", "also")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    ALSO_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    payload: bytes
    checksum: int
    tier: str
    slot: SlotRef
    parent: bytes
    meta: BlockMeta
    also: _containers.RepeatedCompositeFieldContainer[GetResponse]
    def __init__(self, key: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., checksum: _Optional[int] = ..., tier: _Optional[str] = ..., slot: _Optional[_Union[SlotRef, _Mapping]] = ..., parent: _Optional[bytes] = ..., meta: _Optional[_Union[BlockMeta, _Mapping]] = ..., also: _Optional[_Iterable[_Union[GetResponse, _Mapping]]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("key", "parent", "payload", "checksum", "layout", "shape", "exact", "meta")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent: bytes
    payload: bytes
    checksum: int
    layout: bytes
    shape: PayloadShape
    exact: bool
    meta: BlockMeta
    def __init__(self, key: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., checksum: _Optional[int] = ..., layout: _Optional[bytes] = ..., shape: _Optional[_Union[PayloadShape, _Mapping]] = ..., exact: _Optional[bool] = ..., meta: _Optional[_Union[BlockMeta, _Mapping]] = ...) -> None: ...

class PayloadShape(_message.Message):
    __slots__ = ("layers", "halves", "heads", "tokens", "width", "dtype")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HALVES_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    layers: int
    halves: int
    heads: int
    tokens: int
    width: int
    dtype: str
    def __init__(self, layers: _Optional[int] = ..., halves: _Optional[int] = ..., heads: _Optional[int] = ..., tokens: _Optional[int] = ..., width: _Optional[int] = ..., dtype: _Optional[str] = ...) -> None: ...

class BlockSource(_message.Message):
    __slots__ = ("store_id", "first", "count")
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    first: int
    count: int
    def __init__(self, store_id: _Optional[str] = ..., first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("open", "credit_bytes")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    open: FetchOpen
    credit_bytes: int
    def __init__(self, open: _Optional[_Union[FetchOpen, _Mapping]] = ..., credit_bytes: _Optional[int] = ...) -> None: ...

class FetchOpen(_message.Message):
    __slots__ = ("keys", "layout", "exact", "link_bytes_per_s", "codec", "offset", "record_checksum", "form")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    LINK_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    exact: bool
    link_bytes_per_s: float
    codec: str
    offset: int
    record_checksum: int
    form: str
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., exact: _Optional[bool] = ..., link_bytes_per_s: _Optional[float] = ..., codec: _Optional[str] = ..., offset: _Optional[int] = ..., record_checksum: _Optional[int] = ..., form: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("index", "offset", "data", "checksum", "head", "end")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    index: int
    offset: int
    data: bytes
    checksum: int
    head: FetchHead
    end: bool
    def __init__(self, index: _Optional[int] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ..., checksum: _Optional[int] = ..., head: _Optional[_Union[FetchHead, _Mapping]] = ..., end: _Optional[bool] = ...) -> None: ...

class FetchHead(_message.Message):
    __slots__ = ("parent", "form", "record_bytes", "record_checksum", "payload_bytes", "payload_checksum", "shape", "meta")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    form: str
    record_bytes: int
    record_checksum: int
    payload_bytes: int
    payload_checksum: int
    shape: PayloadShape
    meta: BlockMeta
    def __init__(self, parent: _Optional[bytes] = ..., form: _Optional[str] = ..., record_bytes: _Optional[int] = ..., record_checksum: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., payload_checksum: _Optional[int] = ..., shape: _Optional[_Union[PayloadShape, _Mapping]] = ..., meta: _Optional[_Union[BlockMeta, _Mapping]] = ...) -> None: ...

class BlockMeta(_message.Message):
    __slots__ = ("namespace", "ttl_us", "priority", "pinned", "recompute_us", "age_us", "tiers", "lossy")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_US_FIELD_NUMBER: _ClassVar[int]
    AGE_US_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    namespace: bytes
    ttl_us: int
    priority: int
    pinned: bool
    recompute_us: int
    age_us: int
    tiers: int
    lossy: bool
    def __init__(self, namespace: _Optional[bytes] = ..., ttl_us: _Optional[int] = ..., priority: _Optional[int] = ..., pinned: _Optional[bool] = ..., recompute_us: _Optional[int] = ..., age_us: _Optional[int] = ..., tiers: _Optional[int] = ..., lossy: _Optional[bool] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("stored", "known", "refused")
    STORED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    stored: int
    known: int
    refused: int
    def __init__(self, stored: _Optional[int] = ..., known: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class ContainsRequest(_message.Message):
    __slots__ = ("keys", "layout")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    layout: bytes
    def __init__(self, keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ...) -> None: ...

class ContainsResponse(_message.Message):
    __slots__ = ("tiers",)
    TIERS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tiers: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("keys", "namespace")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    namespace: bytes
    def __init__(self, keys: _Optional[bytes] = ..., namespace: _Optional[bytes] = ...) -> None: ...

class SetPinnedRequest(_message.Message):
    __slots__ = ("keys", "pinned")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    keys: bytes
    pinned: bool
    def __init__(self, keys: _Optional[bytes] = ..., pinned: _Optional[bool] = ...) -> None: ...

class SetPinnedResponse(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: int
    def __init__(self, held: _Optional[int] = ...) -> None: ...

class WatchBlocksRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchBlocksResponse(_message.Message):
    __slots__ = ("restart", "changes", "whole")
    RESTART_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    restart: bool
    changes: _containers.RepeatedCompositeFieldContainer[BlockChange]
    whole: bool
    def __init__(self, restart: _Optional[bool] = ..., changes: _Optional[_Iterable[_Union[BlockChange, _Mapping]]] = ..., whole: _Optional[bool] = ...) -> None: ...

class BlockChange(_message.Message):
    __slots__ = ("key", "parent", "tier", "removed", "host")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    parent: bytes
    tier: str
    removed: bool
    host: str
    def __init__(self, key: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., tier: _Optional[str] = ..., removed: _Optional[bool] = ..., host: _Optional[str] = ...) -> None: ...

class AttachArenaRequest(_message.Message):
    __slots__ = ("block_bytes", "lock_name")
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOCK_NAME_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    lock_name: str
    def __init__(self, block_bytes: _Optional[int] = ..., lock_name: _Optional[str] = ...) -> None: ...

class AttachArenaResponse(_message.Message):
    __slots__ = ("path", "client", "slot_bytes", "slots", "data_offset", "folder")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DATA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    path: str
    client: int
    slot_bytes: int
    slots: int
    data_offset: int
    folder: str
    def __init__(self, path: _Optional[str] = ..., client: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., slots: _Optional[int] = ..., data_offset: _Optional[int] = ..., folder: _Optional[str] = ...) -> None: ...

class SlotRef(_message.Message):
    __slots__ = ("slot", "generation", "length", "checksum")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    slot: int
    generation: int
    length: int
    checksum: int
    def __init__(self, slot: _Optional[int] = ..., generation: _Optional[int] = ..., length: _Optional[int] = ..., checksum: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("arena_client", "keys", "layout", "meta", "length")
    ARENA_CLIENT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    arena_client: int
    keys: bytes
    layout: bytes
    meta: BlockMeta
    length: int
    def __init__(self, arena_client: _Optional[int] = ..., keys: _Optional[bytes] = ..., layout: _Optional[bytes] = ..., meta: _Optional[_Union[BlockMeta, _Mapping]] = ..., length: _Optional[int] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("slots",)
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[SlotRef]
    def __init__(self, slots: _Optional[_Iterable[_Union[SlotRef, _Mapping]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("arena_client", "layout", "filled", "given_up", "shape", "exact")
    ARENA_CLIENT_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    EXACT_FIELD_NUMBER: _ClassVar[int]
    arena_client: int
    layout: bytes
    filled: _containers.RepeatedCompositeFieldContainer[FilledSlot]
    given_up: _containers.RepeatedScalarFieldContainer[int]
    shape: PayloadShape
    exact: bool
    def __init__(self, arena_client: _Optional[int] = ..., layout: _Optional[bytes] = ..., filled: _Optional[_Iterable[_Union[FilledSlot, _Mapping]]] = ..., given_up: _Optional[_Iterable[int]] = ..., shape: _Optional[_Union[PayloadShape, _Mapping]] = ..., exact: _Optional[bool] = ...) -> None: ...

class FilledSlot(_message.Message):
    __slots__ = ("slot", "key", "parent", "meta")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    slot: SlotRef
    key: bytes
    parent: bytes
    meta: BlockMeta
    def __init__(self, slot: _Optional[_Union[SlotRef, _Mapping]] = ..., key: _Optional[bytes] = ..., parent: _Optional[bytes] = ..., meta: _Optional[_Union[BlockMeta, _Mapping]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("stored", "known", "refused")
    STORED_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    stored: int
    known: int
    refused: int
    def __init__(self, stored: _Optional[int] = ..., known: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("deleted",)
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("store_id", "boot_id", "tiers", "counters")
    class CountersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    store_id: str
    boot_id: str
    tiers: _containers.RepeatedCompositeFieldContainer[TierStats]
    counters: _containers.ScalarMap[str, float]
    def __init__(self, store_id: _Optional[str] = ..., boot_id: _Optional[str] = ..., tiers: _Optional[_Iterable[_Union[TierStats, _Mapping]]] = ..., counters: _Optional[_Mapping[str, float]] = ...) -> None: ...

class TierStats(_message.Message):
    __slots__ = ("name", "capacity_bytes", "used_bytes", "keys", "hits", "misses", "corrupt")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_FIELD_NUMBER: _ClassVar[int]
    name: str
    capacity_bytes: int
    used_bytes: int
    keys: int
    hits: int
    misses: int
    corrupt: int
    def __init__(self, name: _Optional[str] = ..., capacity_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., keys: _Optional[int] = ..., hits: _Optional[int] = ..., misses: _Optional[int] = ..., corrupt: _Optional[int] = ...) -> None: ...

class StoreEvents(_message.Message):
    __slots__ = ("first_number", "events")
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    first_number: int
    events: _containers.RepeatedCompositeFieldContainer[StoreEvent]
    def __init__(self, first_number: _Optional[int] = ..., events: _Optional[_Iterable[_Union[StoreEvent, _Mapping]]] = ...) -> None: ...

class StoreEvent(_message.Message):
    __slots__ = ("key", "removed", "tier")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    removed: bool
    tier: str
    def __init__(self, key: _Optional[bytes] = ..., removed: _Optional[bool] = ..., tier: _Optional[str] = ...) -> None: ...
