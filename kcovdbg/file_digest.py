# SPDX-License-Identifier: LGPL-2.1-or-later
"""Digests of large files: keys for what is kept about them, which nobody can choose.

A digest is of all bytes of a file: of its size, and of its blocks that are not zeros with their
places, so that a file of holes takes no time. That of an image of 1.6 GB takes a second, and is
remembered: under the file's inode, size and times, if nobody but this user and root can write the
file. The time of its last change (ctime) is then the kernel's alone to set, so that a file with
other contents has another one.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import hashlib
import json
import os
import pwd
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from kcovdbg.errors import LimitError
from kcovdbg.input_file import find_extents, open_input, parse_json, read_input
from kcovdbg.user_folder import find_user_folder, make_folder

_PIECE: Final = 1 << 20
_ZEROS: Final = bytes(_PIECE)
_REMEMBERED: Final = 256
"""How many digests are remembered."""
# Nanoseconds in which two changes can have the same time, on any file system.
_TICK: Final = 3 * 10**9


def find_digest(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file, hexadecimal.

    :raises OSError: when it cannot be read, or is no regular file.
    """
    with open_input(path) as file:
        return _find_digest(file)


class UnchangingFile(NamedTuple):
    """A file, or a copy of one, and the digest of what is read of it."""

    file: BinaryIO
    digest: str
    state: str

    def is_unchanged(self) -> bool:
        """Return whether nothing was written to it since its digest was taken."""
        return _name_state(os.fstat(self.file.fileno())) == self.state


@contextlib.contextmanager
def open_unchanging(path: str | os.PathLike[str]) -> Iterator[UnchangingFile]:
    """Open a file for as long as a block lasts, with its digest; a copy of one that others can
    write, or that has just changed.

    What is read in the block is what the digest is of, whatever others do to the file meanwhile. If
    the user changes it, it is not unchanged at the end.

    :raises OSError: when it cannot be read or copied, or is no regular file.
    """
    with open_input(path) as file:
        status = os.fstat(file.fileno())
        if _is_private(status) and _is_settled(status):
            yield UnchangingFile(file, _find_digest(file), _name_state(status))
            return
        with tempfile.TemporaryFile(prefix="kcovdbg-") as copy:
            size = _find_size(file)
            copy.truncate(size)
            digest = _start_digest(size)
            for place, data in _read_blocks(file, size):
                _add_block(digest, place, data)
                copy.seek(place)
                copy.write(data)
            copy.flush()
            yield UnchangingFile(
                cast("BinaryIO", copy), digest.hexdigest(), _name_state(os.fstat(copy.fileno()))
            )


def combine_digests(digests: list[str]) -> str:
    """Return one digest for several files, in their order."""
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()
    )


def _find_digest(file: BinaryIO) -> str:
    status = os.fstat(file.fileno())
    name = _name_state(status)
    known = _read_known()
    if _is_private(status) and name in known:
        return known[name]
    size = _find_size(file)
    digest = _start_digest(size)
    for place, data in _read_blocks(file, size):
        _add_block(digest, place, data)
    found = digest.hexdigest()
    is_same = _is_settled(status) and _name_state(os.fstat(file.fileno())) == name
    if is_same and status.st_nlink and _is_private(status):
        _remember(known, name, found)
    return found


def _find_size(file: BinaryIO) -> int:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file.name))
    return status.st_size


def _start_digest(size: int) -> hashlib._Hash:
    return hashlib.sha256(size.to_bytes(8, "little"))


def _add_block(digest: hashlib._Hash, place: int, data: bytes) -> None:
    digest.update(place.to_bytes(8, "little"))
    digest.update(data)


def _read_blocks(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the blocks of a file that are not zeros, each with its place; all but the last
    are equally large.

    Others may change the file meanwhile.
    """
    done = 0
    for first, length in find_extents(file, 0, size):
        for place in range(max(done, first - first % _PIECE), first + length, _PIECE):
            wanted = min(_PIECE, size - place)
            data = os.pread(file.fileno(), wanted, place).ljust(wanted, b"\0")
            if data != _ZEROS[:wanted]:
                yield place, data
            done = place + _PIECE


def _name_state(status: os.stat_result) -> str:
    times = f"{status.st_mtime_ns}:{status.st_ctime_ns}"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{times}"


def _is_settled(status: os.stat_result) -> bool:
    """Return whether another change would give a file another time."""
    return status.st_ctime_ns + _TICK < time.time_ns()


def _is_private(status: os.stat_result) -> bool:
    """Return whether nobody but this user and root can write a file."""
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_uid not in (os.geteuid(), 0)
        or status.st_mode & stat.S_IWOTH
    ):
        return False
    return not status.st_mode & stat.S_IWGRP or status.st_gid == 0 or _is_own_group(status.st_gid)


def _is_own_group(number: int) -> bool:
    """Return whether a group is that of this user alone, as most distributions make one for
    each.
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    return (
        user.pw_gid == number
        and group.gr_name == user.pw_name
        and set(group.gr_mem) <= {user.pw_name}
    )


def _find_list() -> Path | None:
    folder = find_user_folder("cache").path
    return None if folder is None else folder / "digests.json"


def _read_known() -> dict[str, str]:
    path = _find_list()
    try:
        known = {} if path is None else parse_json(read_input(path, owned=True))
    except (OSError, LimitError, ValueError):
        return {}
    if not isinstance(known, dict) or not all(isinstance(digest, str) for digest in known.values()):
        return {}
    return known


def _remember(known: dict[str, str], name: str, digest: str) -> None:
    """Add a digest to the list, the newest last; two processes at once may lose one, which costs a
    second.
    """
    path = _find_list()
    if path is None:
        return
    from kcovdbg.output_file import PRIVATE, open_output

    newest = dict([*known.items(), (name, digest)][-_REMEMBERED:])
    # A list that cannot be written is as good as none.
    with contextlib.suppress(OSError):
        make_folder(path.parent)
        with open_output(path, mode=PRIVATE) as file:
            file.write(json.dumps(newest).encode())
