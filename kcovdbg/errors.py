# SPDX-License-Identifier: LGPL-2.1-or-later
"""The errors that a user can cause or meet, each with a hint on what to do next.

Findings about a damaged or unusual kernel are data (:class:`kcovdbg.model.finding.Finding`, and
the ``errors`` of a row), not exceptions: a partial answer is an answer.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""The exit status after C-c, as shells have it."""


class KcovdbgError(Exception):
    """An error that is shown to the user in one line.

    :param message: the problem, in one line.
    :param hint: what to do next, in one line; None if the message already says it.
    :param wrong_file: the path of a file of an unexpected kind. When the error is shown, the hint
        says which kind it is.
    """

    status: int = 2
    """The exit status of a command that fails with it."""

    def __init__(
        self, message: str, *, hint: str | None = None, wrong_file: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.wrong_file = wrong_file


class UsageError(KcovdbgError):
    """The words of a command are wrong."""


class WordError(UsageError):
    """One word of a command is wrong.

    :param word: the word as it was given; None for a missing word.
    """

    def __init__(self, message: str, word: str | None, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.word = word


class LineError(UsageError):
    """A command line is wrong at a known place.

    :param line: the line as it was typed.
    :param column: index of the wrong character; the line's length if something is missing at its
        end.
    """

    def __init__(self, message: str, line: str, column: int, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line
        self.column = column


class LimitError(KcovdbgError):
    """An input exceeds a limit of :mod:`kcovdbg.limits`."""


class TargetError(KcovdbgError):
    """The target cannot be opened, or is of the wrong kind."""


class NoDebugInfoError(TargetError):
    """A kernel's image has no debug info.

    :param path: the path of the image, unpacked.
    :param name: the user's name for it.
    """

    def __init__(self, path: object, name: str, *, hint: str | None) -> None:
        super().__init__(f"{name} has no debug info (DWARF)", hint=hint)
        self.path = str(path)
        self.name = name


class GoneError(TargetError):
    """The machine that was read has ended."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is gone: the machine ended, or its connection was closed",
            hint="start kcovdbg again when it is back",
        )


class ReadError(KcovdbgError):
    """Memory of the target cannot be read.

    :param address: the first address that cannot be read.
    """

    def __init__(self, message: str, address: int) -> None:
        super().__init__(message)
        self.address = address


class CutStackError(ReadError):
    """Memory of a stack cannot be read above its innermost frames."""


class PointerError(ReadError):
    """A pointer of the target cannot be the address of a structure in the kernel."""


class MissingError(KcovdbgError, LookupError):
    """The kernel or its debug info lacks something."""


class MissingTypeError(MissingError):
    """The debug info has no such type, or this kernel's type has no such member."""


class MissingSymbolError(MissingError):
    """The target has no such symbol."""


class CapabilityError(KcovdbgError):
    """This target, or this installation, lacks what the command needs."""


class CollectError(KcovdbgError):
    """Coverage cannot be collected, or the command cannot be run.

    :param status: 125; 126 and 127 as a shell has them.
    """

    def __init__(self, message: str, *, hint: str | None = None, status: int = 125) -> None:
        super().__init__(message, hint=hint)
        self.status = status


def refuse_path(path: str | os.PathLike[str], number: int, problem: str | None = None) -> NoReturn:
    """Raise an error about a path.

    :param problem: the text of the error; by default the number's.
    """
    raise OSError(number, problem or os.strerror(number), os.fspath(path))


def name_path(error: OSError, path: str | os.PathLike[str]) -> OSError:
    """Return an error with the path that the user gave."""
    return OSError(error.errno or errno.EIO, error.strerror or str(error), os.fspath(path))


# What to do where a file cannot be written, by the number of the error.
_NO_SPACE: Final = "free some space, or choose another directory"
_WRITE_HINTS: Final = {
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EROFS: "choose another directory",
    errno.EACCES: "choose a directory that you can write to",
    errno.EISDIR: "give the name of a file in it",
}


def find_write_hint(error: OSError) -> str | None:
    """Return what to do where a file cannot be written."""
    return _WRITE_HINTS.get(error.errno or 0)


def write_error(path: str | os.PathLike[str], error: OSError | ValueError) -> KcovdbgError:
    """Return the error of a file that cannot be written.

    :param path: the path as the user gave it.
    """
    if isinstance(error, ValueError):
        # A null character in the path.
        return KcovdbgError(f"could not write '{os.fspath(path)}': {error}")
    problem = f"could not write '{os.fspath(path)}': {error.strerror or error}"
    return KcovdbgError(problem, hint=find_write_hint(error))


def find_similar(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that are similar to this one, at most three."""
    import difflib

    known = tuple(known)
    longer = [name for name in known if len(word) >= 2 and name.startswith(word)]
    similar = difflib.get_close_matches(word, known, n=3, cutoff=0.65)
    return list(dict.fromkeys((*longer, *similar)))[:3]


def suggest(word: str, known: Iterable[str]) -> str | None:
    """Return a hint with the known words that are similar to a word, or None."""
    near = find_similar(word, known)
    return f"did you mean {' or '.join(near)}?" if near else None
