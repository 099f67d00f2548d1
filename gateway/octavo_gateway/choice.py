"""One choice's output: its ids, the text each of them completes, and where it ends.

Kept whole while the request lives: what a client has not taken yet is a position in here and never a queue, a scheduler
that restarts is given the ids again, and a client that comes back reads from any byte.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from octavo_gateway.admission import TextRules
from octavo_gateway.delta_runs import DeltaColumns
from octavo_gateway.detokenizer import Detokenizer
from octavo_gateway.growing_call import CallPart
from octavo_gateway.requests import BeamScore, Delta, FinishWord, TokenLogprob, ToolCall, ToolCallPart
from octavo_gateway.stops import StopMatcher
from octavo_gateway.tokenizer import Tokenizer
from octavo_gateway.tool_calls import Call, ToolText, call_id

MAX_DELTA_ENTRIES: Final = 4096
"""Token ids and weighted logprobs in one delta: a replay of a long answer must stay below gRPC's 4 MB message."""
_LOGPROB_ENTRIES: Final = 4
"""A logprob with its text and bytes weighs as much as this many plain tokens."""


@dataclass(frozen=True, slots=True)
class RawLogprob:
    """As the worker sent it: the chosen token and the best ones, ids beside natural logarithms."""

    token: int
    logprob: float
    top_tokens: Sequence[int] = ()
    top_logprobs: Sequence[float] = ()


class TokenGap(Exception):
    """Tokens of a choice arrived that do not follow what is there."""


