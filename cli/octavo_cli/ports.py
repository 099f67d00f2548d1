"""Addresses of a local cluster: which are given, which are taken, which are free."""

from __future__ import annotations

import fcntl
import socket
import tempfile
from pathlib import Path
from typing import IO

from octavo.manifest import ManifestError


class PortLeases:
    """Ports promised to one cluster. A lock file per port keeps two clusters that start at once from choosing the same."""

    def __init__(self, lock_dir: Path | None = None) -> None:
        self._lock_dir = lock_dir or Path(tempfile.gettempdir())
        self._locks: list[IO[bytes]] = []
        self.moved: dict[str, tuple[str, str]] = {}
        """Setting -> the preferred address that was taken, and the free one in its place."""

    def prefer(self, key: str, address: str) -> str:
        """`address` when nobody listens there, else a free port of the same host. `key` names the setting in errors."""
        host, port = split_address(key, address)
        if port and self._lease(host, port):
            return join_address(host, port)
        found = self.free(key, host)
        if port:
            self.moved[key] = (address, found)
        return found

    def exactly(self, key: str, address: str) -> str:
        """`address` itself, port 0 replaced by a free one. Raises ManifestError when somebody listens there."""
        if address.startswith("unix:"):
            return address
        host, port = split_address(key, address)
        if port == 0:
            return self.free(key, host)
        if not self._lease(host, port):
            raise ManifestError(f"{key}: {address} is taken; stop who listens there or choose another port", field=key)
        return join_address(host, port)

    def free(self, key: str, host: str) -> str:
        """A free port of `host`."""
        for _ in range(64):
            with _bound(host, 0) as probe:
                if probe is None:
                    break
                port = int(probe.getsockname()[1])
            if self._lease(host, port):
                return join_address(host, port)
        raise ManifestError(f"{key}: no free port on {host!r}; give a host of this machine", field=key)

    def close(self) -> None:
        """Gives every lease back."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def _lease(self, host: str, port: int) -> bool:
        lock = self._lock(port)
        if lock is None:
            return False
        with _bound(host, port) as probe:
            if probe is None:
                lock.close()
                return False
        self._locks.append(lock)
        return True

    def _lock(self, port: int) -> IO[bytes] | None:
        try:
            lock = (self._lock_dir / f"octavo-port-{port}.lock").open("ab")
        except OSError:  # another user's lock: the port may be in use by their cluster
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock


class _bound:
    """A socket bound to host:port for the length of a `with`, or None when it cannot be bound."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host.strip("[]"), port)
        self._socket: socket.socket | None = None

    def __enter__(self) -> socket.socket | None:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        probe = socket.socket(family, socket.SOCK_STREAM)
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(self._address)
        except OSError:
            probe.close()
            return None
        self._socket = probe
        return probe

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._socket.close()


def split_address(key: str, address: str) -> tuple[str, int]:
    """(host, port) of `host:port`. Raises ManifestError naming the key."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ManifestError(f"{key}: {address!r} is no address; write host:port, such as 127.0.0.1:0", field=key)
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """`host:port`."""
    return f"{host}:{port}"


def reachable(address: str) -> str:
    """The address a client on this machine dials for a listening one: a wildcard host becomes the loopback."""
    host, _, port = address.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("0.0.0.0", "[::]", "::", "") else address
