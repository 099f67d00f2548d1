"""Files that a command is given to read: why one cannot be."""

from __future__ import annotations


def reading_fault(error: OSError | UnicodeDecodeError) -> str:
    """The reason alone; the line around it names the file."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
