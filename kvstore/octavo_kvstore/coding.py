"""Coding: the codec and the encryption of one kvstore, and the tiers that they apply to."""

from __future__ import annotations

from pathlib import Path

from octavo.manifest import Cache

from octavo_kvstore.codecs.choice import Chooser
from octavo_kvstore.codecs.shapes import ShapeTable
from octavo_kvstore.encryption import FileKeyring, Keyring, Vault
from octavo_kvstore.tier import Tier
from octavo_kvstore.tiers.coded import CodedTier

KEYRING_FILE = "keyring.json"


class Coding:
    """One chooser and one table of layouts for all tiers; a vault for each, since their keyrings lie in different places."""

    def __init__(self, cache: Cache, secret: bytes) -> None:
        self.chooser = Chooser(cache.codec, max_error=cache.codec_max_error)
        self.shapes = ShapeTable()
        self._secret = secret
        self._encrypts = cache.encryption != "off"
        self._wraps = self._encrypts or cache.codec != "none"
        self._vaults: list[Vault] = []

    def wrap(self, tier: Tier, keyring: Keyring | Path) -> Tier:
        """The tier with its codec and encryption; itself when both are off. A path is the folder of a file keyring.

        Raises OctavoError when the keyring cannot be read.
        """
        if not self._wraps:
            return tier
        vault = None
        if self._encrypts:
            ring = keyring if isinstance(keyring, Keyring) else FileKeyring(keyring / KEYRING_FILE)
            vault = Vault(self._secret, ring)
            self._vaults.append(vault)
        return CodedTier(tier, self.chooser, self.shapes, vault)

    def counters(self) -> dict[str, float]:
        """Named as in instruments.py."""
        figures = self.chooser.figures()
        return {
            "codec_blocks": float(figures.blocks),
            "codec_raw_bytes": float(figures.raw_bytes),
            "codec_coded_bytes": float(figures.coded_bytes),
            "codec_encode_ms": 1000 * figures.encode_s,
            "codec_decode_ms": 1000 * figures.decode_s,
            "codec_saved_ms": 1000 * figures.saved_s,
            "codec_net_ms": 1000 * figures.net_s,
            "codec_refused_forms": float(len(self.chooser.refused())),
            "decrypt_failed": float(sum(vault.refused for vault in self._vaults)),
        }
