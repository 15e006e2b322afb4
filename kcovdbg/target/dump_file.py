# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that a user gives as a dump or as debug info: what they are, whether they are whole, and their plain contents.

Compressed and flattened files are unpacked to temporary files, which are removed when the process ends.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import mmap
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_CORE, MAGIC
from kcovdbg.elf.note import Note, find_vmcoreinfo, parse_notes
from kcovdbg.elf.segment import PT_LOAD
from kcovdbg.errors import TargetError
from kcovdbg.target import flattened_dump as flattened
from kcovdbg.target.kdump_file import DISKDUMP_MAGIC, KDUMP_MAGIC, KdumpFile, MissingPages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_COMPRESSED: Final = ((b"\x1f\x8b", "gzip"), (b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"))
_CHUNK: Final = 1 << 20
_COPY: Final = "write it to a file first, and give that"
_GET_AGAIN: Final = "copy it again, or take another dump"
_STREAMS: Final = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))


class FileKind(enum.Enum):
    """The kind of a file, by its first bytes."""

    CORE = "core"
    KDUMP = "kdump"
    FLATTENED = "flattened"
    ELF = "elf"
    OTHER = "other"

    @property
    def is_dump(self) -> bool:
        """Whether it has memory of a kernel."""
        return self in (FileKind.CORE, FileKind.KDUMP, FileKind.FLATTENED)


def identify(path: str | os.PathLike[str]) -> FileKind:
    """Return the kind of a file; of a compressed one, the kind of its contents.

    :raises TargetError: when it cannot be read, or is compressed by another program than zstd.
    """
    with open_file(path) as file, contextlib.suppress(EOFError):
        start = file.read(18)
        if start.startswith(ZSTD_MAGIC):
            file.seek(0)
            with _decompressor(file, path) as stream:
                start = stream.read(18)
        _refuse_compressed(start, path)
        return identify_start(start)
    return FileKind.OTHER


def _refuse_compressed(start: bytes, path: str | os.PathLike[str]) -> None:
    program = next((program for magic, program in _COMPRESSED if start.startswith(magic)), None)
    if program is not None:
        raise TargetError(
            f"{path} is compressed with {program}",
            hint=f"decompress it first: {program} -d; files compressed with zstd are read as they are",
        )


def identify_start(start: bytes) -> FileKind:
    """Return the kind of a file by its first 18 bytes, as they are."""
    if start.startswith((KDUMP_MAGIC, DISKDUMP_MAGIC)):
        return FileKind.KDUMP
    if start.startswith(flattened.MAGIC):
        return FileKind.FLATTENED
    if start.startswith(MAGIC) and len(start) >= 18:
        # e_type, behind e_ident.
        kind = int.from_bytes(start[16:18], "big" if start[5] == 2 else "little")
        return FileKind.CORE if kind == ET_CORE else FileKind.ELF
    return FileKind.OTHER


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that the user named.

    :raises TargetError: when it cannot be opened or read.
    """
    try:
        # Opening a pipe would wait for a writer.
        _refuse_streams(path)
        file = Path(path).open("rb")  # noqa: SIM115 (errors in the block are not those of opening)
    except FileNotFoundError:
        raise TargetError(f"{path}: no such file", hint=path_hint(path)) from None
    except IsADirectoryError:
        raise TargetError(f"{path} is a directory", hint="give a file in it") from None
    except PermissionError:
        raise TargetError(f"{path}: no permission to read", hint=_permission_hint(path)) from None
    except (OSError, ValueError) as error:
        raise TargetError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    with file:
        try:
            yield file
        except OSError as error:
            raise TargetError(f"could not read {path}: {error.strerror or error}", hint=_COPY) from None


def _refuse_streams(path: str | os.PathLike[str]) -> None:
    mode = Path(path).stat().st_mode
    what = next((name for test, name in _STREAMS if test(mode)), None)
    if what is not None:
        raise TargetError(f"{path} is {what}: not seekable", hint=_COPY)


def path_hint(path: str | os.PathLike[str]) -> str:
    """Return a hint for a path that does not exist."""
    if not Path(path).is_absolute():
        return "a relative path starts at the working directory"
    missing = [parent for parent in reversed(Path(path).parents) if not parent.exists()]
    return f"there is no directory {missing[0]}" if missing else f"ls {Path(path).parent} lists the files there"


def _permission_hint(path: str | os.PathLike[str]) -> str:
    return f"dumps are often readable by root only: sudo chown $USER {path}, or run kcovdbg by sudo"


class UnpackedFile(NamedTuple):
    """A file that drgn and our readers can read: the user's, or a temporary one made of it."""

    path: Path
    notes: tuple[str, ...] = ()
    """How it was unpacked, a line each."""
    problem: str | None = None
    """Why it is not whole."""


