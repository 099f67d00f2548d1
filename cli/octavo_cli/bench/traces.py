"""Readers of the public trace formats: lines in, sessions out; a line that is wrong is named with its field.

mooncake: JSONL {timestamp ms, input_length, output_length, hash_ids} (Mooncake, FAST 25); a hash id stands for 512
tokens, the same id for the same tokens. azure: CSV TIMESTAMP,ContextTokens,GeneratedTokens (Azure LLM inference 2023 and
2024). burstgpt: CSV Timestamp (s),Model,Request tokens,Response tokens,... sharegpt: JSON conversations as text.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from octavo_cli.bench.work import BadPlan, Piece, Session, Turn, Workload
from octavo_cli.inputs import reading_fault

MOONCAKE_BLOCK_TOKENS = 512


class BadTrace(BadPlan):
    """A trace that does not have its format; the message names file, line, field and what belongs there."""

    default_reason = "bad-trace"


def read_trace(path: Path, kind: str = "", limit: int = 0, default_output: int = 128) -> Workload:
    """The workload of a trace file; its first `limit` sessions (0: all). Raises BadTrace.

    kind: mooncake, azure, burstgpt or sharegpt; empty: told from the name's ending and the first line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(
            f"--trace: {path} cannot be read: {reading_fault(error)}; give a UTF-8 file", field="trace"
        ) from error
    kind = kind or guess_kind(path.name, text)
    if kind not in READERS:
        raise BadTrace(f"--trace-format: {kind!r} is unknown; use {', '.join(READERS)}", field="trace-format")
    sessions: list[Session] = []
    for session in READERS[kind](str(path), text, default_output):
        sessions.append(session)
        if limit and len(sessions) == limit:
            break
    if not sessions:
        raise BadTrace(f"{path}: holds no request", field="trace")
    return Workload(f"trace-{kind}", tuple(sessions), {"file": path.name, "format": kind})


def guess_kind(name: str, text: str) -> str:
    """The format that a file's first line looks like. Raises BadTrace."""
    first = text.lstrip().splitlines()[0] if text.strip() else ""
    if first.startswith("[") or (name.endswith(".json") and not first.startswith('{"timestamp"')):
        return "sharegpt"
    if first.startswith("{"):
        return "mooncake"
    if "ContextTokens" in first:
        return "azure"
    if "Request tokens" in first:
        return "burstgpt"
    raise BadTrace(f"{name}:1: the format is not recognised; name it with --trace-format", field="trace-format")


