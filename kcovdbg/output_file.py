# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write files. All outputs of kcovdbg are written by these functions.

A regular file is written under another name, and renamed when it is complete: after an error, the
old file is still there. The file has the owner and the mode of a new file, unless it replaces a
file of this user. Links of this user and of root are followed, links of others are not. Devices,
FIFOs and the process's own descriptors (``/dev/stdout``) are written directly.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from kcovdbg.errors import name_path, refuse_path
from kcovdbg.user_folder import expand_user

PRIVATE: Final = 0o600
"""The mode of files with a kernel's memory."""
_PUBLIC: Final = 0o666
_DESCRIPTOR: Final = re.compile(
    r"(?:/proc/(?:self|thread-self|(?P<pid>[0-9]+))|/dev)/fd/(?P<number>[0-9]+)"
)
# The kernel also follows so many links.
_MAX_LINKS: Final = 40
_TEMPORARY: Final = ".kcovdbg-"
_FOLDER_FLAGS: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Mode bits of a directory in which everybody can make files, and remove only their own.
_SHARED: Final = stat.S_ISVTX | stat.S_IWOTH


def accept() -> None:
    """Accept any destination."""


def find_descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the descriptor of this process for a path such as ``/dev/stdout``; None for another
    path.
    """
    name = os.fspath(path)
    for _ in range(_MAX_LINKS):
        match = _DESCRIPTOR.fullmatch(name)
        if match is not None:
            is_own = match["pid"] in (None, str(os.getpid()))
            return int(match["number"]) if is_own else None
        try:
            target = Path(name).readlink()
        except OSError:
            return None
        name = os.path.normpath(os.path.join(os.path.dirname(name), target))  # noqa: PTH118, PTH120
    return None


class _Destination(NamedTuple):
    """An output, found without following links of other users.

    Its directory is open, so that nobody can redirect the output by replacing directories.
    """

    folder: int
    """A descriptor of its directory."""
    name: str
    status: os.stat_result | None
    """None if there is no such file."""
    target: str | None = None
    """If it is a link that is to be followed, the link's destination."""

    def open(self, flags: int, mode: int) -> int:
        """Return a descriptor of the file, which is written in place.

        :raises OSError: when it cannot be opened, or others may have put it there.
        """
        # A link that is still there is another process's descriptor in /proc: open follows it.
        is_link = self.status is not None and stat.S_ISLNK(self.status.st_mode)
        flags |= os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY
        if not is_link:
            flags |= os.O_NOFOLLOW
        descriptor = os.open(self.name, flags, mode, dir_fd=self.folder)
        try:
            self._check_owner(os.fstat(descriptor))
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    @property
    def is_replaceable(self) -> bool:
        """Whether it is a regular file or does not exist."""
        return self.status is None or stat.S_ISREG(self.status.st_mode)

    @property
    def path(self) -> Path:
        """Its path, without links."""
        return Path(f"/proc/self/fd/{self.folder}").readlink() / self.name

    def _check_owner(self, status: os.stat_result) -> None:
        """Refuse to write to a file of another user in a directory that is open to all, as
        fs.protected_regular does.
        """
        has_links = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
        is_shared = os.fstat(self.folder).st_mode & _SHARED == _SHARED
        if is_shared and (has_links or not _is_trusted(status)):
            problem = "made by another user in a directory that is open to all"
            refuse_path(self.path, errno.EACCES, problem)


def _is_trusted(status: os.stat_result) -> bool:
    # The owner of / stands for root: in a container without a root user, it is nobody.
    return status.st_uid in (os.geteuid(), 0, Path("/").stat().st_uid)


@contextlib.contextmanager
def _find_destination(path: str | os.PathLike[str]) -> Iterator[_Destination]:
    """Yield the destination of an output.

    :raises OSError: when there is no such directory, or a link of another user leads there; its
        ``filename`` is the path.
    """
    try:
        destination = _walk(os.fspath(expand_user(path)))
    except OSError as error:
        raise name_path(error, path) from None
    try:
        yield destination
    finally:
        os.close(destination.folder)


