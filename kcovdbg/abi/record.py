# SPDX-License-Identifier: LGPL-2.1-or-later
"""The formats of coverage buffers."""

from __future__ import annotations

from enum import Enum
from typing import Final


class RecordFormat(str, Enum):
    """What a buffer holds."""

    PC = "pc"
    """One word per record: a return address minus the KASLR offset."""
    CMP = "cmp"
    """Four 64-bit words per record, on 32-bit kernels too: type, arg1, arg2, pc."""


CMP_WORDS: Final = 4


def format_of_mode(mode: str | None) -> RecordFormat:
    """Return the format that a mode records in; PC records where the mode doesn't say.

    :param mode: a name from ``enum kcov_mode`` without prefix.
    """
    return RecordFormat.CMP if mode in ("TRACE_CMP", "TRACE_UNIQ_CMP") else RecordFormat.PC


def find_capacity(record_format: RecordFormat, size: int, word_size: int) -> int:
    """Return how many records fit into a buffer.

    :param size: of the buffer in words.
    :param word_size: bytes of a word.
    """
    if record_format is RecordFormat.CMP:
        # The count is a 64-bit word as well: floor((bytes / 8 - 1) / 4).
        return max(0, (size * word_size // 8 - 1) // CMP_WORDS)
    return max(0, size - 1)
