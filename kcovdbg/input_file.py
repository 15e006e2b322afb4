# SPDX-License-Identifier: LGPL-2.1-or-later
"""Open and read files whose content is not trusted, up to a limit: plain files, gzip, xz, lzma,
zstd and text in UTF-16.
"""

from __future__ import annotations

import errno
import json
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias

from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError, name_path, refuse_path
from kcovdbg.limits import (
    TEXT_SIZE,
    TRACE_SIZE,
    count_trace,
    find_limit,
    over_limit,
    room_for_trace,
)

PathName: TypeAlias = "str | os.PathLike[str]"

_KINDS: Final = (
    (stat.S_ISLNK, errno.ELOOP, "a link"),
    (stat.S_ISDIR, errno.EISDIR, os.strerror(errno.EISDIR)),
    (stat.S_ISFIFO, errno.ESPIPE, "a pipe: not seekable"),
    (stat.S_ISSOCK, errno.ESPIPE, "a socket: not seekable"),
    (stat.S_ISCHR, errno.ESPIPE, "a device: not seekable"),
)


def is_file(path: PathName) -> bool:
    """Return whether a path leads to a regular file.

    It is False where that cannot be told. Unlike the methods of Path, this raises nothing for a
    path in an input: that may be too long, have a null character, or be closed to this user.
    """
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: PathName) -> bool:
    """Return whether a path leads to a directory, as :func:`is_file` does."""
    return os.path.isdir(path)  # noqa: PTH112


def is_link(path: PathName) -> bool:
    """Return whether a path is a symbolic link, as :func:`is_file` does."""
    return os.path.islink(path)  # noqa: PTH114


def open_input(path: PathName, *, folder: Path | None = None, owned: bool = False) -> BinaryIO:
    """Open a file for reading. Checks are made on the opened file: by then, the path may lead to
    another one.

    :param folder: a directory that the file must be in, after links are followed: an absolute path
        without links.
    :param owned: accept only a file of this user or root that is not a link.
    :raises OSError: when it cannot be opened, is a pipe, a socket or a character device, is outside
        of the directory, or belongs to another user.
    """
    # Opening a device may already do something, and opening a pipe waits for its other end. A
    # descriptor with O_PATH only stands for the file until its kind is known.
    flags = os.O_PATH | os.O_CLOEXEC
    if owned:
        flags |= os.O_NOFOLLOW
    found = os.open(path, flags)
    try:
        status = os.fstat(found)
        for is_kind, number, problem in _KINDS:
            if is_kind(status.st_mode):
                refuse_path(path, number, problem)
        if owned and status.st_uid not in (os.geteuid(), 0):
            refuse_path(path, errno.EPERM, "a file of another user")
        place = Path(f"/proc/self/fd/{found}")
        if folder is not None and not place.readlink().is_relative_to(folder):
            refuse_path(path, errno.EXDEV, f"outside {folder}")
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            return os.fdopen(os.open(place, flags), "rb")
        except OSError as error:
            raise name_path(error, path) from None
    finally:
        os.close(found)


def find_extents(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Iterate over the parts of a file that are no holes: offset and size.

    :param end: offset at which to stop.
    """
    descriptor = file.fileno()
    while start < end:
        # Restore the position, which the file's buffer relies on.
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
            last = os.lseek(descriptor, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            # A device, or a file system that does not tell.
            first, last = start, end
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
        if first < end:
            yield first, min(last, end) - first
        start = last


_PIECE: Final = 1 << 20


def read_extents(file: BinaryIO, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Iterate over a part of a file in pieces, without holes: offset and bytes."""
    for first, size in find_extents(file, start, end):
        for offset in range(first, first + size, _PIECE):
            file.seek(offset)
            yield offset, file.read(min(_PIECE, first + size - offset))


def read_input(
    path: PathName,
    limit: str = TEXT_SIZE,
    *,
    folder: Path | None = None,
    owned: bool = False,
) -> bytes:
    """Return the content of a file, opened as :func:`open_input` does.

    :param limit: the name of the limit for its size.
    :raises OSError: when it cannot be read.
    :raises LimitError: when it is larger.
    """
    size = find_limit(limit)
    if limit == TRACE_SIZE:
        size = room_for_trace(os.fspath(path))
    with open_input(path, folder=folder, owned=owned) as file:
        data = b""
        if os.fstat(file.fileno()).st_size <= size:
            # Read one more byte than allowed: the size of a file in /proc, or of a block device, is
            # known only then.
            try:
                data = file.read(size + 1)
            except OSError as error:
                raise name_path(error, path) from None
        if len(data) > size or os.fstat(file.fileno()).st_size > size:
            raise over_limit(limit, os.fspath(path))
    return data


# Limit for the values of a JSON text. A value takes 70 bytes of memory or more; a side file has
# some thousands of values.
_MOST_VALUES: Final = 1 << 21


def parse_json(text: bytes | str, *, is_prefix: bool = False) -> Any:
    """Return the value of untrusted JSON.

    :param is_prefix: ignore text after the first value; only for str.
    :raises ValueError: when it is malformed, nested too deeply, has a number of thousands of
        digits, or millions of values.
    """
    data = text
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES:,} values")
    try:
        if is_prefix and isinstance(text, str):
            return json.JSONDecoder().raw_decode(text.lstrip())[0]
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