def mooncake(where: str, text: str, default_output: int = 128) -> Iterable[Session]:
    """One session per line; hash ids become shared blocks, the last block is cut to input_length."""
    for number, line in _lines(text):
        at = f"{where}:{number}"
        row = _json(at, line)
        if not isinstance(row, dict):
            raise BadTrace(f"{at}: must be an object with timestamp, input_length, output_length", field="trace")
        length, output = _count(at, row, "input_length"), _count(at, row, "output_length")
        ids = row.get("hash_ids", [])
        if not isinstance(ids, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise BadTrace(f"{at}: hash_ids: must be a list of whole numbers", field="hash_ids")
        needed = -(-length // MOONCAKE_BLOCK_TOKENS)
        if ids and len(ids) != needed:
            raise BadTrace(
                f"{at}: hash_ids: {len(ids)} of them for input_length {length}; {needed} blocks of"
                f" {MOONCAKE_BLOCK_TOKENS} belong there",
                field="hash_ids",
            )
        pieces = tuple(
            Piece(f"hash{item}", min(MOONCAKE_BLOCK_TOKENS, length - k * MOONCAKE_BLOCK_TOKENS))
            for k, item in enumerate(ids)
        )
        turn = Turn(output, pieces or (Piece(f"line{number}", length),))
        yield Session(f"m{number}", (turn,), _number(at, row, "timestamp") / 1000.0)


def azure(where: str, text: str, default_output: int = 128) -> Iterable[Session]:
    """One session per row; prompts share nothing, for the trace says only lengths."""
    for number, row in _rows(where, text, ("TIMESTAMP", "ContextTokens", "GeneratedTokens")):
        at = f"{where}:{number}"
        turn = Turn(_count(at, row, "GeneratedTokens"), (Piece(f"line{number}", _count(at, row, "ContextTokens")),))
        yield Session(f"z{number}", (turn,), _timestamp(at, row["TIMESTAMP"]))


def burstgpt(where: str, text: str, default_output: int = 128) -> Iterable[Session]:
    """One session per row; rows whose answer failed (0 response tokens) ask for one token."""
    for number, row in _rows(where, text, ("Timestamp", "Request tokens", "Response tokens")):
        at = f"{where}:{number}"
        output = max(1, _count(at, row, "Response tokens", least=0))
        turn = Turn(output, (Piece(f"line{number}", _count(at, row, "Request tokens")),))
        yield Session(f"b{number}", (turn,), _number(at, row, "Timestamp"))


def sharegpt(where: str, text: str, default_output: int = 128) -> Iterable[Session]:
    """One session per conversation; what the person said is sent, the answer's length is estimated from the recorded one."""
    content = _json(where, text)
    if not isinstance(content, list):
        raise BadTrace(f"{where}: must be a list of conversations", field="trace")
    for number, item in enumerate(content):
        at = f"{where}: [{number}]"
        said = item.get("conversations") if isinstance(item, dict) else None
        if not isinstance(said, list):
            raise BadTrace(f"{at}.conversations: must be a list of {{from, value}}", field="conversations")
        turns = _sharegpt_turns(at, said, default_output)
        if turns:
            yield Session(f"g{number}", tuple(turns))  # not the conversation's own id: those come more than once


def _sharegpt_turns(at: str, said: list[Any], default_output: int) -> list[Turn]:
    turns: list[Turn] = []
    for k, message in enumerate(said):
        if not isinstance(message, dict) or not isinstance(message.get("value"), str):
            raise BadTrace(f"{at}.conversations[{k}].value: must be text", field="value")
        if any("\ud800" <= char <= "\udfff" for char in message["value"]):
            raise BadTrace(
                f"{at}.conversations[{k}].value: holds half a surrogate pair, which is no text", field="value"
            )
        if message.get("from") in ("human", "user"):
            if message["value"].strip():
                turns.append(Turn(default_output, text=message["value"]))
        elif message.get("from") in ("gpt", "assistant", "chatgpt", "bing", "bard"):
            # about four characters a token; the asked length only has to be of the right size
            if turns and message["value"]:
                turns[-1] = Turn(max(1, len(message["value"]) // 4), text=turns[-1].text)
        elif message.get("from") != "system":
            raise BadTrace(f"{at}.conversations[{k}].from: {message.get('from')!r} is no speaker", field="from")
    return turns


READERS: dict[str, Callable[[str, str, int], Iterable[Session]]] = {
    "mooncake": mooncake,
    "azure": azure,
    "burstgpt": burstgpt,
    "sharegpt": sharegpt,
}


def _json(at: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadTrace(f"{at}: is not JSON: {error}", field="trace") from error


def _lines(text: str) -> Iterable[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip())


def _rows(where: str, text: str, needed: tuple[str, ...]) -> Iterable[tuple[int, Mapping[str, str]]]:
    reader = csv.DictReader(text.splitlines())
    for name in needed:
        if name not in (reader.fieldnames or ()):
            raise BadTrace(f"{where}:1: column {name} is missing", field=name)
    for row in _whole_rows(where, reader):
        if any(row[name] is None for name in needed):
            raise BadTrace(f"{where}:{reader.line_num}: is cut short", field=needed[-1])
        yield reader.line_num, row


def _whole_rows(where: str, reader: csv.DictReader[str]) -> Iterable[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise BadTrace(f"{where}:{reader.line_num + 1}: is no row: {error}", field="trace") from error


def _number(at: str, row: Mapping[str, Any], field: str) -> float:
    value = row.get(field)
    try:
        if value is None or isinstance(value, bool):
            raise ValueError
        number = float(value)
        if not 0 <= number < 1e15:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise BadTrace(f"{at}: {field}: {_short(value)} must be a number of 0 or more", field=field) from None
    return number


def _short(value: Any) -> str:
    """For a message: a number of 400 digits says no more than its first."""
    told = repr(value)
    return told if len(told) <= 80 else f"{told[:77]}..."


def _count(at: str, row: Mapping[str, Any], field: str, least: int = 1) -> int:
    number = _number(at, row, field)
    if number != int(number) or number < least:
        raise BadTrace(f"{at}: {field}: {row[field]!r} must be a whole number of {least} or more", field=field)
    return int(number)


def _timestamp(at: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        pass  # a date then
    else:
        return _number(at, {"TIMESTAMP": seconds}, "TIMESTAMP")
    try:
        whole, dot, fraction = text.strip().partition(".")
        moment = datetime.fromisoformat(f"{whole}{dot}{fraction[:6]}" if dot else whole)  # Azure writes 7 digits
    except ValueError:
        raise BadTrace(
            f"{at}: TIMESTAMP: {text!r} must be 2023-11-16 18:17:03.97 or seconds", field="TIMESTAMP"
        ) from None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
