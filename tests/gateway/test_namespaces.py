"""Namespaces say what octavo.keys says, before and after a rotation, for every tenant."""

from __future__ import annotations

from octavo.keys import namespace_mac, namespace_tag
from octavo_gateway.namespaces import Namespaces


def test_each_answer_is_the_derived_one_however_often_it_is_asked() -> None:
    known = Namespaces(b"secret")
    for _ in range(2):
        for tenant in ("a", "b"):
            for generation in (0, 1, 0, 2):
                assert known.mac(tenant, generation) == namespace_mac(b"secret", tenant, generation)
            assert known.tag(tenant) == namespace_tag(b"secret", tenant)


def test_another_secret_is_another_namespace() -> None:
    assert Namespaces(b"x").mac("a", 0) != Namespaces(b"y").mac("a", 0)
    assert Namespaces(b"x").tag("a") != Namespaces(b"y").tag("a")
