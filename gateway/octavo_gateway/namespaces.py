"""Namespaces: what stands for a tenant in block keys and stores, derived from the server's secret once per tenant."""

from __future__ import annotations

from octavo.keys import namespace_mac, namespace_tag


class Namespaces:
    """Remembers an HMAC per tenant and generation of its namespace, and one per tenant; tenants are those of the settings.

    Every request needs both, and each is a chain of cold calls between two requests.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._macs: dict[str, tuple[int, bytes]] = {}
        self._tags: dict[str, bytes] = {}

    def mac(self, tenant: str, generation: int) -> bytes:
        """32 bytes; see octavo.keys.namespace_mac. A generation that was rotated away is forgotten."""
        known = self._macs.get(tenant)
        if known is None or known[0] != generation:
            known = self._macs[tenant] = generation, namespace_mac(self._secret, tenant, generation)
        return known[1]

    def tag(self, tenant: str) -> bytes:
        """16 bytes; see octavo.keys.namespace_tag."""
        tag = self._tags.get(tenant)
        if tag is None:
            tag = self._tags[tenant] = namespace_tag(self._secret, tenant)
        return tag
