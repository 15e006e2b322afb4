# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel's log as lines, as dmesg shows it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kcovdbg.console.renderable import Line, wrap_line
from kcovdbg.console.text import escape
from kcovdbg.model.log_record import LogRecord

# KERN_EMERG to KERN_ERR, and KERN_WARNING, of include/linux/kern_levels.h.
_STYLES: Final[Mapping[int, str]] = {0: "error", 1: "error", 2: "error", 3: "error", 4: "warning"}
_STAMP: Final = len("[12345.123456] ")


def log_lines(records: Sequence[LogRecord], width: int | None, indent: str = "") -> Iterator[Line]:
    """Yield records as dmesg shows them, each line with its time."""
    for record in records:
        style = _STYLES.get(record.level, "")
        for text in record.text.split("\n"):
            line = (("", indent), ("remark", f"[{record.stamp}] "), (style, escape(text)))
            yield from wrap_line(line, width, len(indent) + _STAMP)


def end_lines(records: Sequence[LogRecord], width: int | None) -> Iterator[Line]:
    """Yield the last records under a heading; nothing for an empty log."""
    if records:
        yield (("key", "  end of the kernel's log"),)
        yield from log_lines(records, width, "    ")
