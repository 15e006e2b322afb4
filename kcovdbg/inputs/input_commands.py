# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands that answer a file by what it is, for files that are named without one and for hints
where one does not fit.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kcovdbg.errors import KcovdbgError
from kcovdbg.input_file import is_file
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.records.input_kind import FoundKind, InputKind, find_path_kind
from kcovdbg.records.side_file import SUFFIX

# Kinds that say no more than that a file is of none.
_NAMELESS: Final = (InputKind.TEXT, InputKind.BINARY)
# Of inputs that no command reads.
_OPTIONS: Final = {
    InputKind.DUMP: "-c {} -s VMLINUX",
    InputKind.IMAGE: "-s {}",
    InputKind.TABLE: "--symbol-table {}",
    InputKind.SCRIPT: "--script {}",
}
_NEEDS_QUOTES: Final = re.compile(r"""[\s"'\\|<>;&#]""")


def find_commands(path: str, found: FoundKind) -> Sequence[Sequence[str]]:
    """Return the words of the commands that answer an input, none where no command does.

    :param path: of the input.
    :param found: what it is.
    """
    kind = found.kind
    if kind is InputKind.TRACE:
        return (("top", f"{FILE}{path}"),)
    if kind is InputKind.LOG:
        return (("sym", f"{FILE}{path}"),)
    if kind is InputKind.REPORT:
        return ("syzkaller", path), ("sym", f"{FILE}{path}")
    if kind in (InputKind.CRASH, InputKind.WORKDIR):
        return (("syzkaller", path),)
    if kind is InputKind.SIDE_FILE and Path(find_trace(path)).is_file():
        return (("top", f"{FILE}{find_trace(path)}"),)
    if kind is InputKind.RECORDING:
        return (("monitor", path, "--summary"),)
    return ()


def find_trace(side_file: str) -> str:
    """Return the path of the trace that a side file belongs to."""
    return side_file.removesuffix(SUFFIX)


def find_hint(path: str) -> str | None:
    """Return what to do with a file that was named where something else was expected; None where
    there is no file.
    """
    with contextlib.suppress(KcovdbgError):
        if Path(path).exists():
            return word_hint(path, find_path_kind(path))
    return None


def find_kind_hint(path: str) -> str | None:
    """Return what a file is that is not what was expected, and what to do with it; None where its
    kind has no name.
    """
    with contextlib.suppress(KcovdbgError):
        if is_file(path) and (found := find_path_kind(path)).kind not in _NAMELESS:
            return f"it is {word_hint(path, found)}"
    return None


def word_hint(path: str, found: FoundKind) -> str:
    """Return what a file is, and what to do with it."""
    commands = [" ".join(map(quote, words)) for words in find_commands(path, found)]
    if found.kind in _OPTIONS:
        commands = [f"kcovdbg {_OPTIONS[found.kind].format(quote(path))}"]
    if found.kind is InputKind.EMPTY:
        return f"{found.noun}: write or copy it again"
    return f"{found.noun}: {' or '.join(commands) or found.hint or 'no command reads it'}"


def quote(text: str) -> str:
    """Quote a word for the command language."""
    if text and not _NEEDS_QUOTES.search(text):
        return text
    if "'" not in text:
        return f"'{text}'"
    return '"' + re.sub(r'(["\\$`])', r"\\\1", text) + '"'
