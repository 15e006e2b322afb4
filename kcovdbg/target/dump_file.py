# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that a user gives as a dump or as debug info: finds their kind and their damage, and
unpacks them.

Compressed images and debug files are unpacked into the cache, from which copies without use are
removed. Compressed and flattened dumps are unpacked to temporary files, which are removed when the
process ends.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import re
import shlex
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import (
    ET_CORE,
    MAGIC,
    PT_LOAD,
    Note,
    find_vmcoreinfo,
    parse_notes,
    parse_vmcoreinfo,
)
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.file_digest import UnchangingFile, open_unchanging
from kcovdbg.input_file import (
    MAGICS,
    OTHER_MAGICS,
    FrameReader,
    PathName,
    find_packing,
    open_input,
    read_extents,
    refuse_packing,
)
from kcovdbg.limits import UNPACKED_CACHE, UNPACKED_SIZE, find_limit, over_limit
from kcovdbg.user_folder import find_user_folder, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kcovdbg.target.kdump_file import MissingPages

KDUMP_MAGIC: Final = b"KDUMP   "
DISKDUMP_MAGIC: Final = b"DISKDUMP"
FLATTENED_MAGIC: Final = b"makedumpfile\0\0\0\0"
NOTE_NAME: Final = "KCOVDBG"
"""The name of kcovdbg's own notes, which other tools ignore."""
NOTE_SLICE: Final = 0
NOTE_INCONSISTENT: Final = 1
_CHUNK: Final = 1 << 20
# A dump may be this many times larger than its compressed file: the memory of a machine that has
# just booted is mostly zeros.
_RATIO: Final = 100
_PAGE_SIZE: Final = 4096
# Bytes by which identify_start() decides: e_ident and e_type of an ELF header.
_MAGIC_SIZE: Final = 18
# Limit for the bytes of text before a dump: ssh prints warnings and a banner.
_MAX_TEXT: Final = 64 << 10
_DUMP_MAGIC: Final = re.compile(
    b"|".join(
        re.escape(magic) for magic in (MAGIC, KDUMP_MAGIC, DISKDUMP_MAGIC, FLATTENED_MAGIC, *MAGICS)
    )
)
# Control characters that text does not have.
_NO_TEXT: Final = re.compile(rb"[\0-\x06\x0e-\x1a\x1c-\x1f]")
_COPY: Final = "write it to a file first, and give that"
_GET_AGAIN: Final = "copy it again, or take another dump"
_MAX_LAYERS: Final = 4


class FileKind(enum.Enum):
    """The kind of a file, by its first bytes."""

    CORE = "core"
    KDUMP = "kdump"
    FLATTENED = "flattened"
    ELF = "elf"
    EMPTY = "empty"
    """Only white space."""
    OTHER = "other"

    @property
    def is_dump(self) -> bool:
        """Whether it has memory of a kernel."""
        return self in (FileKind.CORE, FileKind.KDUMP, FileKind.FLATTENED)


def identify(path: PathName) -> FileKind:
    """Return the kind of a file; for a compressed file, the kind of its contents.

    :raises TargetError: when it is unreadable, or is compressed in an unsupported format.
    """
    with open_file(path) as file, contextlib.suppress(EOFError):
        start = _find_start(file)
        if start.data.startswith(MAGICS):
            file.seek(start.offset)
            with _decompressor(file, path) as stream:
                start = _find_start(stream)
        refuse_packing(path, start.data)
        return identify_start(start.data)
    return FileKind.OTHER


class _Start(NamedTuple):
    """The start of a file's contents, after text in front of a dump."""

    offset: int
    data: bytes
    """The first bytes there; empty for a file of white space."""