# No number in an input has more digits. Python's conversion is quadratic, and fails at 4,300.
_MOST_DIGITS: Final = 80


def parse_number(text: bytes | str, base: int = 10) -> int | None:
    """Return the number in a text; None if it is not a number, or has too many digits for one of a
    kernel.

    :param base: the base, as for :class:`int`.
    """
    if len(text) > _MOST_DIGITS:
        return None
    try:
        return int(text, base)
    except ValueError:
        return None


def find_number(value: object) -> int | None:
    """Return the number in a value of JSON, which may be text, with or without 0x; None for another
    value.
    """
    if isinstance(value, str):
        return parse_number(value, 0)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


# Memory for the decompressor of xz, in bytes; xz -9 needs 65 MiB.
_XZ_MEMORY: Final = 1 << 28


class Packing(NamedTuple):
    """A compressed format."""

    magic: bytes
    program: str
    start: Callable[[], Any]
    """Returns a decompressor for one frame; a file may have several. May raise CapabilityError."""


def start_zstd() -> Any:
    """Return a decompressor for one frame of zstd.

    :raises CapabilityError: when this Python has no zstd.
    """
    try:
        # In the standard library since Python 3.14.
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        return zstd.ZstdDecompressor()
    except ImportError:
        pass
    try:
        import zstandard
    except ImportError:
        raise CapabilityError(
            "this Python has no zstd", hint="pip install zstandard, or decompress it first: zstd -d"
        ) from None
    return zstandard.ZstdDecompressor().decompressobj()


def _start_lzma() -> Any:
    return lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_XZ_MEMORY)


# A file of lzma begins with its parameters: the usual ones, and the size of its dictionary. A zero
# would follow in a buffer of 93 records.
_LZMA_STARTS: Final = [b"\x5d" + (1 << bits).to_bytes(4, "little") for bits in range(16, 31)]
_PACKINGS: Final = (
    Packing(b"\x1f\x8b\x08", "gzip", lambda: zlib.decompressobj(16 + zlib.MAX_WBITS)),
    Packing(b"\xfd7zXZ\0", "xz", lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY)),
    Packing(b"\x28\xb5\x2f\xfd", "zstd", start_zstd),
    *(Packing(magic, "lzma", _start_lzma) for magic in _LZMA_STARTS),
)


class OtherPacking(NamedTuple):
    """A compressed format that is not read."""

    magic: bytes
    name: str
    command: str
    """What decompresses it."""


