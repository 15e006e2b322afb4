# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that GDB has open: QEMU's stub, kgdb, an ELF core, /proc/kcore."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import gdb
from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, address_of, word_mask
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import MissingSymbolError, TargetError
from kcovdbg.model.location import Frame
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.connection import MachineState
from kcovdbg.target.gdb.kernel import GdbKernel
from kcovdbg.target.gdb.lines import LineTables
from kcovdbg.target.gdb.memory import KGDB_BLOCK
from kcovdbg.target.gdb.stacks import GdbStacks, find_stacks
from kcovdbg.target.gdb.stub import Stub
from kcovdbg.target.gdb.types import array_length, member_names, type_name
from kcovdbg.target.gdb.watchpoints import GdbWatchpoints
from kcovdbg.target.kaslr import Read, find_release, read_banner
from kcovdbg.target.mappings import MappingWalk, find_mappings
from kcovdbg.target.page_array import find_page_array
from kcovdbg.target.pointer import UPPER_HALF_START, find_pointer_tag
from kcovdbg.target.protocol import Member, Symbol
from kcovdbg.target.slab_memory import SlabWalk, find_slab_memory
from kcovdbg.target.stub_kernel import CachedMemory
from kcovdbg.target.vmalloc_areas import VmallocWalk, find_vmalloc_areas
from kcovdbg.target.watchpoints import Watchpoints

# QEMU's stub sends 4096 characters at most, two for each byte.
_PACKET_SIZE: Final = 2048
# Small reads from kgdb are answered from blocks of this size. Larger ones save few packets more, and the line carries more.
_KEPT_BLOCK: Final = 256


class FoundOffset(NamedTuple):
    """A KASLR offset, and how it was found."""

    offset: int
    description: str