def unpack(path: str | os.PathLike[str]) -> UnpackedFile:
    """Return a dump or a vmlinux decompressed, a flattened dump reassembled.

    :raises TargetError: when it cannot be read, is truncated or damaged.
    """
    unpacked = _unpack(path)
    if unpacked.problem is not None:
        raise TargetError(f"{path} is truncated: {unpacked.problem}", hint=_GET_AGAIN)
    return unpacked


def unpack_dump(path: str | os.PathLike[str]) -> UnpackedFile:
    """Return a dump as :func:`unpack` does; of one that was cut, what there is, with a note on what is missing.

    :raises TargetError: when it is not a dump, or nothing in it can be read.
    """
    unpacked = _unpack(path)
    with open_file(unpacked.path) as file:
        # stat() has no size of a partition that a dump was written to.
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        kind = identify_start(file.read(18))
        if kind is FileKind.KDUMP:
            pages = KdumpFile(file, str(path)).find_missing()
            if not pages.missing:
                return _with_problem(unpacked, path)
            if pages.missing == pages.total:
                raise _truncated(path, f"none of its {pages.total:,} pages is whole")
            file.seek(0)
            note = f"{path} is truncated: {pages.missing:,} of {pages.total:,} pages are missing"
            return UnpackedFile(_mend(file, pages, path), (*unpacked.notes, note))
        if kind is not FileKind.CORE:
            problem = "empty" if not size else "a program or debug info" if kind is FileKind.ELF else "not a crash dump"
            if unpacked.problem is not None:
                raise _truncated(path, unpacked.problem)
            raise TargetError(
                f"{path} is {problem}", hint="a dump is an ELF core or kdump-compressed; give a vmlinux with -s VMLINUX"
            )
    first, end = _find_memory(unpacked.path, str(path))
    # Files in /proc are memory, and have any size.
    if end <= size or unpacked.path.resolve().is_relative_to("/proc"):
        return _with_problem(unpacked, path)
    if size <= first:
        raise _truncated(path, f"{size:,} bytes of {end:,}")
    note = f"{path} is truncated: {end - size:,} of {end:,} bytes are missing"
    return UnpackedFile(unpacked.path, (*unpacked.notes, note))


def _with_problem(unpacked: UnpackedFile, path: str | os.PathLike[str]) -> UnpackedFile:
    """Return a dump with a note on its problem, when nothing that it refers to is missing."""
    if unpacked.problem is None:
        return unpacked
    return unpacked._replace(notes=(*unpacked.notes, f"{path} is truncated: {unpacked.problem}"))


def _truncated(path: str | os.PathLike[str], problem: str) -> TargetError:
    return TargetError(f"{path} is truncated: {problem}", hint="copy it again; if it is still being written, wait")


def _mend(file: BinaryIO, pages: MissingPages, path: str | os.PathLike[str]) -> Path:
    """Return a copy of a kdump-compressed dump without its incomplete pages.

    libkdumpfile maps the file, and a read of a page behind its end would end the process. It refuses descriptors of zeros.
    """
    with _temporary(path) as target:
        while data := file.read(_CHUNK):
            _write_sparse(target, data)
        os.ftruncate(target.fileno(), max(target.tell(), pages.end))
        for offset, size in pages.runs:
            target.seek(offset)
            target.write(bytes(size))
        return Path(target.name)


def _unpack(path: str | os.PathLike[str]) -> UnpackedFile:
    current = Path(path)
    notes: list[str] = []
    problem: str | None = None
    with open_file(current) as file:
        start = file.read(18)
        if start.startswith(ZSTD_MAGIC):
            file.seek(0)
            current, problem = _decompress(file, path)
            notes.append(f"{path} was decompressed to a temporary file of {current.stat().st_size:,} bytes")
    with open_file(current) as file:
        start = file.read(18)
        _refuse_compressed(start, path)
        if identify_start(start) is FileKind.FLATTENED:
            file.seek(0)
            current, cut = _reassemble(file, path)
            problem = problem or cut
            notes.append(
                f"{path} is in makedumpfile's flattened format and was reassembled in a temporary file; "
                "makedumpfile -R does so permanently"
            )
    return UnpackedFile(current, tuple(notes), problem)


