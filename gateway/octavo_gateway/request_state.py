"""An admitted request as bytes: the scheduler keeps them, so that another gateway can take the request over.

Prompt ids travel beside them; block keys are derived anew, because they depend on who serves now.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, Final

from octavo.errors import InternalError

from octavo_gateway.admission import AdmittedRequest, Sampling, TextRules
from octavo_gateway.beams import Beams
from octavo_gateway.requests import PromptChunk

VERSION: Final = 1
_LEFT_OUT: Final = frozenset(
    {"prompt_ids", "prompt_keys", "root_key", "namespace_root", "namespace_tag", "deadline_s", "body_hash"}
)
_KEPT: Final = tuple(item.name for item in fields(AdmittedRequest) if item.name not in _LEFT_OUT)
_SAMPLING: Final = tuple(item.name for item in fields(Sampling))
_TEXT: Final = tuple(item.name for item in fields(TextRules))
"""Field by field: asdict copies deeply, at 20 us a request."""
_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def dump_state(admitted: AdmittedRequest) -> bytes:
    """JSON of everything but the prompt, its keys and the deadline; a few hundred bytes."""
    state = {name: getattr(admitted, name) for name in _KEPT}
    state["sampling"] = {name: getattr(admitted.sampling, name) for name in _SAMPLING}
    text = state["text"] = {name: getattr(admitted.text, name) for name in _TEXT}
    text["stop_ids"], text["tools"] = sorted(admitted.text.stop_ids), sorted(admitted.text.tools)
    state["beams"] = asdict(admitted.beams) if admitted.beams is not None else None
    state["chunks"] = [asdict(chunk) for chunk in admitted.chunks]
    state["body_hash"] = admitted.body_hash.hex()
    state["version"] = VERSION
    return _JSON.encode(state).encode()


def load_state(state: bytes, prompt_ids: list[int]) -> AdmittedRequest:
    """The request again, without block keys. InternalError when another version wrote it."""
    try:
        content: dict[str, Any] = json.loads(state)
        if content.pop("version", None) != VERSION:
            raise ValueError("another version")
        sampling = content.pop("sampling")
        text = content.pop("text")
        beams = content.pop("beams", None)
        return AdmittedRequest(
            prompt_ids=prompt_ids,
            prompt_keys=b"",
            root_key=b"",
            namespace_root=b"",
            deadline_s=None,
            body_hash=bytes.fromhex(content.pop("body_hash")),
            seeds=tuple(content.pop("seeds")),
            chunks=tuple(PromptChunk(**chunk) for chunk in content.pop("chunks", ())),
            cache_tiers=tuple(content.pop("cache_tiers", ())),
            sampling=Sampling(
                **{
                    **sampling,
                    "stop_ids": tuple(sampling["stop_ids"]),
                    "logit_bias": {int(k): v for k, v in sampling["logit_bias"].items()},
                }
            ),
            text=TextRules(
                **{
                    **text,
                    "stops": tuple(text["stops"]),
                    "stop_ids": frozenset(text["stop_ids"]),
                    "tools": frozenset(text.get("tools", ())),
                    "schemas": tuple((name, schema) for name, schema in text.get("schemas", ())),
                }
            ),
            beams=Beams(**beams) if beams is not None else None,
            **content,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InternalError(f"the stored state of this request cannot be read ({error}); start it again") from error
