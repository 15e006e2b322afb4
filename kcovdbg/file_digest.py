# SPDX-License-Identifier: LGPL-2.1-or-later
"""Digests of large files: the keys of the cache, which nobody can choose.

A digest covers all bytes of a file: its size, and each block that is not zeros with its place, so
that holes take no time. The digest of an image of 1.6 GB takes a second. It is remembered under the
file's inode, size and times, if nobody but this user and root can write the file: only the kernel
sets the time of its last change (ctime), so that a file with other contents has another time.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from kcovdbg.errors import LimitError
from kcovdbg.input_file import PathName, find_extents, open_input, parse_json, read_input
from kcovdbg.user_folder import find_user_folder, make_folder

_PIECE: Final = 1 << 20
_ZEROS: Final = bytes(_PIECE)
_REMEMBERED: Final = 256
"""How many digests are remembered."""
# Nanoseconds in which two changes can have the same time, on any file system.
_TICK: Final = 3 * 10**9


def find_digest(path: PathName) -> str:
    """Return the digest of a file, hexadecimal.

    :raises OSError: when it cannot be read, or is no regular file.
    """
    with open_input(path) as file:
        return _find_digest(file)


class UnchangingFile(NamedTuple):
    """A file, or a copy of one, with the digest of its contents."""

    file: BinaryIO
    digest: str
    state: str
    """Device, inode, size and times of the file when its digest was made."""

    def is_unchanged(self) -> bool:
        """Return whether nothing was written to it since its digest was taken."""
        return _name_state(os.fstat(self.file.fileno())) == self.state


@contextlib.contextmanager
def open_unchanging(path: PathName) -> Iterator[UnchangingFile]:
    """Open a file for a block, with its digest. If others can write the file, or it has just
    changed, open a copy.

    So the block reads the bytes that the digest was made of, even if others change the file
    meanwhile. If the user changes it, :meth:`UnchangingFile.is_unchanged` says so.

    :raises OSError: when the file cannot be read or copied, or is no regular file.
    """
    with open_input(path) as file:
        status = os.fstat(file.fileno())
        if _is_private(status) and _is_settled(status):
            yield UnchangingFile(file, _find_digest(file), _name_state(status))
            return
        # Imported here, because most digests are known.
        import tempfile

        with tempfile.TemporaryFile(prefix="kcovdbg-") as temporary:
            copy = cast("BinaryIO", temporary)
            digest = _compute_digest(file, copy)
            yield UnchangingFile(copy, digest, _name_state(os.fstat(copy.fileno())))


def combine_digests(digests: list[str]) -> str:
    """Return one digest for several files, in their order."""
    if len(digests) == 1:
        return digests[0]
    from hashlib import sha256

    return sha256("\n".join(digests).encode()).hexdigest()


def _find_digest(file: BinaryIO) -> str:
    status = os.fstat(file.fileno())
    name = _name_state(status)
    known = _read_known()
    if _is_private(status) and name in known:
        return known[name]
    found = _compute_digest(file)
    is_same = _is_settled(status) and _name_state(os.fstat(file.fileno())) == name
    if is_same and status.st_nlink and _is_private(status):
        _remember(known, name, found)
    return found


def _compute_digest(file: BinaryIO, copy: BinaryIO | None = None) -> str:
    """Return the digest of a file's bytes, which are read once.

    :param copy: a new file, to which they are written.
    """
    status = os.fstat(file.fileno())
    size = status.st_size
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(file.name))
    if copy is not None:
        copy.truncate(size)
    from hashlib import sha256

    digest = sha256(size.to_bytes(8, "little"))
    for place, data in _read_blocks(file, size):
        digest.update(place.to_bytes(8, "little"))
        digest.update(data)
        if copy is not None:
            copy.seek(place)
            copy.write(data)
    if copy is not None:
        copy.flush()
    return digest.hexdigest()


def _read_blocks(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over the blocks of a file that are not zeros, each with its place. Blocks are equally
    large, but for the last.

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
    """Return whether one more change would give the file another time."""
    return status.st_ctime_ns + _TICK < time.time_ns()


def _is_private(status: os.stat_result) -> bool:
    """Return whether nobody but this user and root can write a file."""
    is_own = stat.S_ISREG(status.st_mode) and status.st_uid in (os.geteuid(), 0)
    if not is_own or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or status.st_gid == 0 or _is_own_group(status.st_gid)


def _is_own_group(number: int) -> bool:
    """Return whether this user is the only member of a group: most distributions make a group for
    each user.
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_of_user = user.pw_gid == number and group.gr_name == user.pw_name
    return is_of_user and set(group.gr_mem) <= {user.pw_name}


def _find_list() -> Path | None:
    folder = find_user_folder("cache").path
    return None if folder is None else folder / "digests.json"


def _read_known() -> dict[str, str]:
    path = _find_list()
    if path is None:
        return {}
    try:
        known = parse_json(read_input(path, owned=True))
    except (OSError, LimitError, ValueError):
        return {}
    if isinstance(known, dict) and all(isinstance(digest, str) for digest in known.values()):
        return known
    return {}


def _remember(known: dict[str, str], name: str, digest: str) -> None:
    """Add a digest to the list, as its newest. Of two processes at once, one may lose its digest,
    which costs a second.
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
