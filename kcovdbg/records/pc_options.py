# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways to read files of PCs, as options name them. Commands declare the options without loading
the readers of such files.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

AUTO: Final = "auto"


class Convention(str, Enum):
    """Subtractions that tools apply to return addresses."""

    RAW = "raw"
    """Nothing: as KCOV records them."""
    CALL = "call"
    """The length of the call: syzkaller's rawcover."""
    MINUS1 = "minus1"
    """1: sanitizers' files, and addr2line's input."""
    TWICE = "twice"
    """The length of the call twice."""
    EXACT = "exact"
    """No return addresses, but addresses of executed code: of blocks or instructions."""

    def correction(self, call_length: int) -> int:
        """Return the number to add for the return address."""
        return {"raw": 0, "call": call_length, "minus1": 1, "twice": 2 * call_length, "exact": 0}[
            self.value
        ]

    def text(self, call_length: int) -> str:
        """Return words for such PCs, in the plural."""
        return {
            "raw": "return addresses of coverage points",
            "call": "calls of coverage points",
            "minus1": "return addresses minus 1",
            "twice": f"calls minus {call_length}: the call was subtracted twice",
            "exact": "addresses of executed code",
        }[self.value]


class PcFormat(str, Enum):
    """The formats of files with PCs."""

    BINARY = "binary"
    """Words with their count first: a KCOV buffer."""
    WORDS = "words"
    """Words without a count."""
    SANCOV = "sancov"
    """A sanitizer's file: a magic number, then words."""
    HEX = "hex"
    """Hexadecimal numbers."""
    DECIMAL = "decimal"
    """Decimal numbers, which may be negative."""
    TEXT = "text"
    """Addresses among other words, as in a log."""
    CSV = "csv"
    """A table with a column of PCs, such as syzkaller's rawcoverfiles."""
    JSON = "json"
    """Objects with PCs, such as syzkaller's jsonl."""
    MODOFF = "modoff"
    """Modules with offsets: ``vmlinux+1a2b3c``."""
    DRCOV = "drcov"
    """DynamoRIO's log of blocks, as text or binary."""
    EDGES = "edges"
    """Lines of two addresses, from and to, with a count."""
    FUNCTIONS = "functions"
    """Functions with offsets, as the kernel prints return addresses: ``vfs_read+0x18/0x11a
    [ext4]``.
    """
    QEMU_EXEC = "qemu-exec"
    """QEMU's log of executed translation blocks: ``-d exec``."""
    QEMU_ASM = "qemu-asm"
    """QEMU's log of translated instructions: ``-d in_asm``."""
    PERF = "perf"
    """Samples or branches as perf script prints them."""
    GDB = "gdb"
    """GDB's log of stops: ``=> 0xffffffff81000000 <f>:``, breakpoints, recorded instructions."""


class WordReading(NamedTuple):
    """A way to read words of a file of PCs."""

    convention: Convention
    """The convention of the words."""
    kaslr_offset: int = 0
    """The KASLR offset that they include. If it is negative, the offset was subtracted twice."""
    correction: int = 0
    """The number to add to the words."""
    module: str | None = None
    """The module that moved words are in; None for words that are not moved."""
    shift: int = 0
    """How far moved words are too low, in bytes."""
    records: int = 0
    """Number of records that were read in this way."""


class ReadingOptions(NamedTuple):
    """The user's options for files without a side file. With ``auto`` and None, kcovdbg finds the
    value.
    """

    format: str = AUTO
    pc: str = AUTO
    kaslr_offset: int | None = None
    assumed: WordReading | None = None
    """The reading of a list that is too short to decide: as the lists beside it are read."""
