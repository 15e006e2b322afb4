# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide whether lines that begin like a script are one: most lines of a script begin with a
command.

If most do not, and the others are a log, a list or another known kind, the lines are of that kind,
whatever the first line is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from kcovdbg.input_file import MAGICS
from kcovdbg.records.input_kind import FoundKind, InputKind, find_kind

SILENT: Final = re.compile(rb"\s*(#.*)?")
"""Matches lines that do nothing."""
# The name of a command, as in "tasks?" and "tasks|head", or a mark that begins a line. The level of
# a log's line, <4>, names no file.
_FIRST_WORD: Final = re.compile(
    rb"\s*(?:(?P<mark>[!?]|<(?![^\s<>]{1,40}>))|(?P<name>[\w.-]+)(?=[\s?;|>&]|$))"
)


def find_kind_of_lines(start: bytes, names: Collection[str]) -> FoundKind | None:
    """Return the kind of content that is not a script; None for a script, and for text of no known
    kind.

    :param start: the first bytes of the content.
    :param names: names of commands, which may be abbreviated.
    """
    if start.startswith((b"#!", *MAGICS)):
        whole = find_kind(start)
        if whole.kind is not InputKind.SCRIPT:
            return whole
    starts = {name[:size].encode() for name in names for size in range(1, len(name) + 1)}
    lines = [line for line in start.splitlines() if not SILENT.fullmatch(line)]
    others = [line for line in lines if not _begins_as_command(line, starts)]
    # A wrong word in a script is reported as such.
    if len(others) * 2 < len(lines):
        return None
    if len(others) < len(lines) or start.startswith(b"#!"):
        # Recognize a list or a log by the other lines alone.
        start = b"\n".join((*others, b""))
    found = find_kind(start)
    return None if found.kind in (InputKind.SCRIPT, InputKind.TEXT, InputKind.EMPTY) else found


def _begins_as_command(line: bytes, starts: Collection[bytes]) -> bool:
    match = _FIRST_WORD.match(line)
    if match is None or match["mark"] is not None:
        return match is not None
    return match["name"] in starts
