"""NativeFlight: steps of the same rows that the library runs one after the other by itself, and their tokens as they come."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from octavo_gpuworker.native import abi
from octavo_gpuworker.native.batch import StepArrays
from octavo_gpuworker.native.model import NativeModel, StepError

ROOM: Final = 32
"""Steps that whoever takes their tokens may be behind; the next one waits for it then."""


class NativeFlight:
    """One at a time of a model; every method but `hold` is the step thread's.

    While it is on the library reads and writes the arrays of its batch. None may be replaced; block tables may be written in columns
    that no step before the next `extend` reaches.
    """

    def __init__(self, model: NativeModel, room: int = ROOM) -> None:
        self._model = model
        self._room = room
        self._hold: NDArray[np.int32] = np.zeros(1, np.int32)
        self._tokens: NDArray[np.int32] = np.zeros((room, 0), np.int32)
        self._elapsed_ns: NDArray[np.int64] = np.zeros(room, np.int64)
        self._told = 0
        self._bell = 0
        self._error = ctypes.create_string_buffer(abi.ERROR_BYTES)
        self._over = ctypes.c_int32(1)
        self.taken = 0

    def begin(self, arrays: StepArrays, *, tokens: int, sequences: int, rows: int) -> None:
        """One step over the first entries of `arrays`.

        RuntimeError: the one before is not over. ValueError: the arrays are too short.
        """
        self._begin(arrays, arrays.struct(tokens=tokens, sequences=sequences, rows=rows), 1, (), waits=False)

    def begin_run(self, arrays: StepArrays, rows: int, most: int, stops: Iterable[int]) -> None:
        """Up to `most` steps of decodes alone, at least one, and as many more as `extend` says; it ends behind one that draws a token of
        `stops`, or none for a row. Raises as `begin`."""
        self._begin(arrays, arrays.struct(tokens=rows, sequences=rows, rows=rows), most, stops, waits=True)

    def _begin(self, arrays: StepArrays, batch: abi.Batch, most: int, stops: Iterable[int], *, waits: bool) -> None:
        if self.on:
            raise RuntimeError("a flight is on; wait for its end first")
        self._tokens = np.empty((self._room, batch.rows), np.int32)
        ids = np.array(sorted(stops), np.int32)
        flight = abi.Flight(
            room=self._room,
            stop_count=len(ids),
            stops=ids.ctypes.data,
            tokens=self._tokens.ctypes.data,
            elapsed_ns=self._elapsed_ns.ctypes.data,
            limit=min(most, self._room),
            waits=waits,
            hold=self._hold.ctypes.data,
        )
        self._model.begin(batch, flight, (arrays, self._tokens, self._elapsed_ns, self._hold))
        self._told, self.taken, self._over.value = 0, 0, 0

    @property
    def on(self) -> bool:
        """It was not over when it was last looked at."""
        return not self._over.value

    @property
    def ahead(self) -> bool:
        """A step may have begun, or be done, that was not taken."""
        return self.on or self._told > self.taken

    def extend(self, most: int) -> None:
        """Up to `most` steps more than were taken."""
        self._model.library.octavo_extend(self._model.handle, self.taken + min(most, self._room))

    def hold(self) -> None:
        """No further step begins behind the one that runs, until `release`. From any thread."""
        self._hold[0] = 1

    def release(self) -> None:
        """Takes `hold` back; a flight that it has ended is over."""
        self._hold[0] = 0

    def halt(self) -> None:
        """No further step of this flight begins."""
        self._model.library.octavo_halt(self._model.handle)

    def ring_at_wait(self, bell: int) -> None:
        """The next `take` rings this eventfd, without the interpreter's lock if it waits: who is woken wants that."""
        self._bell = bell

    def take(self) -> tuple[list[int], int] | None:
        """Tokens of the next step, a row each, and its nanoseconds; waits for it. None: the flight is over, and all is taken.

        StepError: that step could not run, and the flight is over.
        """
        bell, self._bell = self._bell, 0
        if self._told <= self.taken and self.on:
            told = self._model.library.octavo_taken(
                self._model.handle, self.taken, bell, self._over, self._error, abi.ERROR_BYTES
            )
            if told < 0:
                raise StepError(self._error.value.decode())
            self._told = told
        elif bell:
            os.eventfd_write(bell, 1)
        if self._told <= self.taken:
            return None
        at = self.taken % self._room
        self.taken += 1
        return self._tokens[at].tolist(), int(self._elapsed_ns[at])
