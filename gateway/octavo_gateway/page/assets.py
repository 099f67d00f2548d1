"""The page's files, read once at start. Plain HTML, CSS and JavaScript: nothing is built and nothing comes from elsewhere."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
INDEX: Final = "index.html"
TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SECURITY_HEADERS: Final = {
    # no inline script or style, nothing of another origin, no frame around it: model text cannot become code
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file with the headers it is served with."""

    content: bytes
    headers: dict[str, str]


def load_assets() -> dict[str, Asset]:
    """Every file of the page by its name."""
    return {path.name: _asset(path) for path in sorted(FOLDER.iterdir()) if path.suffix in TYPES}


def _asset(path: Path) -> Asset:
    content = path.read_bytes()
    named = {
        "content-type": f"{TYPES[path.suffix]}; charset=utf-8",
        "etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
    }
    return Asset(content, SECURITY_HEADERS | named)