def _walk(path: str) -> _Destination:
    """Return the destination of an output; the caller closes its folder."""
    # The next name is the last one, so that the names of a link's destination can be added.
    names = path.split("/")[::-1]
    folder = os.open("/" if path.startswith("/") else ".", _FOLDER_FLAGS)
    links = 0
    destination = _Destination(folder, ".", os.fstat(folder))
    try:
        while names:
            name = names.pop() or "."
            destination = _look_up(folder, name)
            status = destination.status
            if status is None:
                if names:
                    refuse_path(path, errno.ENOENT)
            elif stat.S_ISDIR(status.st_mode):
                entered = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = entered
                destination = _Destination(folder, ".", status)
            elif destination.target is not None:
                links += 1
                if links > _MAX_LINKS:
                    refuse_path(path, errno.ELOOP)
                if not _is_trusted(status):
                    refuse_path(path, errno.EACCES, f"'{name}' is a link of another user")
                names += destination.target.split("/")[::-1]
                if destination.target.startswith("/"):
                    os.close(folder)
                    folder = os.open("/", _FOLDER_FLAGS)
            elif names:
                refuse_path(path, errno.ENOTDIR)
    except BaseException:
        os.close(folder)
        raise
    return destination


def _look_up(folder: int, name: str) -> _Destination:
    """Return an entry of a directory, without following a link."""
    try:
        entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return _Destination(folder, name, None)
    try:
        status, target = os.fstat(entry), None
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink("", dir_fd=entry)
    finally:
        os.close(entry)
    destination = _Destination(folder, name, status, target)
    if target is not None and _DESCRIPTOR.fullmatch(str(destination.path)):
        # Do not follow a descriptor of another process by its name: its file may have no path.
        return destination._replace(target=None)
    return destination


class FoundOutput(NamedTuple):
    """An output before it is written."""

    status: os.stat_result | None
    """The status of the file; None if it does not exist."""
    folder: Path | None
    """The directory of the file, without links; None for a descriptor of this process."""
    is_replaceable: bool
    """Whether it is a regular file or does not exist: then it is written beside and renamed."""


def find_output(path: str | os.PathLike[str]) -> FoundOutput:
    """Return an output as it is now, and how it will be written.

    :raises OSError: when it cannot be looked up.
    """
    descriptor = find_descriptor(expand_user(path))
    if descriptor is not None:
        return FoundOutput(os.fstat(descriptor), None, is_replaceable=False)
    with _find_destination(path) as found:
        status = found.status
        if status is not None and stat.S_ISLNK(status.st_mode):
            status = found.path.stat()
        return FoundOutput(status, found.path.parent, found.is_replaceable)


@contextlib.contextmanager
def open_output(
    path: str | os.PathLike[str],
    *,
    append: bool = False,
    mode: int = _PUBLIC,
    check: Callable[[], None] = accept,
) -> Iterator[BinaryIO]:
    """Open a file for writing.

    :param append: write to the end of the existing file, at once.
    :param mode: permissions of a new file; the umask applies.
    :param check: called before a regular file is changed; raises to keep it as it is.
    :raises OSError: when it cannot be written; its ``filename`` is the path.
    """
    descriptor = find_descriptor(expand_user(path))
    if descriptor is not None:
        # A duplicate shares its offset with the descriptor's other writers.
        with os.fdopen(os.dup(descriptor), "wb") as through:
            yield through
        return
    with _find_destination(path) as destination, _named(path, destination):
        if not destination.is_replaceable:
            with os.fdopen(destination.open(0, mode), "wb") as device:
                yield device
        elif append:
            with io.BufferedWriter(_CheckedFile(destination, mode, check)) as appended:
                yield cast("BinaryIO", appended)
        else:
            old, folder = destination.status, destination.folder
            with _temporary_name(destination) as name:
                with _create(destination, name, mode) as stream:
                    if mode != PRIVATE and old is not None and old.st_uid == os.geteuid():
                        os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode) & 0o777)
                    yield stream
                check()
                os.replace(name, destination.name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def _named(path: str | os.PathLike[str], destination: _Destination) -> Iterator[None]:
    """Replace the output's name in errors by the path that the user gave."""
    try:
        yield
    except OSError as error:
        name = os.fsdecode(error.filename or "")
        is_own = name in ("", destination.name, str(destination.path))
        if is_own or name.startswith(_TEMPORARY):
            raise name_path(error, path) from error
        raise


@contextlib.contextmanager
def _temporary_name(destination: _Destination) -> Iterator[str]:
    """Yield a name for a new file in an output's directory. The file is removed unless it is
    renamed.
    """
    # A suffix of the output's name could be too long.
    name = f"{_TEMPORARY}{os.urandom(6).hex()}"
    try:
        yield name
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=destination.folder)


