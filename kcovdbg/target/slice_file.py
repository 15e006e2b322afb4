# SPDX-License-Identifier: LGPL-2.1-or-later
"""Slices: ELF cores that have only chosen pages of a kernel's memory.

The file has each page once. A program header has the page's physical address and, as ``p_vaddr``,
its address in the direct map. Further headers have the addresses of the same bytes in the kernel's
image and in the vmalloc space, for GDB, which does not walk page tables. Pages that were not
recorded are absent, never zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, align, page_align
from kcovdbg.elf.header import (
    EHDR,
    EM_S390,
    ET_CORE,
    IDENT_SIZE,
    MAGIC,
    PHDR,
    PN_XNUM,
    PT_LOAD,
    PT_NOTE,
    SHDR,
    Segment,
)
from kcovdbg.errors import TargetError, write_error
from kcovdbg.input_file import PathName
from kcovdbg.output_file import PRIVATE, accept, open_output

# The big-endian 64-bit machines.
_BIG_ENDIAN: Final = frozenset({EM_S390})
_RWX: Final = 7
_ZSTD_LEVEL: Final = 19


class PageRun(NamedTuple):
    """Pages that are contiguous in virtual and in physical memory; addresses and size in bytes."""

    vaddr: int
    paddr: int
    size: int


def merge_pages(pages: Iterable[tuple[int, int]]) -> list[PageRun]:
    """Return the runs of contiguous pages.

    :param pages: virtual and physical address of each page, sorted by the virtual address.
    """
    runs: list[PageRun] = []
    for vaddr, paddr in pages:
        last = runs[-1] if runs else PageRun(0, 0, -1)
        if (last.vaddr + last.size, last.paddr + last.size) == (vaddr, paddr):
            runs[-1] = last._replace(size=last.size + PAGE_SIZE)
        else:
            runs.append(PageRun(vaddr, paddr, PAGE_SIZE))
    return runs


def build_slice(
    machine: int,
    notes: bytes,
    pages: Mapping[int, bytes],
    direct_map: int | None,
    mapped: Iterable[PageRun],
) -> Iterator[bytes]:
    """Yield the bytes of a slice, piece by piece.

    :param machine: ``e_machine`` of a 64-bit kernel; big-endian for s390x, little-endian for all
        others.
    :param notes: ELF notes.
    :param pages: the contents of each recorded page, by physical address.
    :param direct_map: the virtual address of physical address 0; None without a direct map.
    :param mapped: other mappings of recorded pages.
    """
    order = ">" if machine in _BIG_ENDIAN else "<"
    program_header = PHDR.make(True, order)
    addresses = sorted(pages)
    runs: list[PageRun] = []
    for run in merge_pages((address, address) for address in addresses):
        start = 0 if direct_map is None else direct_map + run.paddr
        runs.append(run._replace(vaddr=start))
    for mapping in mapped:
        runs += _split(mapping, pages)
    count = 1 + len(runs)
    headers_offset = IDENT_SIZE + EHDR.make(True, order).size
    notes_offset = headers_offset + count * program_header.size
    section_offset = align(notes_offset + len(notes), 8)
    section = b""
    if count >= PN_XNUM:
        # The first section header has the number of program headers that does not fit into e_phnum.
        section = SHDR.make(True, order).pack(0, 0, 0, 0, 0, 0, 0, count, 0, 0)
    # Readers map the file: the data starts at a multiple of the page size.
    data_offset = page_align(section_offset + len(section))
    offsets = {address: data_offset + index * PAGE_SIZE for index, address in enumerate(addresses)}
    yield _make_header(machine, order, count, section_offset if section else 0)
    yield program_header.pack(*Segment(PT_NOTE, 0, notes_offset, 0, 0, len(notes), len(notes), 4))
    for run in runs:
        vaddr, paddr, size = run.vaddr & WORD_MASK, run.paddr, run.size
        segment = Segment(PT_LOAD, _RWX, offsets[paddr], vaddr, paddr, size, size, PAGE_SIZE)
        yield program_header.pack(*segment)
    rest = notes.ljust(section_offset - notes_offset, b"\0") + section
    yield rest.ljust(data_offset - notes_offset, b"\0")
    yield from map(pages.__getitem__, addresses)


def _make_header(machine: int, order: str, count: int, section_offset: int) -> bytes:
    """Return the ELF header of a slice.

    :param count: number of program headers.
    :param section_offset: offset of the section header; 0 if there is none.
    """
    header = EHDR.make(True, order)
    size = IDENT_SIZE + header.size
    section_size = SHDR.make(True, order).size if section_offset else 0
    # 64-bit, of version 1.
    ident = MAGIC + bytes([2, 2 if order == ">" else 1, 1]) + bytes(9)
    return ident + header.pack(
        ET_CORE,
        machine,
        1,
        0,
        size,
        section_offset,
        0,
        size,
        PHDR.make(True, order).size,
        min(count, PN_XNUM),
        section_size,
        bool(section_offset),
        0,
    )


def _split(mapping: PageRun, pages: Mapping[int, bytes]) -> list[PageRun]:
    """Return the parts of a mapping whose pages were recorded."""
    return merge_pages(
        (mapping.vaddr + offset, mapping.paddr + offset)
        for offset in range(0, mapping.size, PAGE_SIZE)
        if mapping.paddr + offset in pages
    )


def write_slice(
    path: PathName, content: Iterable[bytes], *, check: Callable[[], None] = accept
) -> int:
    """Write a file completely or not at all, for its owner alone.

    :param path: compressed with zstd if it ends in ``.zst``.
    :param check: see :func:`kcovdbg.output_file.open_output`.
    :return: the size of the file in bytes.
    :raises KcovdbgError: when it cannot be written.
    """
    try:
        with open_output(path, mode=PRIVATE, check=check) as file:
            return write_stream(file, content, path)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise write_error(path, error) from None


def write_stream(file: BinaryIO, content: Iterable[bytes], path: PathName) -> int:
    """Write the content of a slice to a file or a pipe.

    :param path: its name; compressed with zstd if it ends in ``.zst``.
    :return: the bytes written.
    """
    size = 0
    if Path(path).suffix == ".zst":
        content = _compress(content, Path(path))
    for piece in content:
        file.write(piece)
        size += len(piece)
    return size


def _compress(content: Iterable[bytes], destination: Path) -> Iterator[bytes]:
    # Without its checksum, damaged data may be read as if nothing were wrong with it.
    try:
        # In the standard library since Python 3.14.
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]

        parameter = zstd.CompressionParameter
        compressor = zstd.ZstdCompressor(
            options={parameter.compression_level: _ZSTD_LEVEL, parameter.checksum_flag: 1}
        )
    except ImportError:
        try:
            import zstandard
        except ImportError:
            raise TargetError(
                f"cannot compress {destination}: this Python has no zstd",
                hint="pip install zstandard, or leave out .zst",
            ) from None
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    yield from map(compressor.compress, content)
    yield compressor.flush()
