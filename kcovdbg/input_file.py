# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one opener of files whose content is not trusted: regular files and block devices, up to a limit."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final, NoReturn

from kcovdbg.limits import TEXT_SIZE, find_limit, over_limit

_KINDS: Final = (
    (stat.S_ISDIR, errno.EISDIR, os.strerror(errno.EISDIR)),
    (stat.S_ISFIFO, errno.ESPIPE, "a pipe: not seekable"),
    (stat.S_ISSOCK, errno.ESPIPE, "a socket: not seekable"),
    (stat.S_ISCHR, errno.ESPIPE, "a device: not seekable"),
)


def open_input(path: str | os.PathLike[str], *, folder: Path | None = None, owned: bool = False) -> BinaryIO:
    """Open a file for reading; what is opened is what was checked, whatever is at its path meanwhile.

    :param folder: a directory that it must be in once links are followed; an absolute path without links.
    :param owned: accept only a file of this user or root that is not a link.
    :raises OSError: when it cannot be opened, is a pipe, a socket or a character device, or is elsewhere or another user's.
    """
    # A device is not even opened: that may already do something.
    _check_kind(path, Path(path).lstat() if owned else Path(path).stat())
    # A pipe that took the file's place would wait for its other end.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (os.O_NOFOLLOW if owned else 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check_kind(path, status := os.fstat(file.fileno()))
        if owned and status.st_uid not in (os.geteuid(), 0):
            _refuse(path, errno.EPERM, "a file of another user")
        if folder is not None and not Path(f"/proc/self/fd/{file.fileno()}").readlink().is_relative_to(folder):
            _refuse(path, errno.EXDEV, f"outside {folder}")
    except BaseException:
        file.close()
        raise
    return file


def _check_kind(path: str | os.PathLike[str], status: os.stat_result) -> None:
    for is_kind, number, problem in _KINDS:
        if is_kind(status.st_mode):
            _refuse(path, number, problem)


def _refuse(path: str | os.PathLike[str], number: int, problem: str) -> NoReturn:
    raise OSError(number, problem, os.fspath(path))


def read_input(
    path: str | os.PathLike[str], limit: str = TEXT_SIZE, *, folder: Path | None = None, owned: bool = False
) -> bytes:
    """Return the content of a file, opened as :func:`open_input` does.

    :param limit: the name of the limit for its size.
    :raises OSError: when it cannot be read.
    :raises LimitError: when it is larger.
    """
    size = find_limit(limit)
    with open_input(path, folder=folder, owned=owned) as file:
        # Files in /proc and block devices have no size before they are read.
        data = b"" if os.fstat(file.fileno()).st_size > size else file.read(size + 1)
        if len(data) > size or os.fstat(file.fileno()).st_size > size:
            raise over_limit(limit, os.fspath(path))
    return data


def parse_json(text: bytes | str) -> Any:
    """Return the value of JSON text that is not trusted.

    :raises ValueError: when it is malformed, nested too deeply, or has a number of thousands of digits.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
