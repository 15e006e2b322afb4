# SPDX-License-Identifier: LGPL-2.1-or-later
"""GDB's output: its charset, its width, and whether a program reads it."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Set

import gdb

_SPELLINGS = {"…": "...", "–": "-", "—": "-", "←": "<-", "→": "->", "│": "|", "×": "x"}
_NARROW_SPELLINGS = dict(_SPELLINGS, **{"…": "~", "←": "<", "→": ">"})
# GDB takes abbreviations.
_BATCH = (b"batch", b"batch-silent", b"bat", b"batc")
_O_ACCMODE = 3
_O_WRONLY = 1


def to_host(text: str, *, narrow: bool = False) -> str:
    """Return a text in GDB's charset: in the C locale that is ASCII, and GDB rejects other
    characters.

    :param narrow: whether to keep the width, for text in columns.
    """
    charset = gdb.host_charset()
    try:
        text.encode(charset)
    except UnicodeEncodeError:
        for character, spelling in (_NARROW_SPELLINGS if narrow else _SPELLINGS).items():
            text = text.replace(character, spelling)
        return text.encode(charset, "backslashreplace").decode(charset)
    except LookupError:
        # A charset that only GDB's iconv knows.
        return text.encode("ascii", "backslashreplace").decode("ascii")
    return text


def write(op: str, text: str) -> None:
    """Write an answer (``out``) through GDB's pager, log and redirection, or a remark (``err``).

    Remarks go to standard error by way of Python: GDB's own would put them into the pipe of
    ``| kcov-show tasks --json | jq .``.

    :raises KeyboardInterrupt: when the user answered q to GDB's pager.
    """
    if op == "out":
        gdb.write(to_host(text, narrow=True))
        return
    gdb.flush()
    if sys.__stderr__ is None or _is_full_screen():
        gdb.write(to_host(text), gdb.STDERR)
    else:
        sys.__stderr__.write(to_host(text))
        sys.__stderr__.flush()


def _is_full_screen() -> bool:
    """Return whether GDB's TUI has the screen."""
    try:
        return "not active" not in gdb.execute("info win", to_string=True)
    except gdb.error:
        # A GDB without the TUI.
        return False


def describe() -> Dict[str, Any]:
    """Return what the output can show, and the user's settings for it."""
    is_terminal = os.isatty(1) and not _is_piped()
    return {
        # Unlimited is None, and 0 in some versions.
        "width": (gdb.parameter("width") or None) if is_terminal else None,
        "styled": bool(is_terminal and gdb.parameter("style enabled")),
        "color": gdb.parameter("kcov color"),
        "format": gdb.parameter("kcov format"),
    }


def is_interactive() -> bool:
    """Return whether the user types at a terminal that shows the answers as they are."""
    return os.isatty(0) and os.isatty(1) and not _is_piped() and not _is_full_screen()


def is_batch() -> bool:
    """Return whether GDB runs commands from its command line and ends (``-batch``); GDB has no
    parameter that tells.
    """
    try:
        with open("/proc/self/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        # Without /proc.
        return False
    options = words[1 : words.index(b"--args") if b"--args" in words else len(words)]
    return any(word.lstrip(b"-") in _BATCH and word.startswith(b"-") for word in options)


def _is_piped() -> bool:
    """Return whether GDB's ``pipe`` runs this command: whether a child of GDB reads from a pipe
    that GDB writes to.

    GDB does not tell Python where its output goes, and does not strip colors from it.
    """
    try:
        return bool(_pipes_written() & _pipes_read_by_children())
    except OSError:
        # Without /proc.
        return False


def _pipes_written() -> Set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            name = os.readlink("/proc/self/fd/" + number)
            if not name.startswith("pipe:"):
                continue
            with open("/proc/self/fdinfo/" + number) as file:
                flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
        except OSError:
            continue
        if int(flags, 8) & _O_ACCMODE == _O_WRONLY:
            found.add(name)
    return found


def _pipes_read_by_children() -> Set[str]:
    found = set()
    for thread in os.listdir("/proc/self/task"):
        with open("/proc/self/task/%s/children" % thread) as file:
            children = file.read().split()
        for child in children:
            try:
                found.add(os.readlink("/proc/%s/fd/0" % child))
            except OSError:
                continue
    return found
