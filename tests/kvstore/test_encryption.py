"""Encryption at rest: what is sealed is noise to everyone without the namespace's key, and for good once it is erased."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from octavo.errors import OctavoError
from octavo_kvstore.encryption import FileKeyring, Vault, derive_key, fresh_nonce

SECRET, A, B = b"secret of the deployment", b"a" * 16, b"b" * 16
PLAIN, ASSOCIATED = b"keys and values " * 64, b"head"


def vault(folder: Path, secret: bytes = SECRET) -> Vault:
    return Vault(secret, FileKeyring(folder / "keyring.json"))


def test_what_was_sealed_opens_again_also_after_a_restart(tmp_path: Path) -> None:
    nonce = fresh_nonce()
    sealed = vault(tmp_path).seal(A, nonce, ASSOCIATED, PLAIN)
    assert sealed is not None and PLAIN not in sealed and len(sealed) == len(PLAIN) + 16
    again = vault(tmp_path)
    assert again.open(A, nonce, ASSOCIATED, sealed) == PLAIN and again.refused == 0


def test_another_secret_tenant_head_or_record_is_a_counted_miss(tmp_path: Path) -> None:
    nonce, right = fresh_nonce(), vault(tmp_path)
    sealed = right.seal(A, nonce, ASSOCIATED, PLAIN) or b""
    right.seal(B, fresh_nonce(), ASSOCIATED, PLAIN)
    flipped = bytes([sealed[0] ^ 1]) + sealed[1:]
    wrong = vault(tmp_path, b"another secret")
    assert wrong.open(A, nonce, ASSOCIATED, sealed) is None and wrong.refused == 1
    assert right.open(B, nonce, ASSOCIATED, sealed) is None
    assert right.open(A, nonce, b"another head", sealed) is None
    assert right.open(A, fresh_nonce(), ASSOCIATED, sealed) is None
    assert right.open(A, nonce, ASSOCIATED, flipped) is None
    assert right.open(A, nonce, ASSOCIATED, sealed[:5]) is None
    assert right.open(b"never seen here", nonce, ASSOCIATED, sealed) is None
    assert right.refused == 6


def test_erasing_a_namespace_makes_its_records_noise_and_no_others(tmp_path: Path) -> None:
    nonce, one = fresh_nonce(), vault(tmp_path)
    of_a, of_b = one.seal(A, nonce, b"", PLAIN) or b"", one.seal(B, nonce, b"", PLAIN) or b""
    before = json.loads((tmp_path / "keyring.json").read_text())[A.hex()]
    assert one.erase(A) and not one.erase(A)
    assert before not in (tmp_path / "keyring.json").read_text()
    for holder in (one, vault(tmp_path)):
        assert holder.open(A, nonce, b"", of_a) is None
        assert holder.open(B, nonce, b"", of_b) == PLAIN
    fresh = one.seal(A, nonce, b"", PLAIN) or b""
    assert fresh != of_a, "the namespace lives on under another key"
    assert one.open(A, nonce, b"", fresh) == PLAIN and one.open(A, nonce, b"", of_a) is None


def test_keys_depend_on_secret_salt_and_namespace() -> None:
    keys = {derive_key(s, t, n) for s in (b"1", b"2") for t in (b"x" * 32, b"y" * 32) for n in (A, B)}
    assert len(keys) == 8 and {len(key) for key in keys} == {32}


def test_nonces_do_not_repeat() -> None:
    assert len({fresh_nonce() for _ in range(10_000)}) == 10_000


def test_the_keyring_is_the_owners_alone(tmp_path: Path) -> None:
    vault(tmp_path).seal(A, fresh_nonce(), b"", b"x")
    assert stat.S_IMODE((tmp_path / "keyring.json").stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["{", "[]", '{"zz": "00"}', '{"aa": "00"}', '{"aa": 1}'])
def test_a_keyring_that_cannot_be_read_stops_the_start(tmp_path: Path, content: str) -> None:
    """Going on with an empty one would silently make every block unreadable for ever."""
    (tmp_path / "keyring.json").write_text(content)
    with pytest.raises(OctavoError, match="keyring"):
        vault(tmp_path)