def _decompress(file: BinaryIO, path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Return the decompressed file, and where it was cut or None."""
    problem = None
    with _temporary(path) as target:
        try:
            with _decompressor(file, path) as stream:
                while data := stream.read(_CHUNK):
                    _write_sparse(target, data)
        except EOFError:
            problem = "its compressed data ends early"
        target.flush()
        os.ftruncate(target.fileno(), target.tell())
        return Path(target.name), problem


def _reassemble(file: BinaryIO, path: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """Return the reassembled file, and where it was cut or None."""
    with _temporary(path) as target:
        try:
            problem = flattened.reassemble(file, target).problem  # type: ignore[arg-type]
        except flattened.FlattenedError as error:
            raise TargetError(f"{path} is truncated or damaged: {error}", hint=_GET_AGAIN) from None
        return Path(target.name), problem


@contextlib.contextmanager
def _temporary(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a temporary file that is removed at exit, or at once when the block fails."""
    name = tempfile.gettempdir()
    created: Path | None = None
    try:
        # Kept after the block: drgn opens it by its name.
        with tempfile.NamedTemporaryFile(prefix="kcovdbg-", delete=False) as target:
            created = Path(target.name)
            yield target
    except BaseException as error:
        if created is not None:
            created.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise TargetError(
                f"could not unpack {path} in {name}: {error.strerror or error}",
                hint="set TMPDIR to a directory with enough space",
            ) from None
        raise
    atexit.register(_remove, created, os.getpid())


def _remove(path: Path, owner: int) -> None:
    # A forked child must not remove its parent's file when it exits.
    if os.getpid() == owner:
        path.unlink(missing_ok=True)


def _write_sparse(target: IO[bytes], data: bytes) -> None:
    """Write data, zeros as a hole."""
    if data.count(0) == len(data):
        target.seek(len(data), os.SEEK_CUR)
    else:
        target.write(data)


@contextlib.contextmanager
def _decompressor(file: BinaryIO, path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield the decompressed stream.

    :raises TargetError: when this Python has no zstd, or the data is damaged.
    :raises EOFError: when the data ends early.
    """
    try:
        # In the standard library since Python 3.14.
        from compression import zstd as standard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        standard = None
    if standard is not None:
        errors: Any = standard.ZstdError
        # ZstdFile loses what it has decompressed before an early end.
        start_frame: Callable[[], Any] = standard.ZstdDecompressor
    else:
        try:
            import zstandard
        except ImportError:
            raise TargetError(
                f"cannot decompress {path}: this Python has no zstd",
                hint="pip install zstandard, or decompress it first: zstd -d",
            ) from None
        errors = zstandard.ZstdError
        start_frame = zstandard.ZstdDecompressor().decompressobj
    try:
        yield cast("BinaryIO", _WholeFrames(start_frame, file))
    except errors as error:
        raise TargetError(f"{path} is damaged: {error}", hint=_GET_AGAIN) from None


class _WholeFrames:
    """Decompressed data up to its early end, which is noticed; zstandard's own stream reader does not notice it.

    :param start_frame: makes a decompressor of one frame.
    """

    # A block of a few bytes may decompress to 128 KiB: at most 128 MiB for so many bytes.
    _PIECE: Final = 4096

    def __init__(self, start_frame: Callable[[], Any], file: BinaryIO) -> None:
        self._start_frame = start_frame
        self._file = file
        self._frame: Any = None
        self._rest = b""
        self._ready = memoryview(b"")

    def read(self, size: int) -> bytes:
        """Return at most so many bytes, none at the end of the data.

        :raises EOFError: when the last frame is incomplete.
        """
        while not self._ready:
            data = self._rest or self._file.read(self._PIECE)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError
                return b""
            if self._frame is None:
                self._frame = self._start_frame()
            self._ready = memoryview(self._frame.decompress(data))
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._frame = None
        taken, self._ready = self._ready[:size], self._ready[size:]
        return bytes(taken)


def _find_memory(path: Path, name: str) -> tuple[int, int]:
    """Return where the memory of a core starts in the file, and where it ends."""
    with ElfFile(path, name) as core:
        memory = [segment for segment in core.segments if segment.type == PT_LOAD]
        if not memory:
            raise TargetError(f"{name} is truncated or damaged: it has no memory", hint=_GET_AGAIN)
        # Without its notes nothing of the dump can be found.
        core.read_notes()
        return min(segment.offset for segment in memory), max(segment.offset + segment.filesz for segment in memory)


def read_notes(path: Path) -> bytes:
    """Return the ELF notes of an unpacked dump as they are.

    :raises TargetError: when the dump is damaged.
    """
    with open_file(path) as file:
        if identify_start(file.read(18)) is FileKind.KDUMP:
            return KdumpFile(file, str(path)).read_notes()
    with ElfFile(path) as core:
        return core.read_notes()


def parse_dump_notes(path: Path) -> Iterator[Note]:
    """Yield the ELF notes of an unpacked dump.

    :raises TargetError: when the dump is damaged.
    """
    notes = read_notes(path)
    # A kdump-compressed dump does not say in which byte order its notes are; in the wrong one, all of them are too long.
    return iter([*parse_notes(notes, "<")] or [*parse_notes(notes, ">")])


def read_vmcoreinfo(path: Path) -> dict[str, str]:
    """Return the lines ``KEY=value`` of an unpacked dump's VMCOREINFO; empty when it has none.

    :raises TargetError: when the dump is damaged.
    """
    return find_vmcoreinfo(parse_dump_notes(path))


def find_text(path: Path, text: bytes) -> bool:
    """Return whether a file has the text somewhere."""
    with open_file(path) as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return content.find(text) >= 0
        except ValueError:
            # An empty file cannot be mapped.
            return False
