"""API key to tenant."""

from __future__ import annotations

import pytest
from octavo.errors import Unauthenticated
from octavo_gateway.tenants import TenantDirectory


def test_without_keys_everyone_is_default() -> None:
    assert TenantDirectory({}).tenant_of("") == "default"
    assert TenantDirectory({}).tenant_of("Bearer anything") == "default"


def test_a_key_names_its_tenant_with_and_without_bearer() -> None:
    tenants = TenantDirectory({"sk-a": "acme", "sk-b": "beta"})
    assert tenants.tenant_of("sk-a") == "acme"
    assert tenants.tenant_of("Bearer sk-b") == "beta"


@pytest.mark.parametrize(
    ("key", "reason"), [("", "missing_api_key"), ("Bearer ", "missing_api_key"), ("sk-x", "invalid_api_key")]
)
def test_a_bad_key_is_refused(key: str, reason: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        TenantDirectory({"sk-a": "acme"}).tenant_of(key)
    assert caught.value.reason == reason


def test_the_scheme_may_be_in_any_case() -> None:
    assert TenantDirectory({"sk-a": "acme"}).tenant_of("bearer  sk-a ") == "acme"
