# SPDX-License-Identifier: LGPL-2.1-or-later
"""Writes slices: ELF cores that hold chosen pages of a kernel's memory and nothing else.

Each page is in the file once. A program header gives it by its physical address and, as ``p_vaddr``, by its address in the
direct map; further headers give the same bytes by their addresses in the kernel's image and in the vmalloc space, for GDB,
which knows no page tables. What wasn't recorded is absent, never zeros.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from kcovdbg.errors import TargetError
from kcovdbg.target import elf

PAGE: Final = 4096
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER: Final = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER: Final = struct.Struct("<IIQQQQIIQQ")
_RWX: Final = 7
_ZSTD_LEVEL: Final = 19
# A note of ours: by name, so that other tools pass it over.
NOTE_NAME: Final = "KCOVDBG"
NOTE_SLICE: Final = 0
NOTE_INCONSISTENT: Final = 1


class Run(NamedTuple):
    """Pages that follow one another both in a virtual address space and in physical memory; addresses in bytes."""

    vaddr: int
    paddr: int
    size: int


def merge_pages(pages: Iterable[tuple[int, int]]) -> Iterator[Run]:
    """Join neighbouring pages.

    :param pages: (virtual, physical) address of each, sorted by the virtual one.
    """
    current: Run | None = None
    for vaddr, paddr in pages:
        if current is not None and (current.vaddr + current.size, current.paddr + current.size) == (vaddr, paddr):
            current = current._replace(size=current.size + PAGE)
            continue
        if current is not None:
            yield current
        current = Run(vaddr, paddr, PAGE)
    if current is not None:
        yield current


def build_slice(
    machine: int, notes: bytes, pages: Mapping[int, bytes], direct_map: int | None, mapped: Iterable[Run]
) -> Iterator[bytes]:
    """Yield a slice, piece by piece.

    :param machine: ``e_machine``; 64-bit and little-endian.
    :param notes: ELF notes, as they are to be in it.
    :param pages: contents of each recorded page by physical address.
    :param direct_map: where the kernel maps physical address 0; None where it doesn't.
    :param mapped: other mappings of recorded pages.
    """
    runs = list(merge_pages((address, address) for address in sorted(pages)))
    others = [piece for mapping in mapped for piece in _split(mapping, pages)]
    count = 1 + len(runs) + len(others)
    # More headers than fit into e_phnum are counted in the first section header.
    is_many = count >= elf.PN_XNUM
    notes_offset = _HEADER.size + count * _PROGRAM_HEADER.size
    section_offset = -(-(notes_offset + len(notes)) // 8) * 8
    data_offset = section_offset + (_SECTION_HEADER.size if is_many else 0)
    # On a page boundary, as readers map the file.
    data_offset = -(-data_offset // PAGE) * PAGE
    offsets: dict[int, int] = {}
    position = data_offset
    for run in runs:
        for address in range(run.paddr, run.paddr + run.size, PAGE):
            offsets[address] = position
            position += PAGE
    ident = elf.MAGIC + bytes([2, 1, 1]) + bytes(9)
    yield _HEADER.pack(
        ident,
        elf.ET_CORE,
        machine,
        1,
        0,
        _HEADER.size,
        section_offset if is_many else 0,
        0,
        _HEADER.size,
        _PROGRAM_HEADER.size,
        elf.PN_XNUM if is_many else count,
        _SECTION_HEADER.size if is_many else 0,
        1 if is_many else 0,
        0,
    )
    yield _PROGRAM_HEADER.pack(elf.PT_NOTE, 0, notes_offset, 0, 0, len(notes), len(notes), 4)
    headers = bytearray()
    for run in runs:
        vaddr = direct_map + run.paddr if direct_map is not None else 0
        headers += _program_header(offsets[run.paddr], vaddr, run)
    for piece in others:
        headers += _program_header(offsets[piece.paddr], piece.vaddr, piece)
    yield bytes(headers)
    yield notes.ljust(section_offset - notes_offset, b"\0")
    written = section_offset
    if is_many:
        yield _SECTION_HEADER.pack(0, 0, 0, 0, 0, 0, 0, count, 0, 0)
        written += _SECTION_HEADER.size
    yield bytes(data_offset - written)
    for run in runs:
        for address in range(run.paddr, run.paddr + run.size, PAGE):
            yield pages[address]


def _program_header(offset: int, vaddr: int, run: Run) -> bytes:
    return _PROGRAM_HEADER.pack(elf.PT_LOAD, _RWX, offset, vaddr & (1 << 64) - 1, run.paddr, run.size, run.size, PAGE)


def _split(mapping: Run, pages: Mapping[int, bytes]) -> Iterator[Run]:
    """Leave out of a mapping what wasn't recorded."""
    return merge_pages(
        (mapping.vaddr + offset, mapping.paddr + offset)
        for offset in range(0, mapping.size, PAGE)
        if mapping.paddr + offset in pages
    )


def write_file(path: str | os.PathLike[str], content: Iterable[bytes]) -> int:
    """Write a file whole or not at all: under a temporary name beside it, synced, then renamed.

    :param path: compressed with zstd when it ends in ``.zst``.
    :return: the size of the file in bytes.
    :raises TargetError: when it can't be written.
    """
    destination = Path(path)
    try:
        with (
            tempfile.NamedTemporaryFile(dir=destination.parent, prefix=f".{destination.name}.", delete=False) as file,
            _removed_on_error(Path(file.name)),
        ):
            with _compressor(file, destination) as stream:
                for piece in content:
                    stream.write(piece)
            file.flush()
            os.fsync(file.fileno())
            # What open() would have given; NamedTemporaryFile gives it to the owner only.
            mask = os.umask(0)
            os.umask(mask)
            os.fchmod(file.fileno(), 0o666 & ~mask)
            size = file.tell()
            Path(file.name).replace(destination)
    except OSError as error:
        raise TargetError(f"{path} can't be written: {error.strerror or error}", hint="name a place with room") from None
    return size


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _compressor(file: IO[bytes], destination: Path) -> Iterator[Any]:
    if destination.suffix != ".zst":
        yield file
        return
    try:
        # Python 3.14 has it itself.
        from compression import zstd as standard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        standard = None
    if standard is not None:
        with standard.ZstdFile(file, "w", level=_ZSTD_LEVEL) as stream:
            yield stream
        return
    try:
        import zstandard
    except ImportError:
        raise TargetError(
            f"{destination} can't be compressed: this Python has no zstd", hint="pip install zstandard, or leave out .zst"
        ) from None
    with zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as stream:
        yield stream