def _find_start(file: BinaryIO | FrameReader) -> _Start:
    """Find the start of a file's contents. A dump that came over ssh may begin with warnings of
    ssh.

    :param file: at its start; its position is changed.
    """
    data = file.read(_MAGIC_SIZE)
    if identify_start(data) is not FileKind.OTHER or data.startswith((*MAGICS, *OTHER_MAGICS)):
        return _Start(0, data)
    while len(data) < _MAX_TEXT and (more := file.read(_MAX_TEXT - len(data))):
        data += more
    for found in _DUMP_MAGIC.finditer(data):
        start = data[found.start() : found.start() + _MAGIC_SIZE]
        # A text may have the name of a format. In a header, zeros follow the name.
        is_dump = identify_start(start).is_dump and b"\0" in start[8:]
        if is_dump or start.startswith(MAGICS):
            is_text = _NO_TEXT.search(data, 0, found.start()) is None
            return _Start(found.start(), start) if is_text else _Start(0, data)
    return _Start(0, data if data.strip() else b"")


def identify_start(start: bytes) -> FileKind:
    """Return the kind of a file by its first 18 bytes."""
    if start.startswith((KDUMP_MAGIC, DISKDUMP_MAGIC)):
        return FileKind.KDUMP
    if start.startswith(FLATTENED_MAGIC):
        return FileKind.FLATTENED
    if start.startswith(MAGIC) and len(start) >= 18:
        # e_type follows e_ident.
        kind = int.from_bytes(start[16:18], "big" if start[5] == 2 else "little")
        return FileKind.CORE if kind == ET_CORE else FileKind.ELF
    return FileKind.OTHER if start else FileKind.EMPTY


_NAMES: Final = {
    FileKind.CORE: "an ELF core",
    FileKind.KDUMP: "a kdump-compressed dump",
    FileKind.FLATTENED: "a flattened dump",
}


@contextlib.contextmanager
def open_file(path: PathName) -> Iterator[BinaryIO]:
    """Open a file that the user named.

    :raises TargetError: when it cannot be opened or read.
    """
    try:
        # Only errors of opening are handled here, not those of the block.
        file = open_input(path)
    except FileNotFoundError:
        raise TargetError(f"{path}: no such file", hint=path_hint(path)) from None
    except IsADirectoryError:
        raise TargetError(f"{path} is a directory", hint="give a file in it") from None
    except PermissionError:
        hint = (
            f"dumps are often readable by root only: sudo chown $USER {path}, or run kcovdbg by "
            f"sudo"
        )
        raise TargetError(f"{path}: no permission to read", hint=hint) from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ESPIPE:
            raise TargetError(f"{path} is {getattr(error, 'strerror', '')}", hint=_COPY) from None
        raise TargetError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    with file:
        try:
            yield file
        except OSError as error:
            raise TargetError(
                f"could not read {path}: {error.strerror or error}", hint=_COPY
            ) from None


def path_hint(path: PathName) -> str:
    """Return a hint for a path that does not exist."""
    if not Path(path).is_absolute():
        return "a relative path starts at the working directory"
    for parent in reversed(Path(path).parents):
        if not parent.exists():
            return f"there is no directory {parent}"
    return f"ls {Path(path).parent} lists the files there"


# The unpacked files in use: the path of a file in /proc is valid while the file is open.
_KEPT: Final[list[IO[bytes]]] = []


class UnpackedFile(NamedTuple):
    """A file that drgn and kcovdbg can read: the user's file, or an unpacked copy of it."""

    path: Path
    notes: tuple[str, ...] = ()
    """Lines on its unpacking and its damage."""
    damage: tuple[str, ...] = ()
    """The lines on its damage alone."""
    problem: str | None = None
    """Why it is not whole; None if it is."""


def working_path(path: str | None) -> str | None:
    """Return a path that opens a file of drgn. drgn resolves the link to an unpacked file, which
    may have no other name.
    """
    if path is None or Path(path).exists():
        return path
    for link in map(_open_path, _KEPT):
        if str(link.readlink()) == path:
            return str(link)
    return path


