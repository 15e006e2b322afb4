# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command for each kind of file: it answers a file that is named without a command, and is a
hint if another command does not take the file.
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

# The kinds of files that are none of kcovdbg's inputs.
_NAMELESS: Final = (InputKind.TEXT, InputKind.BINARY)
# The options for the kinds of files that options read.
_OPTIONS: Final = {
    InputKind.DUMP: "-c {} -s VMLINUX",
    InputKind.IMAGE: "-s {}",
    InputKind.TABLE: "--symbol-table {}",
    InputKind.SCRIPT: "--script {}",
}
_NEEDS_QUOTES: Final = re.compile(r"""[\s"'\\|<>;&#]""")


def find_commands(path: str, found: FoundKind) -> Sequence[Sequence[str]]:
    """Return the words of the commands that answer an input, empty if no command does.

    :param path: the input's path.
    :param found: the input's kind.
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
    """Return the path of a side file's trace."""
    return side_file.removesuffix(SUFFIX)


def find_hint(path: str) -> str | None:
    """Return a hint for a file that is not expected, None if there is no such file."""
    with contextlib.suppress(KcovdbgError):
        if Path(path).exists():
            return word_hint(path, find_path_kind(path))
    return None


def find_kind_hint(path: str) -> str | None:
    """Return a hint for a file of another kind than expected, None if the kind has no name."""
    with contextlib.suppress(KcovdbgError):
        if is_file(path) and (found := find_path_kind(path)).kind not in _NAMELESS:
            return f"it is {word_hint(path, found)}"
    return None


def word_hint(path: str, found: FoundKind) -> str:
    """Return a hint that names the kind of a file and the command that reads it."""
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