class GdbTarget:
    """The kernel of GDB's selected inferior.

    Opened for each command, as the user may have done anything to it in between; types and symbols are cached in the kernel.

    :param kernel: its symbols and types.
    :param core: the core that GDB reads, None on a connection.
    :param offset: its KASLR offset.
    :param read: reads its memory, and only that.
    :param stub: what GDB is connected to, None without a stub.
    """

    damage: Sequence[str] = ()
    memory_problem: str | None = None
    watchpoints: Watchpoints | None = None
    packet_size: int | None = None
    """Bytes of memory in one packet of a stub; None for a core."""

    def __init__(
        self, kernel: GdbKernel, name: str, core: ElfFile | None, offset: FoundOffset, read: Read, stub: Stub | None
    ) -> None:
        self.kernel = kernel
        self.name = name
        self._read = read
        self._core = core
        self._lines = LineTables()
        self._stub = stub
        if stub is not None:
            self.packet_size = KGDB_BLOCK if stub is Stub.KGDB else _PACKET_SIZE
            self.watchpoints = GdbWatchpoints(self, kernel, self.frames_at, self.forget, self._find_callers)
        self._kept = CachedMemory(read, _KEPT_BLOCK) if stub is Stub.KGDB else None
        self.live = core is not None and core.path == Path("/proc/kcore")
        self.word_size = kernel.image.header.word_size
        self.big_endian = kernel.image.header.big_endian
        self.kaslr_offset = offset.offset
        self.machine = kernel.image.header.machine_name
        self.build_id = kernel.image.build_id
        info = core.vmcoreinfo if core is not None else {}
        self.release = find_release(read_banner(kernel.image)) or info.get("OSRELEASE") or "unknown"
        self.notes: Sequence[str] = (f"KASLR offset {offset.offset:#x}: {offset.description}",)

    @cached_property
    def vmas(self) -> MappingWalk | None:
        """The mappings of user address spaces."""
        return find_mappings(self)

    @cached_property
    def vmalloc(self) -> VmallocWalk | None:
        """The vmalloc areas."""
        return find_vmalloc_areas(self)

    @cached_property
    def slab(self) -> SlabWalk | None:
        """The slab caches; None where the pages of a machine are too many for the connection, as with kgdb."""
        # Megabytes can be read of a core or a guest of QEMU; kgdb's serial line takes minutes for one.
        if self._stub not in (None, Stub.QEMU):
            return None
        return find_slab_memory(self, find_page_array(self))

    @cached_property
    def stacks(self) -> GdbStacks | None:
        """Kernel stacks."""
        return find_stacks(self, self.kernel.image, self.address_in_gdb, self.frames_at, self._core, self._stub)

    def _find_callers(self) -> Sequence[StackFrame] | None:
        return None if self.stacks is None else self.stacks.find_callers()

    @property
    def files(self) -> Iterator[str]:
        """The files that GDB reads: the core, the vmlinux and the symbol files of modules."""
        if self._core is not None:
            yield str(self._core.path)
        for objfile in gdb.objfiles():
            if objfile.filename is not None:
                yield objfile.filename

    @property
    def image(self) -> str:
        """The path of the kernel's image."""
        return str(self.kernel.image.path)

    @cached_property
    def kernel_range(self) -> tuple[int, int]:
        """First and last address that a pointer of this kernel can have."""
        init = self.kernel.image.symbols.find("init_task")
        # A kernel that is not in the upper half is a process (User Mode Linux), or has an address space of its own (s390).
        if init is not None and init.address >> 63:
            return UPPER_HALF_START, WORD_MASK
        return PAGE_SIZE, word_mask(self.word_size)

    @cached_property
    def pointer_tag(self) -> int:
        """The bits of a pointer that are a tag; 0 in kernels without tags."""
        return find_pointer_tag(self)

    def state(self) -> MachineState | None:
        """Return what the machine does: GDB is asked while it is stopped only, but for /proc/kcore."""
        if self.packet_size is not None:
            return MachineState.STOPPED
        return MachineState.RUNNING if self.live else None

    def stop_note(self) -> str | None:
        """Return None: GDB's user stopped the machine."""
        return None

    def resume(self) -> str | None:
        """Refuse: GDB's user lets the machine go on.

        :raises TargetError: always.
        """
        raise TargetError("GDB controls the machine", hint="continue")

    def leave_stopped(self, reason: str) -> str | None:  # noqa: ARG002
        """Return None: GDB's user lets the machine go on."""
        return None

    def forget(self) -> None:
        """Forget what was kept of memory that stood still: the machine has run."""
        for name in ("slab", "stacks"):
            vars(self).pop(name, None)
        if self._kept is not None:
            self._kept.forget()

    def is_gone(self) -> bool:
        """Return False: GDB notices by itself, and then has no target."""
        return False

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it cannot be read, or is in the vmlinux file only.
        """
        return self._read(address, size) if self._kept is None or size > _KEPT_BLOCK else self._kept.read(address, size)

    def symbol(self, name: str) -> Symbol:
        """Find a symbol.

        :raises MissingSymbolError: when the kernel has none.
        """
        found = self.kernel.image.symbols.find(name)
        if found is None:
            raise MissingSymbolError(f"{self.kernel.image.path.name} has no symbol {name}")
        return Symbol(name, address_of(found.address, self.kaslr_offset), found.size)

    def symbol_name(self, address: int) -> str | None:
        """Return the name of the symbol that an address is in, None when it is in none."""
        found = self.kernel.image.symbols.find_at(address - self.kaslr_offset)
        if found is not None:
            return found.name
        # Modules have symbol files of their own, if the user has loaded them.
        match = re.match(r"(\S+)(?: \+ \d+)? in section", gdb.execute(f"info symbol {address:#x}", to_string=True))
        return match[1] if match is not None else None

    def frames_at(self, address: int) -> tuple[Frame, ...]:
        """Return the functions that an instruction is in, with the line of the innermost one, by GDB's line tables.

        :param address: in the running kernel; for a return address, one less.
        :return: innermost first; empty when debug info does not cover it.
        """
        return self._lines.frames_at(self.address_in_gdb(address))

    def address_in_gdb(self, address: int) -> int:
        """Return the address in GDB's symbols of an address in the running kernel."""
        # Those of the kernel are relocated as their user loaded them, those of modules are where the module is.
        if self.kernel.image.symbols.find_at(address - self.kaslr_offset) is None:
            return address
        return address + self.kernel.relocation - self.kaslr_offset

    def type_size(self, type_name: str) -> int:
        """Return the size of a type in bytes.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return int(self.kernel.find_type(type_name).sizeof)

    def member(self, type_name: str, path: str) -> Member:
        """Find a member.

        :raises MissingTypeError: when there is no such type or member.
        """
        return self.kernel.find_member(type_name, path)

    def member_names(self, type_name: str) -> Sequence[str]:
        """Return the names of the members of a structure, those of anonymous structures included.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return member_names(self.kernel.find_type(type_name))

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Return the enumerators of a type.

        :raises MissingTypeError: when the debug info has no such type.
        """
        return {str(field.name): int(field.enumval) for field in self.kernel.find_type(type_name).fields()}

    def variable_type(self, name: str) -> tuple[str, int | None]:
        """Return the name of a variable's type, or of an array's elements, and the array's length or None.

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
        symbols = self.kernel.image.symbols
        # Renamed in v4.5; without CONFIG_SMP there is neither.
        mask = symbols.find("__cpu_possible_mask") or symbols.find("cpu_possible_bits")
        if mask is None or not mask.size:
            return (0,)
        data = self.read(address_of(mask.address, self.kaslr_offset), mask.size)
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
        table = self.kernel.image.symbols.find("__per_cpu_offset")
        if table is None:
            return None
        count = max(self._possible_cpus) + 1
        data = self.read(address_of(table.address, self.kaslr_offset), count * self.word_size)
        return [self._word(data[start : start + self.word_size]) for start in range(0, len(data), self.word_size)]

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable.
        """
        image = self.kernel.image
        symbol = image.symbols.find(name)
        if symbol is None:
            raise MissingSymbolError(f"{image.path.name} has no symbol {name}")
        offsets = self._per_cpu_offsets
        if offsets is None:
            return address_of(symbol.address, self.kaslr_offset)
        start = image.symbols.find("__per_cpu_start")
        # x86-64 linked per-CPU variables from address 0 until Linux kernel commit 9d7de2aa8b41 ("x86/percpu/64: Use relative
        # percpu offsets") (in v6.15): KASLR does not move them. Otherwise they are in the image, and it does.
        shift = 0 if start is not None and start.address == 0 else self.kaslr_offset
        return symbol.address + shift + offsets[cpu] & word_mask(self.word_size)
