"""Encryption at rest: AES-256-GCM with a key per tenant namespace (NIST SP 800-38D; HKDF-SHA256, RFC 5869).

key = HKDF(secret of the deployment, salt = 32 random bytes of the namespace, info = purpose and namespace). The salts
lie in a keyring; forgetting one makes every record of that namespace unreadable, for whoever has the secret too.
Nonces are 96 random bits per record: below 2^32 records a key two equal ones are as good as impossible (SP 800-38D,
section 8.3), and a namespace gets a new key with every rotation.
"""

from __future__ import annotations

import abc
import json
import os
import threading
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from octavo.errors import OctavoError

from octavo_kvstore.codecs.envelope import NONCE_BYTES

SALT_BYTES = 32
KEY_BYTES = 32
TAG_BYTES = 16
_INFO = b"octavo.kvstore.at-rest.v1\0"


class Keyring(abc.ABC):
    """Where the salts of namespaces are kept. Thread-safe."""

    @abc.abstractmethod
    def salt(self, namespace: bytes, *, make: bool) -> bytes | None:
        """The namespace's 32-byte salt; made durable first when there is none and `make`; None: none, or out of reach."""

    @abc.abstractmethod
    def forget(self, namespace: bytes) -> bool:
        """Destroys the salt before it returns; True when there was one. Raises OSError or OctavoError when it cannot."""

    @staticmethod
    def fresh_salt() -> bytes:
        """SALT_BYTES random bytes."""
        return os.urandom(SALT_BYTES)


class FileKeyring(Keyring):
    """Salts in one JSON file, readable by the owner alone, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        """Reads the file. Raises OctavoError when it is there and cannot be read: going on would lose every block."""
        self._path = path
        self._lock = threading.Lock()
        self._salts: dict[str, str] = {}
        try:
            self._salts = _checked(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise OctavoError(
                f"keyring {path}: {error}; restore it, or remove it to start with an empty tier",
                field="cache.encryption",
            ) from error

    def salt(self, namespace: bytes, *, make: bool) -> bytes | None:
        name = namespace.hex()
        with self._lock:
            held = self._salts.get(name)
            if held is None and make:
                held = self.fresh_salt().hex()
                self._write({**self._salts, name: held})
            return None if held is None else bytes.fromhex(held)

    def forget(self, namespace: bytes) -> bool:
        name = namespace.hex()
        with self._lock:
            if name not in self._salts:
                return False
            self._write({other: salt for other, salt in self._salts.items() if other != name})
            return True

    def _write(self, salts: dict[str, str]) -> None:
        """Replaces file and memory; raises OSError when the disk refuses."""
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(salts, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._salts = salts


class Vault:
    """Seals and opens what lies in one tier. Thread-safe. `refused` counts records that no key of ours opens."""

    def __init__(self, secret: bytes, keyring: Keyring) -> None:
        self._secret = secret
        self._keyring = keyring
        self._ciphers: dict[bytes, tuple[bytes, AESGCM]] = {}
        self.refused = 0

    def seal(self, namespace: bytes, nonce: bytes, associated: bytes, plain: bytes) -> bytes | None:
        """Ciphertext and tag, or None when the keyring cannot give a salt. `nonce` from `fresh_nonce`, never twice."""
        cipher = self._cipher(namespace, make=True)
        return None if cipher is None else cipher.encrypt(nonce, plain, associated)

    def open(self, namespace: bytes, nonce: bytes, associated: bytes, sealed: bytes) -> bytes | None:
        """The plain bytes, or None for another key, a forgotten salt or a changed record: a miss, counted."""
        cipher = self._cipher(namespace, make=False)
        try:
            if cipher is not None:
                return cipher.decrypt(nonce, sealed, associated)
        except InvalidTag:
            pass  # counted below, as a forgotten salt is
        self.refused += 1
        return None

    def erase(self, namespace: bytes) -> bool:
        """Destroys the namespace's key before it returns; True when there was one. What it sealed is noise from now on."""
        self._ciphers.pop(namespace, None)
        return self._keyring.forget(namespace)

    def _cipher(self, namespace: bytes, *, make: bool) -> AESGCM | None:
        salt = self._keyring.salt(namespace, make=make)
        if salt is None:
            return None
        held = self._ciphers.get(namespace)
        if held is None or held[0] != salt:
            held = self._ciphers[namespace] = (salt, AESGCM(derive_key(self._secret, salt, namespace)))
        return held[1]


def fresh_nonce() -> bytes:
    """96 random bits."""
    return os.urandom(NONCE_BYTES)


def derive_key(secret: bytes, salt: bytes, namespace: bytes) -> bytes:
    """The 32-byte key of a namespace."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=_INFO + namespace).derive(secret)


def _checked(salts: object) -> dict[str, str]:
    if not isinstance(salts, dict):
        raise TypeError("not an object of namespaces")
    for name, salt in salts.items():
        if len(bytes.fromhex(name)) > 64 or len(bytes.fromhex(salt)) != SALT_BYTES:
            raise ValueError("an entry is no salt")
    return salts