def unpack(path: PathName) -> UnpackedFile:
    """Decompress a dump or a vmlinux, and reassemble a flattened dump.

    :raises TargetError: when it is unreadable, truncated or damaged.
    """
    unpacked = _unpack_to_cache(path) or _unpack(path)
    if unpacked.problem is not None:
        raise _truncated(path, unpacked.problem)
    return unpacked


def _unpack_to_cache(path: PathName) -> UnpackedFile | None:
    """Unpack a compressed image or debug file into the cache, unless it is there already.

    The name of a copy is the digest of the compressed bytes.

    :return: None for another file, or if there is no cache.
    """
    with open_file(path) as file:
        if find_packing(file.read(_MAGIC_SIZE)) is None:
            return None
        cache = find_user_folder("cache").path
        if cache is None or find_limit(UNPACKED_CACHE) == 0:
            return None
        folder = cache / "unpacked"
        file.seek(0)
        with contextlib.suppress(EOFError), _decompressor(file, path) as stream:
            if identify_start(stream.read(_MAGIC_SIZE)) is not FileKind.ELF:
                return None
    try:
        with open_unchanging(path) as unchanging:
            kept = folder / unchanging.digest
            copy = _use_copy(kept)
            notes: tuple[str, ...] = ()
            if copy is None:
                _make_copy(unchanging, kept, path)
                copy = _use_copy(kept)
                if copy is None:
                    return None
                notes = (f"{path} was unpacked to {kept}, {kept.stat().st_size:,} bytes",)
    except EOFError:
        raise _truncated(path, "its compressed data ends early") from None
    except OSError:
        # The caller makes a temporary file instead.
        return None
    _KEPT.append(copy)
    if _remove_old_copies(folder):
        return UnpackedFile(kept, notes)
    # The copies that processes use exceed the limit: this one is removed when the process ends.
    kept.unlink(missing_ok=True)
    return UnpackedFile(_open_path(copy), (f"{path} was decompressed to a temporary file",))


def _use_copy(kept: Path) -> BinaryIO | None:
    """Open a copy in the cache, None if there is none. No other process removes it while it is
    open.
    """
    try:
        copy = open_input(kept, owned=True)
        fcntl.flock(copy, fcntl.LOCK_SH)
        status = os.fstat(copy.fileno())
        # Copies that were used longest ago are removed first; file systems need not keep the time
        # of use.
        os.utime(copy.fileno(), ns=(time.time_ns(), status.st_mtime_ns))
        is_there = status.st_nlink > 0
    except OSError:
        return None
    if is_there:
        return copy
    # Another process removed it before it was locked.
    copy.close()
    return None


def _make_copy(found: UnchangingFile, kept: Path, path: PathName) -> None:
    """Unpack a file into the cache.

    :param kept: the path of the copy.
    :param path: the path of the file, for errors.
    :raises TargetError: when the file changed during the read.
    :raises EOFError: when the file's data ends early.
    :raises OSError: when the copy cannot be written.
    """
    make_folder(kept.parent)
    from kcovdbg.output_file import PRIVATE, open_output

    def check() -> None:
        if not found.is_unchanged():
            raise TargetError(
                f"{path} was changed while it was read", hint="give it again when nothing writes it"
            )

    found.file.seek(0)
    # The copy gets its name when it is complete.
    with (
        open_output(kept, mode=PRIVATE, check=check) as target,
        _decompressor(found.file, path) as stream,
    ):
        _copy(stream, target, path)


# Seconds after which a copy that nothing used is removed.
_OLD: Final = 30 * 86400


def _remove_old_copies(folder: Path) -> bool:
    """Remove the copies that were not used for a month, and further ones, oldest use first, until
    all are within the limit. Copies that a process uses stay.

    :return: whether the copies are within the limit.
    """
    copies: list[tuple[float, int, Path]] = []
    with contextlib.suppress(OSError):
        for copy in folder.iterdir():
            status = copy.lstat()
            copies.append((status.st_atime, status.st_blocks * 512, copy))
    total = sum(size for _, size, _ in copies)
    limit = find_limit(UNPACKED_CACHE)
    for used, size, copy in sorted(copies):
        if total <= limit and used > time.time() - _OLD:
            break
        if _remove_unused(copy):
            total -= size
    return total <= limit


