"""The one place where client channels are built: message limits and keepalive that fit the servers of `octavo.rpc.host`."""

from __future__ import annotations

import grpc.aio

MAX_MESSAGE_BYTES = 4 * 2**20

LEAN_OPTIONS: list[tuple[str, int]] = [
    ("grpc.enable_channelz", 0),  # figures of each message that nobody can ask for here
    ("grpc.per_message_compression", 0),  # of what is sent; what comes compressed is read all the same
]
"""What gRPC does to each message unless it is told not to: a twentieth of what a step costs a service (`bench/hostpath.py`)."""
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    *LEAN_OPTIONS,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # a restarted peer is found within a second, not after the default backoff of minutes
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # in fact how long one attempt may take: a busy peer answers late
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def open_channel(address: str, *, small_window: bool = False) -> grpc.aio.Channel:
    """A channel to `host:port` or `unix:path`; create it after the process (and its loop) started, never before a fork.

    small_window: HTTP/2 windows stay at 64 KB instead of growing to 4 MB, so that the server notices within seconds
    that nobody reads a stream of tokens.
    """
    window = [("grpc.http2.bdp_probe", 0)] if small_window else []
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS + window)
