"""A worker's reports as events: one per step comes here, and in most of them little else has changed than the tokens."""

from __future__ import annotations

from typing import Any

from octavo.packing import RepeatingColumn
from octavo.v1 import worker_pb2 as wpb

from octavo_scheduler import events
from octavo_scheduler.beams.rule import BeamRow
from octavo_scheduler.wire import WireError, tokens_array, u32_list


class ReportReader:
    """Reads the reports of one stream. Columns that say what they said the last time are not read again: their lists are shared
    between events, which nobody changes."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._nothing: list[Any] = []  # in every event's place for what it does not have
        self._slots, self._counts = RepeatingColumn(), RepeatingColumn()

    def read(self, message: wpb.Report, now_us: int) -> events.Reported:
        """A report as an event. Raises WireError when the flat arrays do not fit each other."""
        nothing = self._nothing
        report = events.Reported(
            now_us, self._epoch, message.step, message.steps,
            u32_list(message.slots, "slots", self._slots.unpack), u32_list(message.counts, "counts", self._counts.unpack),
            tokens_array(message.tokens, "tokens"), u32_list(message.computed_len, "computed_len"),
            nothing, nothing, nothing, nothing, nothing, nothing,
            message.times.wall_us, message.prefill_tokens, message.decode_seqs, None, None, 0,
            message.draining, message.failed_allocations, nothing,
        )  # fmt: skip
        if not len(report.slots) == len(report.counts) == len(report.computed_len):
            raise WireError(
                f"slots: {len(report.slots)}, counts {len(report.counts)}, computed {len(report.computed_len)}"
            )
        if message.starved:
            report.starved = u32_list(message.starved, "starved")
        _read_rest(message, report)
        return report


def _read_rest(message: wpb.Report, report: events.Reported) -> None:
    """What few reports say."""
    if message.finishes:
        report.finishes = [
            events.Finish(item.slot, item.seq, item.reason, item.stop_token, item.message) for item in message.finishes
        ]
    if message.released:
        report.released = [events.Released(item.seq, item.len, item.computed_len) for item in message.released]
    if message.transfers_done:
        report.transfers_done = [
            events.TransferDone(
                item.xfer_id,
                item.ok_blocks,
                item.bytes,
                item.lookup_us,
                item.transfer_us,
                item.tier,
                item.queue_us,
                item.deserialize_us,
            )
            for item in message.transfers_done
        ]
    if message.first_tokens:
        report.first_tokens = [
            events.FirstToken(
                item.seq,
                item.wait_us,
                item.prefill_us,
                item.chunks,
                item.load_us,
                item.sample_us,
                item.dispatch_us,
                item.report_us,
            )
            for item in message.first_tokens
        ]
    if message.logprobs:
        report.logprobs = [item.SerializeToString() for item in message.logprobs]
    if message.beam_rows:
        report.beam_rows = [_read_row(row) for row in message.beam_rows]
    if message.HasField("live"):
        report.live_seqs = list(message.live.seqs)
        report.live_transfers = list(message.live.transfers)
        report.orders_applied = message.live.orders_applied
        report.backed_blocks = message.backed_blocks


def _read_row(row: wpb.BeamRow) -> BeamRow:
    tokens = u32_list(row.tokens, "beam_rows.tokens")
    if len(tokens) != len(row.logprobs):
        raise WireError(f"beam_rows.logprobs: {len(row.logprobs)} for {len(tokens)} tokens")
    return BeamRow(row.seq, row.len, tuple(tokens), tuple(row.logprobs))