class ChoiceOutput:
    """Grows by `accept` until `finish_reason` is set; ids and text that were given out never change.

    `ends[i]` is the UTF-8 length of the text after token i; `head` (the echoed prompt, or the opening of a
    call) comes before all of it. `call_parts`: what
    tool calls grew by, each with the number of tokens after which it was known, the end counted as one more.

    `plain`: nothing but a stop token can come of the next token beside its own text, which `texts` has by its id once it was
    seen. Such a token is only appended to `ids`; what else is kept of it is made up when somebody looks.
    """

    __slots__ = (
        "_detokenizer", "_ends", "_logprobs", "_matcher", "_pieces", "_rules", "_split", "_stop_ids", "beam",
        "call_parts", "finish_reason", "head", "ids", "index", "plain", "stop_hit", "tail", "texts", "tool_calls",
    )  # fmt: skip

    def __init__(self, index: int, rules: TextRules, tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> None:
        self.index = index
        self.ids: list[int] = []
        self._pieces: list[str] = []
        self._ends = array("Q")
        self._logprobs: list[RawLogprob | None] = []
        echoed = tokenizer.decode(prompt_ids, skip_special_tokens=rules.skip_special_tokens) if rules.echo else ""
        self.head = rules.opening or echoed
        self.tail = ""
        self.finish_reason: FinishWord | None = None
        self.stop_hit = ""
        self.beam: BeamScore | None = None
        self.tool_calls: list[Call] = []
        self.call_parts: list[tuple[int, CallPart]] = []
        self._split = ToolText(rules.tools, rules.schemas) if rules.tools else None
        if self._split is not None:
            self._split.feed(rules.opening)
        self._rules = rules
        self._stop_ids = rules.stop_ids
        self.texts = tokenizer.texts(skip_special_tokens=rules.skip_special_tokens)
        self.plain = False  # until the first token has shown that no character is open
        skipped = tokenizer.special_ids if rules.skip_special_tokens else frozenset()
        # With echo the prompt is shown whole, an unfinished character included.
        self._detokenizer = Detokenizer(tokenizer.token_bytes, skipped, () if rules.echo else prompt_ids)
        self._matcher = StopMatcher(rules.stops, include=rules.include_stop_str)

    def accept(self, start: int, ids: Sequence[int], logprobs: Sequence[RawLogprob] = ()) -> bool:
        """Appends ids[...] whose first has output position `start`; repeats are dropped. True: a stop string was hit.

        Raises TokenGap when ids are missing before `start`, IndexError on an id out of range.
        """
        if start > len(self.ids):
            raise TokenGap(f"choice {self.index}: tokens from {start} after {len(self.ids)}")
        self._make_up()
        for i in range(len(self.ids) - start, len(ids)):
            if self.finish_reason is not None:
                break
            self._take(ids[i], logprobs[i] if i < len(logprobs) else None)
        free = self.finish_reason is None and self._split is None and not self._rules.stops and not logprobs
        self.plain = free and self._detokenizer.clean
        return self._matcher.hit is not None

    def take_plain(self, start: int, token_id: int) -> bool:
        """`accept` of one token without a logprob that is nothing but its text; False: it was not taken, and needs that.

        Nearly every token comes this way. Each object that it touches is a miss of the CPU's cache.
        """
        ids, texts = self.ids, self.texts
        if not self.plain or start != len(ids) or token_id >= len(texts) or token_id in self._stop_ids:
            return False
        if texts[token_id] is None:
            whole = self._detokenizer.whole(token_id)
            if whole is None:
                return False
            texts[token_id] = whole
        ids.append(token_id)
        return True

    def take_plain_run(self, start: int, new: Sequence[int]) -> bool:
        """`take_plain` of several at once: all of them or none."""
        ids, texts = self.ids, self.texts
        if not self.plain or start != len(ids) or not self._stop_ids.isdisjoint(new) or max(new) >= len(texts):
            return False
        for token_id in new:
            if texts[token_id] is None:
                whole = self._detokenizer.whole(token_id)
                if whole is None:
                    return False
                texts[token_id] = whole
        ids.extend(new)
        return True

    def was_plain(self, at: int) -> bool:
        """Tokens from `at` on were taken as plain ones, and nobody has looked since: their texts are those in `texts`."""
        return at >= len(self._pieces)

    def _make_up(self) -> None:
        """What is kept of tokens that were taken as plain ones."""
        done = len(self._pieces)
        if done == len(self.ids):
            return
        new = [self.texts[token_id] or "" for token_id in self.ids[done:]]
        self._pieces += new
        self._logprobs += [None] * len(new)
        end = self._ends[-1] if self._ends else 0
        for text in new:
            end += utf8_len(text)
            self._ends.append(end)

    @property
    def pieces(self) -> list[str]:
        """The text that each token completed."""
        self._make_up()
        return self._pieces

    @property
    def ends(self) -> array[int]:
        """UTF-8 bytes of the text up to and with each token."""
        self._make_up()
        return self._ends

    @property
    def logprobs(self) -> list[RawLogprob | None]:
        """One per token."""
        self._make_up()
        return self._logprobs

    def _take(self, token_id: int, logprob: RawLogprob | None) -> None:
        rules = self._rules
        ends_here = token_id in rules.stop_ids and len(self.ids) >= rules.min_tokens
        armed = len(self.ids) + 1 >= rules.min_tokens
        text = ""
        if not ends_here or rules.include_stop_str:
            text = self._matcher.feed(self._detokenizer.feed(token_id), armed=armed)
        self.ids.append(token_id)
        self._pieces.append(text)
        self._logprobs.append(logprob)
        self._ends.append((self._ends[-1] if self._ends else 0) + utf8_len(text))
        if self._split is not None:
            self._split.feed(text)
            self._note_parts(self._split, len(self.ids))
        if self._matcher.hit is not None:
            self._end("stop", self._matcher.hit.stop)
        elif ends_here:
            self.finish("stop", str(token_id))

    def finish(self, reason: FinishWord, stop_hit: str = "") -> None:
        """The choice ends here; what was held back is text after all. No-op when it has ended."""
        if self.finish_reason is not None:
            return
        self.tail = self._matcher.feed(self._detokenizer.flush(), armed=False) + self._matcher.flush()
        self._end(reason, stop_hit)

    def _end(self, reason: FinishWord, stop_hit: str) -> None:
        """With calls in it the answer ended for them; one that was cut off ended for its length all the same."""
        self.finish_reason, self.stop_hit, self.plain = reason, stop_hit, False
        if self._split is not None:
            self._split.feed(self.tail)
            self._split.finish()
            # known with the end alone: who has read all tokens may not have seen it
            self._note_parts(self._split, len(self.ids) + 1)
            self.tool_calls = self._split.calls
            if self.tool_calls and reason == "stop":
                self.finish_reason = "tool_calls"

    def _note_parts(self, split: ToolText, known: int) -> None:
        self.call_parts += [(known, part) for part in split.take_parts()]

    @property
    def call_fault(self) -> str:
        """What is wrong with the arguments of a call that had to fit a schema."""
        return self._split.fault if self._split is not None else ""

    def bytes_after(self, tokens: int) -> int:
        """UTF-8 bytes of head and text after `tokens` tokens, tail not included."""
        return utf8_len(self.head) + (self.ends[tokens - 1] if tokens else 0)

    @property
    def total_bytes(self) -> int:
        """UTF-8 bytes of the whole text so far."""
        return self.bytes_after(len(self.ids)) + utf8_len(self.tail)


class ChoiceReader:
    """One client's position in a choice. `from_byte`: text before it is not given out again. `request_id` names tool calls."""

    __slots__ = (
        "_byte_end", "_choice", "_from_byte", "_head_given", "_part", "_request_id", "_tokenizer", "_tokens", "ended",
    )  # fmt: skip

    def __init__(self, choice: ChoiceOutput, tokenizer: Tokenizer, from_byte: int = 0, request_id: str = "") -> None:
        self._choice = choice
        self._tokenizer = tokenizer
        self._from_byte = from_byte
        self._request_id = request_id
        self._tokens = 0
        self._byte_end = -1  # of the text after so many tokens, once they were given as plain ones; else -1
        self._part = 0  # the next of the call parts
        self._head_given = not choice.head
        self.ended = False

    def give(self, call: int, columns: DeltaColumns) -> bool:
        """Puts plain new tokens (no logprobs, no end) into the columns as a delta of `call`. True: `pull` has more."""
        choice = self._choice
        first, last = self._tokens, len(choice.ids)
        if last - first == 1 and choice.plain and self._byte_end >= 0 and choice.was_plain(first):
            token_id = choice.ids[first]
            known = choice.texts[token_id]
            if known is not None:
                byte_end = self._byte_end + (len(known) if known.isascii() else len(known.encode()))
                self._tokens, self._byte_end = last, byte_end
                columns.rows.append((call, choice.index, 1, last, byte_end))  # columns.add, in line
                columns.tokens.append(token_id)
                columns.texts.append(known)
                return False
        if self.ended or (first == last and choice.finish_reason is None and self._head_given):
            return False
        if last - first <= MAX_DELTA_ENTRIES and choice.plain and self._byte_end >= 0 and choice.was_plain(first):
            ids = choice.ids[first:last]
            text = "".join([choice.texts[token_id] or "" for token_id in ids])
            self._tokens, self._byte_end = last, self._byte_end + utf8_len(text)
            columns.add(call, choice.index, text, ids, last, self._byte_end)
            return False
        plain = self._head_given and not self._from_byte and choice.finish_reason is None
        plain = plain and self._part == len(choice.call_parts)
        if not plain or choice.logprobs[first] is not None or last - first > MAX_DELTA_ENTRIES:
            return True
        text = choice.pieces[first] if last - first == 1 else "".join(choice.pieces[first:last])
        self._tokens, self._byte_end = last, choice.bytes_after(last)
        columns.add(call, choice.index, text, choice.ids[first:last], last, self._byte_end)
        return False

    def pull(self) -> Delta | None:
        """What is new as one delta of bounded size, or None when there is nothing. An echoed prompt is a delta of its own."""
        choice = self._choice
        if self._from_byte:
            self._skip_known_tokens()
        if not self._head_given:
            return self._pull_head()
        first, last = self._tokens, len(choice.ids)
        if self.ended or (first == last and choice.finish_reason is None):
            return None
        if last - first > 1:
            last = min(last, first + self._most_tokens(first))
        text = "".join(choice.pieces[first:last])
        if choice.finish_reason is not None and last == len(choice.ids):
            text += choice.tail
            self.ended = True
        if self._from_byte and (at := choice.bytes_after(first)) < self._from_byte:
            text = _without_bytes(text, self._from_byte - at)
        byte_end = choice.total_bytes if self.ended else choice.bytes_after(last)
        self._tokens, self._byte_end = last, -1
        return Delta(
            index=choice.index,
            text=text,
            token_ids=choice.ids[first:last],
            logprobs=[self._logprob(raw) for raw in choice.logprobs[first:last] if raw is not None],
            token_end=last,
            byte_end=byte_end,
            finish_reason=choice.finish_reason if self.ended else None,
            stop_hit=choice.stop_hit if self.ended else "",
            tool_calls=named_calls(self._request_id, choice) if self.ended else (),
            call_parts=self._new_parts(last + self.ended),
            beam=choice.beam if self.ended else None,
        )

    def _new_parts(self, known: int) -> list[ToolCallPart]:
        """What calls grew by up to so many tokens, one part per call."""
        choice, new = self._choice, dict[int, CallPart]()
        while self._part < len(choice.call_parts) and choice.call_parts[self._part][0] <= known:
            part = choice.call_parts[self._part][1]
            before = new.get(part.number, CallPart(part.number, "", "", 0))
            new[part.number] = CallPart(
                part.number, before.name + part.name, before.arguments + part.arguments, part.end
            )
            self._part += 1
        return [
            ToolCallPart(
                part.number,
                call_id(self._request_id, choice.index, part.number) if part.name else "",
                part.name,
                part.arguments,
                part.end,
            )
            for part in new.values()
        ]

    def _most_tokens(self, first: int) -> int:
        """How many tokens from `first` on fit one delta; all of a choice carry about as many logprobs."""
        raw = self._choice.logprobs[first] if first < len(self._choice.ids) else None
        weight = 1 if raw is None else 1 + _LOGPROB_ENTRIES * (1 + len(raw.top_tokens))
        return max(1, MAX_DELTA_ENTRIES // weight)

    def _pull_head(self) -> Delta | None:
        self._head_given = True
        text = _without_bytes(self._choice.head, self._from_byte)
        if not text:
            return self.pull()
        return Delta(self._choice.index, text, (), (), 0, self._choice.bytes_after(0))

    def _skip_known_tokens(self) -> None:
        """Passes tokens that a returning client has for sure: up to the first position whose text reaches from_byte."""
        choice, target = self._choice, self._from_byte
        if not target or choice.bytes_after(self._tokens) >= target:
            return
        while (
            self._tokens < len(choice.ids)
            and choice.bytes_after(self._tokens) < target
            and choice.bytes_after(self._tokens + 1) <= target
        ):
            self._tokens += 1
            self._head_given = True
        self._new_parts(self._tokens)  # known with them

    def _logprob(self, raw: RawLogprob) -> TokenLogprob:
        tops = tuple(
            self._token_logprob(token, logprob)
            for token, logprob in zip(raw.top_tokens, raw.top_logprobs, strict=False)
        )
        return self._token_logprob(raw.token, raw.logprob, tops)

    def _token_logprob(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        data = self._tokenizer.token_bytes[token]
        return TokenLogprob(token, data.decode("utf-8", "replace"), data, logprob, top)


def named_calls(request_id: str, choice: ChoiceOutput) -> list[ToolCall]:
    """The tool calls of an ended choice with their ids."""
    return [
        ToolCall(call_id(request_id, choice.index, call.number), call.name, call.arguments)
        for call in choice.tool_calls
    ]


def utf8_len(text: str) -> int:
    """Length of `text` in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _without_bytes(text: str, count: int) -> str:
    return text.encode()[count:].decode("utf-8", "ignore")
