# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run or answer standard input, if it is not a terminal and no command was given: it is a script,
or a file such as a log.

A log must not be run as a script. The start of the input decides: a file's first megabyte, or a
pipe's first reads, up to the first whole line that is not blank or a comment. More is not awaited,
because a program may write one command and wait for the answer. :mod:`.script_lines` tells a script
from a log that begins as one.

This decision is no defense, because the author of a log also decides how it begins. So the lines of
such a script may only read and print (:attr:`Workspace.reads_only`), and the script ends at the
first error. With ``--script -``, the user allows more.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import Any, Final, TextIO

from kcovdbg.console.context import Workspace
from kcovdbg.console.runner import run_script
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.frontends.input_answers import answer_inputs
from kcovdbg.frontends.options import NamedInput
from kcovdbg.frontends.script_lines import SILENT, find_kind_of_lines
from kcovdbg.input_file import find_packing
from kcovdbg.inputs.input_commands import find_commands
from kcovdbg.limits import TRACE_SIZE, find_limit, over_limit
from kcovdbg.records.input_kind import LOOKED_AT, FoundKind, InputKind, find_path_kind

NAME: Final = "standard input"
_PATH: Final = "/dev/stdin"
_PIECE: Final = 1 << 16


class _Rewound(io.RawIOBase):
    """A stream that begins with data that was already read from it.

    :param stream: the object that had the stream, kept because its deletion would close the stream.
    """

    def __init__(self, start: bytes, rest: Any, stream: TextIO) -> None:
        super().__init__()
        self._start = memoryview(start)
        self._rest = rest
        self._stream = stream

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read the data that is available."""
        target = memoryview(buffer)  # type: ignore[arg-type]
        data: memoryview | bytes | None = self._start[: len(target)]
        if data:
            self._start = self._start[len(target) :]
        else:
            data = _read_some(self._rest, len(target))
        target[: len(data)] = data
        return len(data)


def run_standard_input(workspace: Workspace, *, is_named: bool) -> int | None:
    """Run standard input as a script, up to a line that fails, or answer it like a file.

    :param is_named: whether the user said that it is a script.
    :return: the exit status; None if standard input is empty.
    :raises KcovdbgError: when it is neither a script nor a file that a command answers.
    """
    # Not buffered: a read returns the data that is available.
    source: Any = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    start = _read_start(source)
    rewound = io.BufferedReader(_Rewound(start, source, sys.stdin), _PIECE)
    sys.stdin = io.TextIOWrapper(rewound, encoding="utf-8", errors="surrogateescape")
    if not start.strip():
        return None
    if not is_named:
        found = find_kind_of_lines(start, workspace.commands.names)
        if found is not None:
            return _answer(workspace, found, is_packed=find_packing(start) is not None)
    workspace.reads_only = not is_named
    return run_script(workspace, sys.stdin, NAME, stops=True)


def _read_start(source: Any) -> bytes:
    """Return the first megabyte of a file; from a pipe, read until there is a whole line that is
    not blank or a comment.
    """
    start = b""
    is_file = _is_file(source)
    while len(start) < LOOKED_AT:
        data = _read_some(source, LOOKED_AT - len(start) if is_file else _PIECE)
        if not data:
            break
        start += data
        whole = start[: start.rfind(b"\n") + 1]
        if not is_file and any(not SILENT.fullmatch(line) for line in whole.splitlines()):
            break
    return start


def _read_some(source: Any, size: int) -> bytes:
    """Return at most ``size`` bytes as soon as there are any; none at the end."""
    data: bytes | None = source.read(size)
    while data is None:
        # Another program with the same pipe, for instance ssh, has set O_NONBLOCK.
        select.select([source], [], [])
        data = source.read(size)
    return data


def _is_file(source: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    except OSError:
        return False


def _answer(workspace: Workspace, found: FoundKind, *, is_packed: bool) -> int:
    """Answer standard input like a file.

    :param is_packed: whether it is compressed: then its start does not show its kind.
    :raises UsageError: when no command answers it.
    """
    if is_packed or find_commands(_PATH, found):
        _keep_as_file()
    if is_packed:
        found = find_path_kind(_PATH)
    if found.kind is InputKind.REPORT:
        # syzkaller's answers are kept under the path of the report, which a stream lacks.
        found = found._replace(kind=InputKind.LOG)
    if found.kind is InputKind.WORKDIR or not find_commands(_PATH, found):
        hint = found.hint or "write it to a file first, and name that"
        raise UsageError(f"{NAME} is {found.noun}: not run, and no command answers it", hint=hint)
    return answer_inputs(workspace, [NamedInput(_PATH, found)])


def _keep_as_file() -> None:
    """Replace standard input by a temporary file with its content, which commands open by name.

    :raises LimitError: when it is too large.
    :raises KcovdbgError: when it cannot be kept in a temporary file.
    """
    import tempfile

    limit = find_limit(TRACE_SIZE)
    try:
        # Descriptor 0 keeps it until the program ends.
        with tempfile.TemporaryFile(prefix="kcovdbg-") as file:
            while data := sys.stdin.buffer.read(_PIECE):
                file.write(data)
                if file.tell() > limit:
                    raise over_limit(TRACE_SIZE, NAME)
            file.flush()
            file.seek(0)
            os.dup2(file.fileno(), 0)
    except OSError as error:
        raise KcovdbgError(
            f"could not keep {NAME} in {tempfile.gettempdir()}: {error.strerror or error}"
        ) from None
    # It stays open until the program ends.
    sys.stdin = open(0, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
