"""What a trusted cluster answered: recorded once, compared ever after. References of known models come with the command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError

from octavo_cli.inputs import reading_fault

FOLDER = Path(__file__).parent / "references"


class BadReference(OctavoError, ValueError):
    """A reference file that cannot be used; the message names the key and the fix."""

    exit_code = 2
    default_reason = "bad-reference"


@dataclass(frozen=True, slots=True)
class Greedy:
    """A prompt and its greedy continuation. `margins` are logprob of the best token minus that of the second, per position."""

    text: str
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """What a whole-precision variant reached on the shipped text and questions."""

    perplexity: float
    tokens: int
    accuracy: float
    questions: int


@dataclass(frozen=True, slots=True)
class Reference:
    """Of one served model."""

    model: str
    parity: tuple[Greedy, ...] = ()
    quality: Quality | None = None
    recorded: Mapping[str, Any] = field(default_factory=dict)
    """Part -> how it was recorded."""


def shipped(model: str) -> Reference | None:
    """The reference that comes with the command for this model id; None when there is none."""
    path = FOLDER / f"{model.lower()}.json"
    return read_reference(path) if path.is_file() else None


def read_reference(path: Path) -> Reference:
    """Raises BadReference."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parity = tuple(
            Greedy(
                str(row["text"]),
                tuple(row["prompt_ids"]),
                tuple(row["ids"]),
                tuple(row["logprobs"]),
                tuple(row["margins"]),
            )
            for row in content.get("parity", ())
        )
        quality = Quality(**content["quality"]) if content.get("quality") else None
        found = Reference(str(content["model"]), parity, quality, dict(content.get("recorded", {})))
    except (OSError, UnicodeDecodeError) as error:
        raise BadReference(f"--reference: {path} cannot be read: {reading_fault(error)}", field="reference") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadReference(
            f"--reference: {path} is no reference ({error!r}); make one with `octavo check --record FILE`",
            field="reference",
        ) from error
    for number, item in enumerate(found.parity):
        if not item.prompt_ids or not len(item.ids) == len(item.logprobs) == len(item.margins) > 0:
            raise BadReference(f"--reference: {path}: parity[{number}]: its lists are not equally long", field="parity")
    return found


def write_reference(path: Path, reference: Reference) -> None:
    """Replaces the file."""
    path.write_text(json.dumps(asdict(reference), indent=1) + "\n", encoding="utf-8")
