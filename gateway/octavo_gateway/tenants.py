"""Who asks: API key -> tenant. First version; quotas and weights will hang on the tenant's name."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Final

from octavo.errors import Unauthenticated

DEFAULT_TENANT: Final = "default"


class TenantDirectory:
    """Without keys nobody is asked for one and everybody is tenant `default`."""

    def __init__(self, keys: Mapping[str, str], admins: Collection[str] = ()) -> None:
        self._admins = frozenset(admins)
        # Looked up by hash, so that the time of a look-up tells nothing about a key.
        self._by_hash = {_hash(key): tenant for key, tenant in keys.items()}

    def tenant_of(self, api_key: str) -> str:
        """The tenant of `api_key` (`Bearer ` in front is allowed). Unauthenticated when it is missing or unknown."""
        if not self._by_hash:
            return DEFAULT_TENANT
        scheme, _, rest = api_key.strip().partition(" ")
        key = rest.strip() if scheme.lower() == "bearer" else api_key.strip()
        if not key:
            raise Unauthenticated("an API key is needed; send `Authorization: Bearer <key>`", reason="missing_api_key")
        tenant = self._by_hash.get(_hash(key))
        if tenant is None:
            raise Unauthenticated("this API key is not known; check it", reason="invalid_api_key")
        return tenant

    def names(self) -> list[str]:
        """Every tenant that a key names; without keys the one that there is."""
        return sorted({*self._by_hash.values(), *self._admins}) if self._by_hash else [DEFAULT_TENANT]

    def sees_all(self, tenant: str) -> bool:
        """Whether this tenant is shown the others' requests; without keys there are no others."""
        return not self._by_hash or tenant in self._admins


def wire_id(tenant: str, request_id: str) -> str:
    """A request's name on the scheduler's stream: two tenants may choose the same id."""
    return request_id if tenant == DEFAULT_TENANT else f"{tenant}/{request_id}"


def own_id(tenant: str, wire: str) -> str:
    """The tenant's own name of a request; undoes `wire_id`."""
    return wire if tenant == DEFAULT_TENANT else wire.removeprefix(f"{tenant}/")


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