_OTHER_PACKINGS: Final = (
    OtherPacking(b"BZh", "bzip2", "bzip2 -d"),
    OtherPacking(b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
    OtherPacking(b"\x1f\x9d\x90", "compress", "gzip -d"),
    OtherPacking(b"7z\xbc\xaf\x27\x1c", "7z", "7z x"),
    OtherPacking(b"PK\3\4", "zip", "unzip"),
    OtherPacking(b"LZIP", "lzip", "lzip -d"),
    OtherPacking(b"\x89LZO\0", "lzop", "lzop -d"),
)
OTHER_MAGICS: Final = tuple(packing.magic for packing in _OTHER_PACKINGS)
MAGICS: Final = tuple(packing.magic for packing in _PACKINGS)


def find_packing(start: bytes) -> Packing | None:
    """Return the compressed format of a file by its first bytes; None for another file."""
    return next((packing for packing in _PACKINGS if start.startswith(packing.magic)), None)


def find_other_packing(start: bytes) -> OtherPacking | None:
    """Return the compressed format of a file that is not read; None for another file."""
    return next((one for one in _OTHER_PACKINGS if start.startswith(one.magic)), None)


def refuse_packing(path: object, start: bytes) -> None:
    """Make sure that a file is not compressed in a format that is not read.

    :raises TargetError: when it is.
    """
    other = find_other_packing(start)
    if other is not None:
        raise TargetError(
            f"{path} is compressed with {other.name}",
            hint=f"decompress it first: {other.command}; files compressed with gzip, xz, lzma and "
            f"zstd are read as they are",
        )


class FrameReader:
    """Decompress data. Notice if its end is missing, as zstandard's own stream reader does not.

    :param start_frame: makes a decompressor for one frame; each module has its own exceptions for
        damage.
    :param magic: the first bytes of a frame. As for the program gzip, the data ends if other bytes
        follow a frame.
    """

    # Bytes that are decompressed at once. Some bytes may decompress to 128 KiB, so that these may
    # give 32 MiB.
    _PIECE: Final = 1024
    # Some programs fill up a file with zeros, to the size of a tape's block.
    _MOST_PADDING: Final = 1 << 20
    # So many frames of so few bytes are refused: a frame takes as long as tens of KiB.
    _TINY_FRAMES: Final = 1 << 10
    _TINY: Final = 64

    def __init__(self, start_frame: Callable[[], Any], file: BinaryIO, magic: bytes = b"") -> None:
        self._start_frame = start_frame
        self._magic = magic
        self._file = file
        self._frame: Any = None
        self._frames = 0
        self._unpacked = 0
        self._padding = 0
        self._rest = b""
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most so many bytes, none at the end of the data.

        :raises EOFError: when the last frame is incomplete.
        :raises ValueError: when thousands of frames have nearly no data.
        """
        while not self._ready:
            data = self._rest or self._file.read(self._PIECE)
            self._rest = b""
            if self._frame is None:
                data = self._begin_frame(data)
                if not data:
                    return b""
            elif not data:
                raise EOFError("it ends early")
            self._ready = memoryview(self._frame.decompress(data))
            self._unpacked += len(self._ready)
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._frame = None
        taken, self._ready = self._ready[:size], self._ready[size:]
        return bytes(taken)

    def _begin_frame(self, data: bytes) -> bytes:
        """Begin a frame; return its first bytes, none if there are no more frames.

        :param data: the next bytes of the file.
        """
        if 0 < len(data) < len(self._magic):
            data += self._file.read(self._PIECE)
        if self._frames:
            data = self._skip_padding(data)
            if not data.startswith(self._magic):
                return b""
        if not data:
            return b""
        self._frames += 1
        if self._frames > self._TINY_FRAMES and self._unpacked < self._frames * self._TINY:
            raise ValueError(f"{self._frames:,} frames of {self._unpacked:,} bytes together")
        self._frame = self._start_frame()
        return data

    def _skip_padding(self, data: bytes) -> bytes:
        """Skip pieces of zeros after a frame; return the next piece, none after too many."""
        while data and not data.strip(b"\0"):
            self._padding += len(data)
            if self._padding > self._MOST_PADDING:
                return b""
            data = self._file.read(self._PIECE)
            if 0 < len(data) < len(self._magic):
                data += self._file.read(self._PIECE)
        return data

    def read_first(self, size: int) -> bytes:
        """Return the first bytes, or all if there are fewer."""
        # BytesIO.getvalue() makes no copy.
        found = BytesIO()
        while found.tell() < size and (data := self.read(size - found.tell())):
            found.write(data)
        return found.getvalue()


def unpack_data(path: object, data: bytes) -> bytes:
    """Return the contents of a file, decompressed if they are compressed with gzip, xz, lzma or
    zstd.

    :param path: path of the file, for errors.
    :raises KcovdbgError: when the contents are damaged, larger than the limit, or compressed in
        another format.
    """
    packing = find_packing(data)
    if packing is None:
        refuse_packing(path, data)
        count_trace(str(path), len(data))
        return data
    limit = room_for_trace(str(path))
    try:
        unpacked = FrameReader(packing.start, BytesIO(data), packing.magic).read_first(limit + 1)
    except CapabilityError as error:
        raise CapabilityError(f"{path}: {error}", hint=error.hint) from None
    except KcovdbgError:
        raise
    except Exception as error:  # noqa: BLE001 - each module has its own exceptions
        raise KcovdbgError(
            f"{path}: {packing.program} data is damaged: {error}", hint="copy it again"
        ) from None
    count_trace(str(path), len(unpacked))
    return unpacked


# Number of bytes that show whether a text is in UTF-16.
_TEXT_START: Final = 4096
_BYTE_ORDER_MARKS: Final = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_UTF8_MARK: Final = b"\xef\xbb\xbf"


def decode_utf16(data: bytes) -> bytes:
    """Return text in UTF-16 as UTF-8, and other data unchanged, without a byte order mark.

    Do not use it for data that may be a trace: a count of 65,279 looks like a byte order mark.
    """
    start = data[:_TEXT_START]
    order = _BYTE_ORDER_MARKS.get(start[:2])
    if order is None and len(start) >= 4:
        half = start[: len(start) // 2 * 2]
        if not any(half[1::2]) and all(half[::2]):
            order = "utf-16-le"
        elif not any(half[::2]) and all(half[1::2]):
            order = "utf-16-be"
    if order is not None:
        data = data.decode(order, "replace").removeprefix("\ufeff").encode("utf-8", "replace")
    return data.removeprefix(_UTF8_MARK)
