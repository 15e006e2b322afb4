# SPDX-License-Identifier: LGPL-2.1-or-later
"""The paths of trace files in arguments, and the files to which another program's arguments are
confined.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kcovdbg.errors import CapabilityError, KcovdbgError, UsageError
from kcovdbg.input_file import read_input
from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit
from kcovdbg.model.kcov import name_some
from kcovdbg.records.pc_locations import is_pattern
from kcovdbg.records.side_file import SUFFIX, find_traces, side_path
from kcovdbg.user_folder import expand_user

FILE: Final = "file:"
"""Begins the name of a buffer that is a trace file."""
STDIN: Final = "-"
"""Names standard input in an argument."""
# Limit for names in a hint.
_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class FileConfinement:
    """Confines commands to one directory and to single trace files.

    Links are followed before a path is judged; the paths here have none.
    """

    folder: Path | None = None
    """The directory whose trace files may be read, and in which new files are written; None for no
    directory.
    """
    traces: tuple[Path, ...] = ()
    """Further trace files that may be read."""

    def find_input(self, name: str) -> Path:
        """Return the path of a trace file, of a directory of trace files, or of a pattern of their
        names.

        :param name: relative to the directory, or absolute.
        :raises KcovdbgError: when it is outside, or is neither a regular file nor a directory.
        """
        try:
            path = Path(os.path.realpath(name if self.folder is None else self.folder / name))
        except (OSError, ValueError) as error:
            # A null character in a path is a ValueError.
            raise KcovdbgError(f"'{name}': not a path") from error
        folder_or_file = path
        if not path.exists() and is_pattern(path.name):
            folder_or_file = path.parent
        if path not in self.traces and not self._is_inside(folder_or_file):
            raise KcovdbgError(
                f"'{name}': outside the directory for trace files", hint=self._hint()
            )
        if path.exists() and not (path.is_dir() or path.is_file()):
            # A read of a FIFO may never end.
            raise KcovdbgError(f"'{name}': not a regular file", hint=self._hint())
        side = side_path(path)
        if side.is_symlink() and not self._is_inside(Path(os.path.realpath(side))):
            raise KcovdbgError(
                f"'{name}': the side file is a link out of the directory for trace files"
            )
        if side.exists() and not side.is_file():
            raise KcovdbgError(f"'{name}': the side file is not a regular file")
        return path

    def find_output(self, name: str) -> Path:
        """Return the path of a new file in the directory.

        :param name: the file's name, without a directory.
        :raises KcovdbgError: when there is no directory, when the name has a directory or begins
            with a dot or a dash, or when the file exists.
        """
        if self.folder is None:
            raise KcovdbgError("no directory to write to", hint="kcovdbg mcp -o DIR names one")
        # Path.name would drop a slash at the end.
        has_directory = name != os.path.basename(name)  # noqa: PTH119
        if not name or has_directory or name.startswith((".", "-")) or "\0" in name:
            raise KcovdbgError(
                f"'{name}' is not a file name", hint="a plain name, such as kcov.slice.zst"
            )
        path = self.folder / name
        if os.path.lexists(path):
            raise KcovdbgError(f"'{name}': file exists", hint="choose another name")
        if name.endswith(SUFFIX) or os.path.lexists(side_path(path)):
            raise KcovdbgError(
                f"'{name}': the name belongs to a trace and its side file",
                hint="choose another name",
            )
        return path

    def _is_inside(self, path: Path) -> bool:
        return self.folder is not None and path.is_relative_to(self.folder)

    def _hint(self) -> str:
        names = [str(path) for path in self.traces]
        if self.folder is not None:
            names += (path.name for path in self.folder.glob("*.kcov") if path.is_file())
        names.sort()
        if not names:
            return "kcovdbg mcp -o DIR TRACE… names a directory and trace files"
        return f"one of {name_some(names, _NAMED)}"


def confine(path: str, confinement: FileConfinement | None) -> tuple[str, Path | None]:
    """Return the path of a file in an argument, and the directory that it must still be in when it
    is opened; None for any directory.

    :raises KcovdbgError: when the file is outside of the confinement.
    """
    if not path:
        raise UsageError(f"{FILE} names no file", hint=f"{FILE}PATH, as in {FILE}boot.kcov")
    if confinement is None:
        if path.startswith("~"):
            path = str(expand_user(path))
        return path, None
    found = confinement.find_input(path)
    folder = confinement.folder
    if folder is None or not found.is_relative_to(folder):
        folder = found.parent
    return str(found), folder


def read_argument(
    path: str | None, confinement: FileConfinement | None, command: str, hint: str
) -> tuple[str, bytes]:
    """Return the name and the content of a file in an argument, or of standard input.

    :param path: None for standard input.
    :param hint: what another program, whose standard input cannot be read, may name instead.
    :raises KcovdbgError: as :func:`confine`, or when standard input belongs to another program.
    :raises LimitError: when it is too large.
    """
    if path is not None:
        path, folder = confine(path, confinement)
        return path, read_input(path, folder=folder)
    if confinement is not None:
        problem = f"{command}: standard input belongs to another program"
        raise CapabilityError(problem, hint=hint)
    name, limit = "standard input", find_limit(TEXT_SIZE)
    data = sys.stdin.buffer.read(limit + 1)
    if len(data) > limit:
        raise over_limit(TEXT_SIZE, name)
    return name, data


def find_input_traces(word: str) -> Iterator[str]:
    """Iterate over the trace files that a buffer's name stands for, and their side files."""
    if word.startswith(FILE):
        with contextlib.suppress(KcovdbgError, OSError):
            for path in find_traces(word.removeprefix(FILE)):
                yield str(path)
                yield str(side_path(path))
