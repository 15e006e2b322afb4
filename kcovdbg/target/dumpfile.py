# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that a user gives as a dump or as debug info: which is which, whether they are whole, and how to make them readable.

Compressed and flattened ones are unpacked into temporary files, which end with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import mmap
import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final

from kcovdbg.errors import TargetError
from kcovdbg.target import elf, flattened

if TYPE_CHECKING:
    from collections.abc import Iterator

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
KDUMP_MAGIC: Final = b"KDUMP   "
_DISKDUMP_MAGIC: Final = b"DISKDUMP"
_COMPRESSED: Final = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"))
_CHUNK: Final = 1 << 20
_COPY: Final = "write it to a file first, and name that"
_STREAMS: Final = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))


class FileKind(enum.Enum):
    """What a file is, by its first bytes."""

    CORE = "core"
    KDUMP = "kdump"
    FLATTENED = "flattened"
    ELF = "elf"
    OTHER = "other"

    @property
    def is_dump(self) -> bool:
        """Whether it holds memory."""
        return self in (FileKind.CORE, FileKind.KDUMP, FileKind.FLATTENED)


def identify(path: str | os.PathLike[str]) -> FileKind:
    """Tell what a file is; compressed ones by what is in them.

    :raises TargetError: when it can't be read, or is compressed by something else than zstd.
    """
    with open_file(path) as file, contextlib.suppress(EOFError):
        start = file.read(18)
        if start.startswith(ZSTD_MAGIC):
            file.seek(0)
            with _decompressor(file, path) as stream:
                start = stream.read(18)
        _refuse_compressed(start, path)
        return _identify(start)
    return FileKind.OTHER


def _refuse_compressed(start: bytes, path: str | os.PathLike[str]) -> None:
    program = next((program for magic, program in _COMPRESSED if start.startswith(magic)), None)
    if program is not None:
        raise TargetError(
            f"{path} is compressed by {program}",
            hint=f"unpack it first, by {program} -d; what zstd compressed is read as it is",
        )


