# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that GDB has open: QEMU's stub, kgdb, an ELF core, /proc/kcore."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import gdb
from kcovdbg.errors import MissingSymbolError
from kcovdbg.model.location import Frame
from kcovdbg.target import Member, SlabSource, StackSource, Symbol, VmallocSource, VmaSource
from kcovdbg.target.gdb.kernel import GdbKernel
from kcovdbg.target.gdb.lines import LineTables
from kcovdbg.target.gdb.types import array_length, member_names, type_name
from kcovdbg.target.image import ElfFile
from kcovdbg.target.relocation import Read, read_banner_of, release_of

# 56 bits are what five-level page tables (x86-64, riscv64) and 52-bit addresses (arm64) leave to the kernel at most.
_UPPER_HALF_START: Final = 0xFF00_0000_0000_0000
_PAGE_SIZE: Final = 0x1000
# QEMU's stub takes and sends 4096 characters, two for each byte.
_PACKET_SIZE: Final = 2048


class Way(NamedTuple):
    """How the kernel's shift was found."""

    offset: int
    description: str


class GdbTarget:
    """The kernel of GDB's selected inferior.

    Made anew for each command, as its user may have done anything meanwhile; what costs is cached in the kernel's symbols.

    :param kernel: its symbols.
    :param core: the core that is read, None on a connection.
    :param way: what its image is shifted by.
    :param read: reads its memory, and only that.
    """

    vmas: VmaSource | None = None
    vmalloc: VmallocSource | None = None
    slab: SlabSource | None = None
    stacks: StackSource | None = None
    packet_size: int | None = None
    """Bytes that one packet of a stub brings; None where memory is at hand."""

    def __init__(self, kernel: GdbKernel, name: str, core: ElfFile | None, way: Way, read: Read) -> None:
        self.kernel = kernel
        self.name = name
        self.way = way
        self._read = read
        self._lines = LineTables()
        connection = gdb.selected_inferior().connection
        if connection is not None and "remote" in connection.type:
            self.packet_size = _PACKET_SIZE
        self.live = core is not None and core.path == Path("/proc/kcore")
        self.word_size = kernel.image.word_size
        self.big_endian = kernel.image.big_endian
        self.kaslr_offset = way.offset
        self.machine = kernel.image.machine
        self.build_id = kernel.image.build_id
        banner = read_banner_of(kernel.image)
        info = core.vmcoreinfo if core is not None else {}
        self.release = (banner and release_of(banner)) or info.get("OSRELEASE") or "unknown"
        self.notes: Sequence[str] = (f"KASLR offset {way.offset:#x}: {way.description}",)

    @cached_property
    def kernel_range(self) -> tuple[int, int]:
        """First and last address that a pointer of this kernel can have."""
        last = (1 << 8 * self.word_size) - 1
        init = self.kernel.image.symbol("init_task")
        # The upper half; but a kernel may be a process itself (User Mode Linux), or have all addresses for itself (s390).
        if init is not None and init.address >> 63:
            return _UPPER_HALF_START, last
        return _PAGE_SIZE, last

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it can't be read, or is in the vmlinux file only.
        """
        return self._read(address, size)

    def symbol(self, name: str) -> Symbol:
        """Find a symbol.

        :raises MissingSymbolError: when the kernel has none.
        """
        found = self.kernel.image.symbol(name)
        if found is None:
            raise MissingSymbolError(f"{self.kernel.image.path.name} has no symbol {name}")
        return found._replace(address=found.address + self.kaslr_offset)

    def symbol_name(self, address: int) -> str | None:
        """Name the symbol that an address lies in, None where none does."""
        found = self.kernel.image.symbol_name(address - self.kaslr_offset)
        if found is None:
            # A module's symbols are in symbol files of their own, where the user has loaded them.
            match = re.match(r"(\S+)(?: \+ \d+)? in section", gdb.execute(f"info symbol {address:#x}", to_string=True))
            found = match[1] if match is not None else None
        return found

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        """Locate an instruction by GDB's line tables: the functions, and of the innermost one its line.

        :param address: in the running kernel; for a return address, one less.
        :return: innermost first; empty where debug info doesn't cover it.
        """
        return self._lines.frames_at(self.address_in_gdb(address))

    def address_in_gdb(self, address: int) -> int:
        """Return where GDB's symbols have what is at an address of the running kernel."""
        # The kernel's are where their user loaded them, a module's where the module is.
        if self.kernel.image.symbol_name(address - self.kaslr_offset) is None:
            return address
        return address + self.kernel.relocation - self.kaslr_offset

    def type_size(self, type_name: str) -> int:
        """Return a type's size in bytes.

        :raises MissingTypeError: when the debug info has none.
        """
        return int(self.kernel.find_type(type_name).sizeof)

    def member(self, type_name: str, path: str) -> Member:
        """Find a member.

        :raises MissingTypeError: when the type or the member doesn't exist.
        """
        return self.kernel.find_member(type_name, path)

    def member_names(self, type_name: str) -> Sequence[str]:
        """Name the members of a structure, those of anonymous structures included.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return member_names(self.kernel.find_type(type_name))

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Return the enumerators of a type.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return {str(field.name): int(field.enumval) for field in self.kernel.find_type(type_name).fields()}

    def variable_type(self, name: str) -> tuple[str, int | None]:
        """Return a variable's type name, for an array the element's, and the array's length or None.

        :raises MissingSymbolError: when there is no such variable.
        """
        objfile = self.kernel.objfile
        _ = self.kernel.relocation
        symbol = objfile.lookup_static_symbol(name) or objfile.lookup_global_symbol(name)
        if symbol is None or symbol.type is None:
            raise MissingSymbolError(f"the debug info has no variable {name}")
        found = symbol.type.strip_typedefs()
        if found.code == gdb.TYPE_CODE_ARRAY:
            return type_name(found.target()), array_length(found)
        return type_name(symbol.type), None

    @cached_property
    def _possible_cpus(self) -> tuple[int, ...]:
        mask = self.kernel.image.symbol("__cpu_possible_mask")
        # Without SMP there is one. A static function's bits: cpu_possible_bits before v4.5.
        mask = mask or self.kernel.image.symbol("cpu_possible_bits")
        if mask is None or not mask.size:
            return (0,)
        data = self.read(mask.address + self.kaslr_offset, mask.size)
        bits = 0
        for start in range(0, len(data), self.word_size):
            bits |= self._word(data[start : start + self.word_size]) << 8 * start
        return tuple(cpu for cpu in range(bits.bit_length()) if bits >> cpu & 1)

    def _word(self, data: bytes) -> int:
        return int.from_bytes(data, "big" if self.big_endian else "little")

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs."""
        return self._possible_cpus

    @cached_property
    def _per_cpu_offsets(self) -> Sequence[int] | None:
        table = self.kernel.image.symbol("__per_cpu_offset")
        if table is None:
            return None
        count = max(self._possible_cpus) + 1
        data = self.read(table.address + self.kaslr_offset, count * self.word_size)
        return [self._word(data[start : start + self.word_size]) for start in range(0, len(data), self.word_size)]

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable.
        """
        image = self.kernel.image
        symbol = image.symbol(name)
        if symbol is None:
            raise MissingSymbolError(f"{image.path.name} has no symbol {name}")
        offsets = self._per_cpu_offsets
        if offsets is None:
            return symbol.address + self.kaslr_offset
        start = image.symbol("__per_cpu_start")
        # x86-64 linked per-CPU variables from 0 on up to Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative percpu
        # offsets") (in v6.15); these don't move with the kernel. Elsewhere they lie in the image and do.
        shift = 0 if start is not None and start.address == 0 else self.kaslr_offset
        return symbol.address + shift + offsets[cpu] & (1 << 8 * self.word_size) - 1
