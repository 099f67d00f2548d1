"""Leases count, overlap, shrink and end."""

from __future__ import annotations

from pathlib import Path

from octavo_kvstore import pins
from octavo_kvstore.pins import DEFAULT_LIMIT_S, MAX_LIMIT_S, PinTable
from octavo_kvstore.testing import key_of

A, B, C = key_of(1), key_of(2), key_of(3)


def test_two_leases_on_one_key() -> None:
    table = PinTable()
    first, second = table.acquire([A, B], 0.0, 1.0), table.acquire([B, C], 0.0, 1.0)
    table.release(first)
    assert [table.is_pinned(key) for key in (A, B, C)] == [False, True, True]
    table.release(second)
    table.release(second)
    assert not table.is_pinned(B) and len(table) == 0


def test_a_lease_ends_with_its_time() -> None:
    table = PinTable()
    table.acquire([A], 0.0, 2.0)
    table.acquire([B], 0.0, 0.0)
    table.acquire([C], 0.0, 1e9)
    table.expire(1.9)
    assert table.is_pinned(A)
    table.expire(2.0)
    assert not table.is_pinned(A)
    table.expire(DEFAULT_LIMIT_S)
    assert not table.is_pinned(B)
    table.expire(MAX_LIMIT_S)
    assert not table.is_pinned(C)


def test_shrink_keeps_the_leading_keys() -> None:
    table = PinTable()
    lease = table.acquire([A, B, C], 0.0, 1.0)
    table.shrink(lease, 1)
    assert [table.is_pinned(key) for key in (A, B, C)] == [True, False, False]
    table.release(lease)
    table.shrink(lease, 0)
    assert not table.is_pinned(A)


def test_leases_are_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(pins, "MAX_LEASES", 2)
    table = PinTable()
    assert table.acquire([A], 0.0, 1.0) and table.acquire([A], 0.0, 1.0)
    assert table.acquire([A], 0.5, 1.0) == 0
    assert table.acquire([A], 1.0, 1.0) > 0, "the old ones are over by then"


def test_lasting_pins_survive_a_restart_and_leases_do_not(tmp_path: Path) -> None:
    file = tmp_path / "pins.bin"
    pins = PinTable(file)
    pins.set_lasting([key_of(1), key_of(2)], pinned=True)
    pins.acquire([key_of(3)], 0.0, 60.0)
    pins.set_lasting([key_of(2)], pinned=False)
    again = PinTable(file)
    assert [again.is_pinned(key_of(number)) for number in (1, 2, 3)] == [True, False, False]
    assert again.lasting == 1
    file.write_bytes(b"short")
    assert PinTable(file).lasting == 0


def test_the_lease_of_an_owner_has_no_time() -> None:
    pins = PinTable()
    owned, other = pins.acquire([key_of(1)], 0.0, 1.0, owner=7), pins.acquire([key_of(2)], 0.0, 1.0)
    pins.expire(1e9)
    assert pins.is_pinned(key_of(1)) and not pins.is_pinned(key_of(2))
    assert pins.release_owner(7) == [owned] and not pins.is_pinned(key_of(1)) and other != owned
