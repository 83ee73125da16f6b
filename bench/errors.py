"""What a benchmark cannot go on with; the message says what to do."""

from __future__ import annotations


class BenchError(Exception):
    """A wrong argument, data file or directory. The message is one line."""
