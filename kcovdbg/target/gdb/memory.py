# SPDX-License-Identifier: LGPL-2.1-or-later
"""The target's memory through GDB, without the vmlinux file, from which GDB answers what the target lacks."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import gdb
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_X86_64
from kcovdbg.elf.segment import PT_LOAD, Segment
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.gdb.stub import Send, Stub, find_packets
from kcovdbg.target.kaslr import Read

# kgdb's buffer has 1024 characters on x86 (BUFMAX), two for each byte, and it does not check that an answer fits.
KGDB_BLOCK: Final = 504
# GDB refuses larger values (max-value-size).
_LARGEST_VALUE: Final = 1 << 15

_Fetch = Callable[[int, int], bytes]


class CoreSpans:
    """The spans of virtual memory that a core has.

    :param segments: its program headers.
    """

    def __init__(self, segments: Iterable[Segment]) -> None:
        spans = sorted((segment.vaddr, segment.vaddr + segment.filesz) for segment in segments if segment.type == PT_LOAD)
        self._starts = [start for start, _ in spans]
        self._ends = [end for _, end in spans]
        # The highest end up to each span: beyond it, no earlier one has anything.
        self._reach = list(itertools.accumulate(self._ends, max))

    def hold(self, address: int, size: int) -> bool:
        """Return whether all of a span of memory is in the core."""
        end = address + size
        while address < end:
            index = bisect_right(self._starts, address) - 1
            # Spans may overlap: an earlier, longer one may have what the nearest one lacks.
            while index >= 0 and address >= self._ends[index]:
                if address >= self._reach[index]:
                    return False
                index -= 1
            if index < 0:
                return False
            address = self._ends[index]
        return True


def make_reader(core: ElfFile | None, stub: Stub | None, machine: int) -> Read:
    """Return a function that reads the target's memory, and never the vmlinux file.

    :param core: the core that GDB reads; None on a connection, which answers for all memory.
    :param stub: what answers on the connection, None for a core.
    :param machine: of the kernel, as in an ELF header.
    """
    spans = None if core is None else CoreSpans(core.segments)
    fetch = _choose_fetch(core, stub, machine)

    def read(address: int, size: int) -> bytes:
        if spans is not None and not spans.hold(address, size):
            # GDB would answer from the vmlinux file, or with zeros for a .bss.
            raise ReadError(f"not in the core: {size} bytes at {address:#x}", address)
        try:
            return fetch(address, size)
        except gdb.MemoryError as error:
            raise ReadError(f"could not read {size} bytes at {address:#x}", address) from error
        except gdb.error as error:
            raise TargetError(" ".join(str(error).split())) from error
        except OverflowError:
            raise ReadError(f"{address:#x} is not an address", address) from None

    return read


def _choose_fetch(core: ElfFile | None, stub: Stub | None, machine: int) -> _Fetch:
    send = find_packets()
    if stub is Stub.KGDB and machine == EM_X86_64 and send is not None:
        return lambda address, size: _fetch_blocks(send, address, size)
    if core is None and len(gdb.selected_inferior().threads()) > 1 and hasattr(gdb.Value, "bytes"):
        return _fetch_value
    return _fetch_memory


def _fetch_memory(address: int, size: int) -> bytes:
    return bytes(gdb.selected_inferior().read_memory(address, size))


def _fetch_value(address: int, size: int) -> bytes:
    """Read memory as the selected CPU sees it: newer GDBs' read_memory() leaves the CPU to the stub."""
    data = b""
    for start in range(0, size, _LARGEST_VALUE):
        kind = gdb.lookup_type("unsigned char").array(min(size - start, _LARGEST_VALUE) - 1)
        data += gdb.Value(address + start).cast(kind.pointer()).dereference().bytes
    return data


def _fetch_blocks(send: Send, address: int, size: int) -> bytes:
    """Read memory from kgdb: GDB asks a stub that names no limit for 156 bytes at once."""
    data = bytearray()
    while len(data) < size:
        start, length = address + len(data), min(size - len(data), KGDB_BLOCK)
        answer = send(f"m{start:x},{length:x}")
        if len(answer) != 2 * length:
            raise ReadError(f"could not read {size} bytes at {address:#x}", start)
        data += bytes.fromhex(answer.decode())
    return bytes(data)


def open_core() -> ElfFile:
    """Return the core that GDB reads."""
    inferior = gdb.selected_inferior()
    # Python can ask GDB 18 and later; of older ones, "info files" has the name.
    corefile = getattr(inferior, "corefile", None)
    filename = getattr(corefile, "filename", None)
    if filename is None:
        text = gdb.execute("info files", to_string=True)
        match = re.search(r"^Local core dump file:\s+[`'](.*)', file type ", text, re.MULTILINE)
        # In other languages than English the line is found by its end; the program's line ends like the core's.
        names = [match[1]] if match is not None else re.findall(r"^\s+[`'«\"](.*?)['»\"],[^\n]*\belf\d\d-", text, re.MULTILINE)
        cores = [path for path in names if _is_core(Path(path))]
        if not cores:
            raise TargetError("could not find the core file that GDB reads", hint="open it again: core-file PATH")
        filename = cores[0]
    return ElfFile(Path(filename))


def _is_core(path: Path) -> bool:
    try:
        with ElfFile(path) as file:
            return file.is_core
    except TargetError:
        return False