@contextlib.contextmanager
def _create(destination: _Destination, name: str, mode: int) -> Iterator[BinaryIO]:
    # O_EXCL: nobody else has the file open.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, mode, dir_fd=destination.folder), "wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


class _CheckedFile(io.FileIO):
    """A file to append to; check() is called before the first byte."""

    def __init__(self, destination: _Destination, mode: int, check: Callable[[], None]) -> None:
        super().__init__(destination.open(os.O_APPEND | os.O_CREAT, mode), "a")
        self._check: Callable[[], None] | None = check

    def write(self, data: object) -> int:
        if self._check is not None:
            self._check()
            self._check = None
        return super().write(data)  # type: ignore[arg-type]


def write_files(
    path: str | os.PathLike[str],
    contents: Mapping[str, bytes],
    *,
    mode: int = _PUBLIC,
    check: Callable[[], None] = accept,
) -> None:
    """Write a set of regular files, and rename them when all are complete; on failure, restore the
    old files.

    The last file never exists beside files of another set: its predecessor is moved away first, and
    it is renamed last.

    :param path: the path without a suffix. If it is a link, suffixes are added to its destination.
    :param contents: a suffix of the path -> the content of that file.
    :param check: called before anything is renamed; raises to keep the old files.
    :raises OSError: when one cannot be written; its ``filename`` is the path.
    """
    with _find_destination(path) as main, contextlib.ExitStack() as stack:
        destinations = {}
        for suffix in contents:
            destination = destinations[suffix] = _look_up(main.folder, main.name + suffix)
            stack.enter_context(_named(os.fspath(path) + suffix, destination))
            if not destination.is_replaceable:
                refuse_path(destination.name, errno.EINVAL, "not a regular file")
        new = {
            suffix: stack.enter_context(_temporary_name(destination))
            for suffix, destination in destinations.items()
        }
        for suffix, content in contents.items():
            with _create(main, new[suffix], mode) as stream:
                stream.write(content)
        check()
        names = [(new[suffix], destination.name) for suffix, destination in destinations.items()]
        _rename_all(main.folder, names)


def _rename_all(folder: int, names: Sequence[tuple[str, str]]) -> None:
    """Rename files, in order; on failure, restore the files that they replaced."""
    rename = partial(os.rename, src_dir_fd=folder, dst_dir_fd=folder)
    older: dict[str, str] = {}
    placed: list[str] = []
    try:
        for _, name in reversed(names):
            backup = f"{_TEMPORARY}{os.urandom(6).hex()}"
            with contextlib.suppress(FileNotFoundError):
                rename(name, backup)
                older[backup] = name
        for temporary, name in names:
            rename(temporary, name)
            placed.append(name)
    except BaseException:
        with contextlib.suppress(OSError):
            for name in placed:
                os.unlink(name, dir_fd=folder)
        # The last file was moved away first: restore it last.
        for backup, name in reversed(older.items()):
            with contextlib.suppress(OSError):
                rename(backup, name)
        raise
    for backup in older:
        with contextlib.suppress(OSError):
            os.unlink(backup, dir_fd=folder)
