"""Identity of a KV block: `key = blake3(parent key, token ids, extra)`, chained from a root (design section 4).

The worker's root key covers whatever changes KV bytes. A gateway derives one root per tenant and salt from it, so
two tenants never share a block and nobody can probe another's prefix by timing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from blake3 import blake3

from octavo.packing import pack_u32


def namespace_root(root_key: bytes, secret: bytes, tenant: str, salt: str = "", generation: int = 0) -> bytes:
    """The 32-byte parent of a tenant's first block: HMAC of the tenant under the server secret, plus the request's salt."""
    return root_of(root_key, namespace_mac(secret, tenant, generation), salt)


def namespace_mac(secret: bytes, tenant: str, generation: int = 0) -> bytes:
    """32 bytes that stand for a tenant; a rotation is the next generation, whose keys have nothing in common with the last."""
    rotated = b"\0" + generation.to_bytes(4, "little") if generation else b""
    return hmac.new(secret, tenant.encode() + rotated, hashlib.sha256).digest()


def root_of(root_key: bytes, mac: bytes, salt: str = "") -> bytes:
    """`namespace_root` for who has the mac and not the secret."""
    return blake3(b"octavo.namespace\0" + root_key + mac + salt.encode()).digest()


def namespace_tag(secret: bytes, tenant: str) -> bytes:
    """16 bytes by which stores tell tenants apart (quotas, ages, deletion) without knowing them; one value whatever the salt."""
    return hmac.new(secret, b"octavo.tag\0" + tenant.encode(), hashlib.sha256).digest()[:16]


def block_key(parent: bytes, tokens: Sequence[int], extra: bytes = b"") -> bytes:
    """The 32-byte key of one full block; `extra` is for what is not in the ids (images)."""
    return blake3(parent + pack_u32(tokens) + extra).digest()


def extend_keys(parent: bytes, tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """Keys of the full blocks of `tokens`, chained from `parent`; a partial last block has none."""
    packed = pack_u32(tokens)  # once: a long prompt has hundreds of blocks
    block_bytes = 4 * block_tokens
    keys: list[bytes] = []
    for start in range(0, len(packed) - block_bytes + 1, block_bytes):
        parent = blake3(parent + packed[start : start + block_bytes]).digest()
        keys.append(parent)
    return keys


def choice_seed(request_seed: int, index: int) -> int:
    """The u64 seed of one choice: hash(request seed, index); sampling is keyed by (this, position, purpose)."""
    digest = blake3(request_seed.to_bytes(8, "little") + index.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:8], "little")
