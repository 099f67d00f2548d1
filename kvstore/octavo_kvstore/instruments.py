"""The kvstore's metrics: what docs/metrics.md lists of it."""

from __future__ import annotations

from typing import Final

from octavo.rpc.instruments import Instrument

PREFIX: Final = "octavo_kvstore_"
_TIER: Final = ("tier",)

TIERS: Final = (
    Instrument(PREFIX + "tier_capacity_bytes", "gauge", "Bytes a tier may hold.", _TIER),
    Instrument(PREFIX + "tier_used_bytes", "gauge", "Bytes a tier holds.", _TIER),
    Instrument(PREFIX + "tier_keys", "gauge", "Blocks a tier holds.", _TIER),
    Instrument(PREFIX + "tier_hits", "counter", "Blocks found and intact.", _TIER),
    Instrument(PREFIX + "tier_misses", "counter", "Blocks not found, or not intact.", _TIER),
    Instrument(PREFIX + "tier_corrupt", "counter", "Records that failed their check and were forgotten.", _TIER),
    Instrument(PREFIX + "tier_evicted", "counter", "Blocks evicted because the tier was full.", _TIER),
    Instrument(PREFIX + "tier_expired", "counter", "Blocks deleted because their time was over.", _TIER),
    Instrument(PREFIX + "tier_refused", "counter", "Blocks for which no room could be made.", _TIER),
)
"""One figure per tier, named as the fields of TierStats."""

STORE: Final = (
    Instrument(PREFIX + "held_keys", "gauge", "Blocks held in any tier."),
    Instrument(PREFIX + "leases", "gauge", "Transfers that pin blocks."),
    Instrument(PREFIX + "pinned_keys", "gauge", "Keys pinned until somebody lets them go."),
    Instrument(PREFIX + "arena_slots", "gauge", "Slots of the shared-memory arena; 0: none is open."),
    Instrument(PREFIX + "arena_reserved", "gauge", "Slots that workers are filling."),
    Instrument(PREFIX + "arena_lent", "gauge", "Slots that workers may be copying from."),
    Instrument(PREFIX + "write_behind_bytes", "gauge", "Payload bytes waiting for the NVMe tier."),
    Instrument(PREFIX + "events", "counter", "Changes of what is held, as told to the scheduler."),
    Instrument(PREFIX + "corrupt_puts", "counter", "Blocks refused because their payload lacked its checksum."),
    Instrument(PREFIX + "write_behind_written", "counter", "Blocks written to the NVMe tier behind a put."),
    Instrument(
        PREFIX + "write_behind_dropped", "counter", "Blocks not written for lack of room in the queue, or at the end."
    ),
    Instrument(PREFIX + "write_behind_refused", "counter", "Blocks that the NVMe tier did not take."),
    Instrument(PREFIX + "promotions", "counter", "Blocks lifted into DRAM by a read from below."),
    Instrument(PREFIX + "prefetched", "counter", "Blocks lifted into DRAM for a request that still waited."),
    Instrument(PREFIX + "prefetch_used", "counter", "Of these, the ones that a load then asked for."),
    Instrument(
        PREFIX + "prefetch_wasted", "counter", "Of these, the ones that left DRAM before anybody asked for them."
    ),
    Instrument(PREFIX + "erasures_due", "gauge", "Keys of forgotten tenants that could not be destroyed yet."),
    Instrument(PREFIX + "demotions", "counter", "Blocks that left DRAM and are still held below."),
)
"""Figures of the store as a whole, named as in `Store.counters`."""

READS: Final = (
    Instrument(
        PREFIX + "read_lane_bytes_per_s", "gauge", "Speed of runs read from below by one thread in order, lately."
    ),
    Instrument(PREFIX + "read_spread_bytes_per_s", "gauge", "Speed of runs read by several threads at once, lately."),
)
"""Of a store with an arena, named as in `ReadWays.figures`."""

CODING: Final = (
    Instrument(PREFIX + "codec_blocks", "counter", "Blocks that were compressed."),
    Instrument(PREFIX + "codec_raw_bytes", "counter", "Bytes of those blocks before."),
    Instrument(PREFIX + "codec_coded_bytes", "counter", "Bytes of those blocks after."),
    Instrument(PREFIX + "codec_refused_forms", "gauge", "Forms that lose more than cache.codec_max_error here."),
    Instrument(PREFIX + "codec_encode_ms", "counter", "Milliseconds of compression, measurements of forms included."),
    Instrument(PREFIX + "codec_decode_ms", "counter", "Milliseconds of decompression."),
    Instrument(PREFIX + "codec_saved_ms", "counter", "Milliseconds that the bytes left out would have travelled."),
    Instrument(PREFIX + "codec_net_ms", "gauge", "What compression saved less what it cost, in milliseconds."),
    Instrument(PREFIX + "decrypt_failed", "counter", "Encrypted records that no key of this store opens: misses."),
)
"""Of the codec and the encryption, named as in `Coding.counters`."""

REMOTE: Final = (
    Instrument(PREFIX + "peers", "gauge", "Kvstores of other hosts that are known."),
    Instrument(PREFIX + "peers_answering", "gauge", "Those that are not left alone after a failure."),
    Instrument(PREFIX + "remote_blocks", "counter", "Blocks fetched from other hosts."),
    Instrument(PREFIX + "remote_bytes", "counter", "Their bytes as they travelled."),
    Instrument(PREFIX + "remote_misses", "counter", "Fetches that ended before the last block that was hinted at."),
    Instrument(PREFIX + "remote_resumed", "counter", "Fetches taken up again where a stream broke."),
    Instrument(PREFIX + "remote_corrupt", "counter", "Pieces or blocks from other hosts that lacked their checksum."),
    Instrument(PREFIX + "remote_failed", "counter", "Streams from other hosts that broke, were silent or wrong."),
    Instrument(PREFIX + "peer_blocks_sent", "counter", "Blocks sent to other hosts."),
    Instrument(PREFIX + "peer_bytes_sent", "counter", "Their bytes as they travelled."),
    Instrument(PREFIX + "peer_refused", "counter", "Fetches of other hosts refused because too many were under way."),
)
"""Of the remote tier, both ways, named as in `RemoteTier.figures` and `PeerServicer.figures`."""

TABLE: Final = TIERS + STORE + READS + CODING + REMOTE