def _remove_unused(copy: Path) -> bool:
    """Remove a copy unless a process uses it; return whether it is gone."""
    try:
        # Over NFS, an exclusive lock needs a file that is open for writing.
        descriptor = os.open(copy, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        copy.unlink()
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _open_path(stream: IO[bytes]) -> Path:
    """Return the path by which this user's processes open a file that has no name."""
    return Path(f"/proc/{os.getpid()}/fd/{stream.fileno()}")


def unpack_dump(path: PathName) -> UnpackedFile:
    """Return a dump as :func:`unpack` does. If the dump was cut, return the rest, with a note on
    the missing data.

    :raises TargetError: when it is not a dump, or nothing in it is readable.
    """
    unpacked = _unpack(path)
    with open_file(unpacked.path) as file:
        kind = identify_start(_find_start(file).data)
        if kind is FileKind.KDUMP:
            from kcovdbg.target.kdump_file import KdumpFile

            pages = KdumpFile(file, str(path)).find_missing()
            if pages.missing == pages.total:
                raise _truncated(path, f"none of its {pages.total:,} pages is whole")
            if pages.missing:
                file.seek(0)
                problem = f"{pages.missing:,} of {pages.total:,} pages are missing"
                unpacked = unpacked._replace(path=_mend(file, pages, path), problem=problem)
        elif kind is FileKind.CORE:
            missing = _find_missing_memory(file, unpacked, str(path))
            unpacked = unpacked._replace(problem=missing or unpacked.problem)
        elif unpacked.problem is not None:
            raise _truncated(path, unpacked.problem)
        elif kind is FileKind.EMPTY:
            raise TargetError(f"{path} is empty: nothing was extracted", hint=_GET_AGAIN)
        else:
            hint = "a dump is an ELF core or kdump-compressed; give a vmlinux with -s VMLINUX"
            if kind is FileKind.ELF:
                raise TargetError(f"{path} is a program or debug info", hint=hint)
            _refuse_memory_image(file, path)
            raise TargetError(f"{path} is not a crash dump", hint=hint, wrong_file=str(path))
    if unpacked.problem is None:
        return unpacked
    return _add_damage(unpacked, f"{path} is truncated: {unpacked.problem}")


def _refuse_memory_image(file: BinaryIO, path: PathName) -> None:
    """Refuse a memory image in an unsupported format; the error names the format."""
    # Few users name one: the module is imported on first use.
    from kcovdbg.target.memory_image import RAW, find_memory_image, is_raw_memory

    file.seek(0)
    image = find_memory_image(file.read(_PAGE_SIZE))
    if image is None and is_raw_memory(file):
        image = RAW
    if image is not None:
        raise TargetError(f"{path} is {image.noun}, which is not read", hint=image.hint)


def _add_damage(found: UnpackedFile, note: str) -> UnpackedFile:
    return found._replace(notes=(*found.notes, note), damage=(*found.damage, note))


def _find_missing_memory(file: BinaryIO, unpacked: UnpackedFile, name: str) -> str | None:
    """Return how much of a core is missing, None if it is whole.

    :param name: its name in messages.
    """
    with ElfFile(unpacked.path, name) as core:
        memory = [segment for segment in core.segments if segment.type == PT_LOAD]
        if not memory:
            raise TargetError(f"{name} is truncated or damaged: it has no memory", hint=_GET_AGAIN)
        # Without notes, nothing in the dump can be found.
        core.read_notes()
    first = min(segment.offset for segment in memory)
    end = max(segment.offset + segment.filesz for segment in memory)
    # stat() has no size for a partition, to which a dump may be written.
    size = file.seek(0, os.SEEK_END)
    # /proc/vmcore and /proc/kcore have no size of their own.
    if end <= size or Path(os.path.realpath(unpacked.path)).is_relative_to("/proc"):
        return None
    if size <= first:
        raise _truncated(name, f"{size:,} bytes of {end:,}")
    if unpacked.notes:
        # The user does not know the size of the temporary file.
        return f"{end - size:,} of {end:,} bytes are missing"
    return f"{size:,} of {end:,} bytes, {end - size:,} are missing"


def _truncated(path: PathName, problem: str) -> TargetError:
    return TargetError(
        f"{path} is truncated: {problem}", hint="copy it again; if it is still being written, wait"
    )


def _mend(file: BinaryIO, pages: MissingPages, path: PathName) -> Path:
    """Return a copy of a kdump-compressed dump without its incomplete pages.

    libkdumpfile maps the file, so that a read of a page behind its end would kill the process. A
    page whose descriptor is zeros is refused instead.
    """
    with _temporary(path) as (target, made):
        end = _copy_file(file, target)
        target.truncate(max(end, pages.end))
        for offset, size in pages.runs:
            # Behind the end of the dump, the copy has zeros already.
            for at in range(offset, min(offset + size, end), _CHUNK):
                target.seek(at)
                target.write(bytes(min(offset + size, end, at + _CHUNK) - at))
        return made


def _unpack(path: PathName) -> UnpackedFile:
    found = UnpackedFile(Path(path))
    # There may be text in front of a compressed file, and again in front of its contents, which may
    # be a flattened dump.
    for _ in range(_MAX_LAYERS):
        with open_file(found.path) as file:
            start = _find_start(file)
            refuse_packing(path, start.data)
            kind = identify_start(start.data)
            is_packed = start.data.startswith(MAGICS)
            if not (start.offset or is_packed or kind is FileKind.FLATTENED):
                break
            file.seek(start.offset)
            if start.offset:
                what = _NAMES.get(kind, "a compressed file")
                text = f"{path} begins with text, {what} follows at byte {start.offset}"
                if found.path == Path(path):
                    text += (
                        f": tail -c +{start.offset + 1} {shlex.quote(str(path))} > FILE removes "
                        f"the text"
                    )
                found = _add_damage(found, text)
            cut = None
            with _temporary(path) as (target, current):
                if kind is FileKind.FLATTENED:
                    from kcovdbg.target.kdump_file import FlattenedError, reassemble

                    try:
                        cut = reassemble(file, target)  # type: ignore[arg-type]
                    except FlattenedError as error:
                        raise TargetError(
                            f"{path} is truncated or damaged: {error}", hint=_GET_AGAIN
                        ) from None
                    note = (
                        f"{path} is in makedumpfile's flattened format and was reassembled in a "
                        "temporary file; makedumpfile -R does so permanently"
                    )
                elif is_packed:
                    try:
                        with _decompressor(file, path) as stream:
                            _copy(stream, target, path)
                    except EOFError:
                        cut = "its compressed data ends early"
                    note = f"{path} was decompressed to a temporary file of {target.tell():,} bytes"
                else:
                    _copy_file(file, target)
                    note = f"{path} was copied to a temporary file without the text"
            found = found._replace(
                path=current, notes=(*found.notes, note), problem=found.problem or cut
            )
    return found


def _copy(source: FrameReader, target: IO[bytes] | BinaryIO, path: PathName) -> None:
    """Copy the rest of a file; zeros become holes.

    :param path: the user's file, whose size limits the size of the copy.
    :raises LimitError: when the copy would be too large.
    :raises EOFError: when the source is compressed, and ends early.
    """
    limit = max(find_limit(UNPACKED_SIZE), _RATIO * Path(path).stat().st_size)
    try:
        while data := source.read(_CHUNK):
            if data.count(0) == len(data):
                target.seek(len(data), os.SEEK_CUR)
            else:
                target.write(data)
            if target.tell() > limit:
                raise over_limit(UNPACKED_SIZE, f"{path} unpacked", limit)
    finally:
        target.truncate(target.tell())


def _copy_file(source: BinaryIO, target: IO[bytes]) -> int:
    """Copy the rest of a file with its holes; return its size."""
    start = source.tell()
    end = source.seek(0, os.SEEK_END)
    for offset, data in read_extents(source, start, end):
        target.seek(offset - start)
        target.write(data)
    target.truncate(end - start)
    return end - start


@contextlib.contextmanager
def _temporary(path: PathName) -> Iterator[tuple[IO[bytes], Path]]:
    """Yield a temporary file, and the path by which this process and those of this user open it.

    It exists as long as this process, unless the block fails.
    """
    import tempfile

    try:
        # Without a name, it is gone whatever ends the process.
        stream = tempfile.TemporaryFile(prefix="kcovdbg-")  # noqa: SIM115 - kept open
        try:
            yield stream, _open_path(stream)
            stream.flush()
        except BaseException:
            stream.close()
            raise
    except OSError as error:
        raise TargetError(
            f"could not unpack {path} in {tempfile.gettempdir()}: {error.strerror or error}",
            hint="set TMPDIR to a directory with enough space",
        ) from None
    _KEPT.append(stream)


@contextlib.contextmanager
def _decompressor(file: BinaryIO, path: PathName) -> Iterator[FrameReader]:
    """Yield the decompressed stream.

    :raises TargetError: when this Python has no zstd, or the data is damaged.
    :raises EOFError: when the data ends early.
    """
    start = file.tell()
    packing = find_packing(file.read(_MAGIC_SIZE))
    assert packing is not None
    file.seek(start)
    try:
        yield FrameReader(packing.start, file)
    except (EOFError, OSError):
        raise
    except CapabilityError as error:
        raise TargetError(f"cannot decompress {path}: {error}", hint=error.hint) from None
    except KcovdbgError:
        raise
    except Exception as error:  # noqa: BLE001 - each module has its own exceptions
        raise TargetError(f"{path} is damaged: {error}", hint=_GET_AGAIN) from None


def read_notes(path: Path) -> bytes:
    """Return the ELF notes of an unpacked dump as they are.

    :raises TargetError: when the dump is damaged.
    """
    with open_file(path) as file:
        if identify_start(file.read(_MAGIC_SIZE)) is FileKind.KDUMP:
            from kcovdbg.target.kdump_file import KdumpFile

            return KdumpFile(file, str(path)).read_notes()
    with ElfFile(path) as core:
        return core.read_notes()


def parse_dump_notes(path: Path) -> Iterator[Note]:
    """Yield the ELF notes of an unpacked dump.

    :raises TargetError: when the dump is damaged.
    """
    notes = read_notes(path)
    # A kdump-compressed dump does not say in which byte order its notes are; in the wrong one, all
    # of them are too long.
    return iter([*parse_notes(notes, "<")] or [*parse_notes(notes, ">")])


def read_dump_vmcoreinfo(path: Path) -> dict[str, str]:
    """Return the lines ``KEY=value`` of an unpacked dump's VMCOREINFO; empty when it has none.

    :raises TargetError: when the dump is damaged.
    """
    return parse_vmcoreinfo(find_vmcoreinfo(parse_dump_notes(path)))


def find_text(path: Path, text: bytes) -> bool:
    """Return whether a file has the text somewhere."""
    with open_file(path) as file:
        before, position = b"", 0
        for offset, piece in read_extents(file, 0, file.seek(0, os.SEEK_END)):
            data = piece
            if offset == position:
                data = before + piece
            if text in data:
                return True
            before, position = data[-len(text) :], offset + len(piece)
        return False