def _identify(start: bytes) -> FileKind:
    if start.startswith((KDUMP_MAGIC, _DISKDUMP_MAGIC)):
        return FileKind.KDUMP
    if start.startswith(flattened.MAGIC):
        return FileKind.FLATTENED
    if start.startswith(elf.MAGIC) and len(start) >= 18:
        order = ">" if start[5] == 2 else "<"
        return FileKind.CORE if struct.unpack_from(order + "H", start, 16)[0] == elf.ET_CORE else FileKind.ELF
    return FileKind.OTHER


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that the user named.

    :raises TargetError: when it can't be, in one line.
    """
    try:
        # Not opened to find out: that of a pipe waits for who writes into it.
        _refuse_streams(path)
        file = Path(path).open("rb")  # noqa: SIM115 (errors of what is done with it aren't those of opening it)
    except FileNotFoundError:
        raise TargetError(
            f"{path}: no such file", hint="check the name; a relative one starts at the working directory"
        ) from None
    except IsADirectoryError:
        raise TargetError(f"{path} is a directory", hint="name the file in it") from None
    except PermissionError:
        raise TargetError(f"{path}: no permission to read it", hint=_permission_hint(path)) from None
    except (OSError, ValueError) as error:
        raise TargetError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    with file:
        try:
            yield file
        except OSError as error:
            raise TargetError(f"{path} can't be read: {error.strerror or error}", hint=_COPY) from None


def _refuse_streams(path: str | os.PathLike[str]) -> None:
    mode = Path(path).stat().st_mode
    what = next((name for test, name in _STREAMS if test(mode)), None)
    if what is not None:
        raise TargetError(f"{path} is {what}: what is in it can't be read in any order", hint=_COPY)


def _permission_hint(path: str | os.PathLike[str]) -> str:
    return f"dumps are often readable by root only: sudo chown $USER {path}, or run kcovdbg by sudo"


class Unpacked:
    """A file as it can be read: itself, or a temporary file made of it.

    :param path: what to read.
    :param notes: what was done, a line each.
    """

    def __init__(self, path: Path, notes: tuple[str, ...] = ()) -> None:
        self.path = path
        self.notes = notes


def unpack(path: str | os.PathLike[str], *, directory: str | None = None) -> Unpacked:
    """Make a dump or a vmlinux readable: decompress it, put a flattened dump together.

    :param directory: for temporary files; by default where the system wants them (``TMPDIR``).
    :raises TargetError: when it can't be read, or is damaged.
    """
    current = Path(path)
    notes: list[str] = []
    with open_file(current) as file:
        start = file.read(18)
        if start.startswith(ZSTD_MAGIC):
            file.seek(0)
            current = _decompress(file, path, directory)
            notes.append(f"{path} was decompressed to a temporary file of {current.stat().st_size:,} bytes")
    with open_file(current) as file:
        start = file.read(18)
        _refuse_compressed(start, path)
        if _identify(start) is FileKind.FLATTENED:
            file.seek(0)
            current = _reassemble(file, path, directory)
            notes.append(
                f"{path} is in makedumpfile's flattened format and was put together in a temporary file; "
                "makedumpfile -R does that for good"
            )
    return Unpacked(current, tuple(notes))


def _decompress(file: BinaryIO, path: str | os.PathLike[str], directory: str | None) -> Path:
    with _temporary(path, directory) as target:
        try:
            with _decompressor(file, path) as stream:
                while data := stream.read(_CHUNK):
                    _write_sparse(target, data)
        except EOFError:
            raise TargetError(
                f"{path} is truncated: its compressed data ends early", hint="copy it again, or get another one"
            ) from None
        target.flush()
        os.ftruncate(target.fileno(), target.tell())
        return Path(target.name)


def _reassemble(file: BinaryIO, path: str | os.PathLike[str], directory: str | None) -> Path:
    with _temporary(path, directory) as target:
        try:
            flattened.reassemble(file, target)  # type: ignore[arg-type]
        except flattened.FlattenedError as error:
            raise TargetError(f"{path} is truncated or damaged: {error}", hint="copy it again, or take another dump") from None
        return Path(target.name)


@contextlib.contextmanager
def _temporary(path: str | os.PathLike[str], directory: str | None) -> Iterator[IO[bytes]]:
    """Yield a temporary file that is removed at exit, or at once when making it fails."""
    name = directory or tempfile.gettempdir()
    created: Path | None = None
    try:
        # Not removed with the block: drgn opens it by its name.
        with tempfile.NamedTemporaryFile(prefix="kcovdbg-", dir=directory, delete=False) as target:
            created = Path(target.name)
            yield target
    except BaseException as error:
        if created is not None:
            created.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise TargetError(
                f"{path} can't be unpacked in {name}: {error.strerror or error}",
                hint="set TMPDIR to a directory with enough room",
            ) from None
        raise
    atexit.register(_remove, created, os.getpid())


def _remove(path: Path, owner: int) -> None:
    # A forked child that exits must not take its parent's file along.
    if os.getpid() == owner:
        path.unlink(missing_ok=True)


def _write_sparse(target: IO[bytes], data: bytes) -> None:
    """Leave holes where there are only zeros."""
    if data.count(0) == len(data):
        target.seek(len(data), os.SEEK_CUR)
    else:
        target.write(data)


@contextlib.contextmanager
def _decompressor(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield the decompressed stream.

    :raises TargetError: when there is no zstd, or the data is damaged.
    :raises EOFError: when the data ends early.
    """
    try:
        # Python 3.14 has it itself.
        from compression import zstd as standard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        standard = None
    if standard is not None:
        errors: Any = standard.ZstdError
        stream: Any = standard.ZstdFile(file)
    else:
        try:
            import zstandard
        except ImportError:
            raise TargetError(
                f"{path} is compressed with zstd, which this Python can't read",
                hint="pip install zstandard, or decompress it by zstd -d",
            ) from None
        errors = zstandard.ZstdError
        stream = _WholeFrames(zstandard.ZstdDecompressor(), file)
    try:
        yield stream
    except errors as error:
        raise TargetError(f"{path} is damaged: {error}", hint="copy it again, or get another one") from None


