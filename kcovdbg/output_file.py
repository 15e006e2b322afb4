# SPDX-License-Identifier: LGPL-2.1-or-later
"""The one writer of files.

A regular file is written beside and renamed when it is complete: after an error the old file is still there. Links are
followed. Devices, FIFOs and the process's own descriptors (``/dev/stdout``) cannot be replaced, and are written through.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final, cast

_DESCRIPTOR: Final = re.compile(r"(?:/proc/(?:self|thread-self|(?P<pid>[0-9]+))|/dev)/fd/(?P<number>[0-9]+)")
# As many as the kernel follows.
_MAX_LINKS: Final = 40


def accept() -> None:
    """Accept any destination."""


def find_descriptor(path: str | os.PathLike[str]) -> int | None:
    """Return the descriptor of this process that a path such as ``/dev/stdout`` stands for, None for other paths."""
    name = os.fspath(path)
    for _ in range(_MAX_LINKS):
        match = _DESCRIPTOR.fullmatch(name)
        if match is not None:
            return int(match["number"]) if match["pid"] in (None, str(os.getpid())) else None
        try:
            target = Path(name).readlink()
        except OSError:
            return None
        name = os.path.normpath(os.path.join(os.path.dirname(name), target))  # noqa: PTH118, PTH120
    return None


def stat_output(path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of an output that exists, None of one that does not.

    :raises OSError: when it cannot be looked up.
    """
    path = Path(path).expanduser()
    descriptor = find_descriptor(path)
    if descriptor is not None:
        return os.fstat(descriptor)
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def is_replaceable(path: str | os.PathLike[str]) -> bool:
    """Return whether an output is a regular file, or does not exist: then it is written beside and renamed.

    :raises OSError: when it cannot be looked up.
    """
    found = stat_output(path)
    return found is None or (stat.S_ISREG(found.st_mode) and find_descriptor(Path(path).expanduser()) is None)


@contextlib.contextmanager
def open_output(
    path: str | os.PathLike[str], *, append: bool = False, check: Callable[[], None] = accept
) -> Iterator[BinaryIO]:
    """Open a file for writing.

    :param append: write to the end of the existing file, at once.
    :param check: called before a regular file is changed; raises to keep it as it is.
    :raises OSError: when it cannot be written; its ``filename`` is the path.
    """
    real = Path(os.path.realpath(Path(path).expanduser()))
    try:
        with _open(path, real, append, check) as stream:
            yield stream
    except OSError as error:
        if error.filename is None or Path(os.fsdecode(error.filename)).parent == real.parent:
            raise OSError(error.errno or errno.EIO, error.strerror or str(error), os.fspath(path)) from error
        # An error of the caller with another file.
        raise


@contextlib.contextmanager
def _open(path: str | os.PathLike[str], real: Path, append: bool, check: Callable[[], None]) -> Iterator[BinaryIO]:
    descriptor = find_descriptor(Path(path).expanduser())
    if descriptor is not None:
        # A duplicate shares the offset with everything else that is written to it.
        with os.fdopen(os.dup(descriptor), "wb") as through:
            yield through
        return
    found = stat_output(real)
    if found is not None and not stat.S_ISREG(found.st_mode):
        with real.open("wb") as device:
            yield device
        return
    if append:
        with io.BufferedWriter(_CheckedFile(real, check)) as appended:
            yield cast("BinaryIO", appended)
        return
    temporary = _temporary_of(real)
    try:
        # Exclusive, and with the umask's permissions, unlike tempfile's.
        with temporary.open("xb") as stream:
            if found is not None:
                with contextlib.suppress(OSError):
                    # Only root may give files away.
                    os.fchown(stream.fileno(), found.st_uid, found.st_gid)
                os.fchmod(stream.fileno(), stat.S_IMODE(found.st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        check()
        temporary.replace(real)
    finally:
        temporary.unlink(missing_ok=True)


class _CheckedFile(io.FileIO):
    """A file that is checked before the first byte is appended to it."""

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        super().__init__(os.fspath(path), "a")
        self._check: Callable[[], None] | None = check

    def write(self, data: object) -> int:
        if self._check is not None:
            self._check()
            self._check = None
        return super().write(data)  # type: ignore[arg-type]


def write_files(contents: Mapping[Path, bytes], *, check: Callable[[], None] = accept) -> None:
    """Write regular files and rename them when all are complete; on failure, leave everything as it was.

    The last file is renamed last, and an older one is moved aside first: at no moment does it stand beside another one's
    companions.

    :param check: called before anything is renamed; raises to keep the old files.
    :raises OSError: when one cannot be written; its ``filename`` is the path.
    """
    written: dict[Path, Path] = {}
    older: dict[Path, Path] = {}
    placed: list[Path] = []
    is_complete = False
    resolved = {Path(os.path.realpath(path)): content for path, content in contents.items()}
    for path in resolved:
        if not is_replaceable(path):
            raise OSError(errno.EISDIR if path.is_dir() else errno.EINVAL, "not a regular file", os.fspath(path))
    try:
        for path, content in resolved.items():
            temporary = _temporary_of(path)
            with temporary.open("xb") as file:
                written[temporary] = path
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        check()
        for path in reversed(resolved):
            backup = _temporary_of(path)
            with contextlib.suppress(FileNotFoundError):
                path.rename(backup)
                older[backup] = path
        for temporary, path in written.items():
            temporary.replace(path)
            placed.append(path)
        is_complete = True
        for backup in older:
            backup.unlink(missing_ok=True)
    except OSError as error:
        place = os.fspath(next(iter(resolved))) if error.filename is None else os.fsdecode(error.filename)
        shown = next((os.fspath(path) for temporary, path in written.items() if os.fspath(temporary) == place), place)
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), shown) from error
    finally:
        if not is_complete:
            _put_back(placed, older)
        for temporary in written:
            temporary.unlink(missing_ok=True)


def _temporary_of(path: Path) -> Path:
    # Not made from the file's own name, which may be as long as names can be.
    return path.with_name(f".kcovdbg-{os.urandom(6).hex()}")


def _put_back(placed: Sequence[Path], older: dict[Path, Path]) -> None:
    with contextlib.suppress(OSError):
        for path in placed:
            path.unlink(missing_ok=True)
    # In reverse order, the last one comes last again.
    for backup, path in reversed(older.items()):
        with contextlib.suppress(OSError):
            backup.replace(path)