class _WholeFrames:
    """zstandard's own stream takes the end of a cut file for the end of the data; this one notices."""

    # A few bytes may stand for 128 KiB; so many decompress to 128 MiB at worst.
    _PIECE: Final = 4096

    def __init__(self, decompressor: Any, file: BinaryIO) -> None:
        self._decompressor = decompressor
        self._file = file
        self._frame: Any = None
        self._rest = b""
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most so many bytes, none at the end of the data.

        :raises EOFError: when the last frame isn't whole.
        """
        while not self._ready:
            data = self._rest or self._file.read(self._PIECE)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError
                return b""
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._frame.decompress(data))
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._frame = None
        taken, self._ready = self._ready[:size], self._ready[size:]
        return bytes(taken)


def check_whole(path: Path, name: str) -> FileKind:
    """Check that an unpacked dump has all that its headers promise.

    :param name: what the user calls it.
    :raises TargetError: when it is no dump, truncated, or its headers are damaged.
    """
    with open_file(path) as file:
        # Of a partition that a dump was written to, stat() says no size.
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        kind = _identify(file.read(18))
        try:
            if kind is FileKind.CORE:
                end = _end_of_core(file)
            elif kind is FileKind.KDUMP:
                end = _end_of_kdump(file)
            else:
                what = "is empty" if not size else "is a program or debug info" if kind is FileKind.ELF else "is no crash dump"
                raise TargetError(
                    f"{name} {what}", hint="a dump is an ELF core or kdump-compressed; vmlinux goes to -s VMLINUX"
                )
        except (elf.ElfError, struct.error) as error:
            raise TargetError(f"{name} is truncated or damaged: {error}", hint="copy it again, or take another dump") from None
    # Files of /proc have memory for content, and any size.
    if end > size and not path.resolve().is_relative_to("/proc"):
        raise TargetError(
            f"{name} is truncated: {size:,} bytes of {end:,}",
            hint="copy it again; while it is still being written, wait",
        )
    return kind


def _end_of_core(file: BinaryIO) -> int:
    header = elf.read_header(file)
    segments = elf.read_segments(file, header)
    if not any(segment.type == elf.PT_LOAD for segment in segments):
        raise elf.ElfError("it holds no memory")
    return max(segment.offset + segment.filesz for segment in segments)


def _end_of_kdump(file: BinaryIO) -> int:
    """Return where the last page's data ends, as far as the headers tell.

    The format (makedumpfile's diskdump_mod.h, IMPLEMENTATION): a block with the header, the sub-headers, the bitmaps, then a
    descriptor for each page in the second bitmap.
    """
    start = elf.read_at(file, 0, 464)
    # Signature, header_version, six strings of utsname, aligned time; then status, block_size, sub_hdr_size, bitmap_blocks.
    order = "<" if 0 < struct.unpack_from("<I", start, 8)[0] < 0x10000 else ">"
    block, sub, bitmaps = struct.unpack_from(order + "III", start, 428)
    if not 512 <= block <= 1 << 20 or sub > 1 << 20 or bitmaps > 1 << 32:
        raise elf.ElfError("its header is damaged")
    descriptors = (1 + sub + bitmaps) * block
    pages = 0
    half = bitmaps * block // 2
    position = (1 + sub) * block + half
    while half > 0:
        piece = elf.read_at(file, position, min(half, _CHUNK))
        pages += int.from_bytes(piece, "little").bit_count()
        position += len(piece)
        half -= len(piece)
    if not pages:
        raise elf.ElfError("it holds no memory")
    layout = struct.Struct(order + "QIIQ")
    last = elf.read_at(file, descriptors + (pages - 1) * layout.size, layout.size)
    offset, size, _, _ = layout.unpack(last)
    return int(max(descriptors + pages * layout.size, offset + size))


def read_notes(path: Path) -> bytes:
    """Return the ELF notes that a dump carries, as they are.

    :raises TargetError: when the dump is damaged.
    """
    with open_file(path) as file:
        try:
            if _identify(file.read(18)) is FileKind.KDUMP:
                return _read_kdump_notes(file)
            return elf.read_note_segments(file, elf.read_header(file))
        except (elf.ElfError, struct.error) as error:
            raise TargetError(f"{path} is truncated or damaged: {error}") from None


def _read_kdump_notes(file: BinaryIO) -> bytes:
    start = elf.read_at(file, 0, 464)
    order = "<" if 0 < struct.unpack_from("<I", start, 8)[0] < 0x10000 else ">"
    version = struct.unpack_from(order + "I", start, 8)[0]
    block = struct.unpack_from(order + "I", start, 428)[0]
    # struct kdump_sub_header of 64-bit machines: phys_base, dump_level, split, start_pfn, end_pfn, offset_vmcoreinfo,
    # size_vmcoreinfo (version 3 on), offset_note, size_note (version 4 on).
    sub = elf.read_at(file, block, 64)
    offset, size, note_offset, note_size = struct.unpack_from(order + "QQQQ", sub, 32)
    if version >= 4 and note_size:
        return elf.read_at(file, note_offset, note_size)
    if version >= 3 and size:
        return elf.make_note("VMCOREINFO", 0, elf.read_at(file, offset, size), order)
    return b""


def find_text(path: Path, text: bytes) -> bool:
    """Tell whether a file holds the text."""
    with open_file(path) as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(text) >= 0
        except ValueError:
            # An empty file can't be mapped.
            return False
