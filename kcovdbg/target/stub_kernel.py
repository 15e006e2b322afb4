# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel in the memory of a machine or of a dump that has no VMCOREINFO: its KASLR offset, VMCOREINFO and registers.

QEMU's memory is read by physical address, since with page-table isolation a CPU that was stopped in user space has page tables
without the kernel. On x86-64 the image is found by the interrupt descriptor table; arm64_kernel.py has that of arm64. Other
stubs: by virtual address. s390x's VMCOREINFO is found by its lowcore.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, page_align, page_align_down
from kcovdbg.elf.header import NT_PRSTATUS, VMCOREINFO, make_note, parse_notes
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.kaslr import (
    BANNER,
    DIVIDE_ERROR,
    IDT_GATE_SIZE,
    X86_ALIGNMENT,
    X86_RANGE,
    MismatchError,
    Read,
    find_release,
    gate_handler,
)
from kcovdbg.target.pointer import UPPER_HALF_START
from kcovdbg.target.rsp import Stub, StubReadError
from kcovdbg.target.stub_registers import StubRegisters

_WORD: Final = struct.Struct("<Q")
_PRESENT: Final = 1
_LARGE: Final = 0x80
_ADDRESS: Final = 0x000F_FFFF_FFFF_F000
# PTI_PGTABLE_SWITCH_BIT: the page table of user space is the page after that of the kernel.
_PTI_SWITCH: Final = 0x1000
_CR4_LA57: Final = 1 << 12
VMCOREINFO_SYMBOLS: Final = ("vmcoreinfo_data", "vmcoreinfo_size")
# What is found by symbols of the vmlinux.
SYMBOLS: Final = (
    *DIVIDE_ERROR,
    "early_idt_handler_array",
    "init_top_pgt",
    "linux_banner",
    *VMCOREINFO_SYMBOLS,
)
_MAX_VMCOREINFO: Final = 1 << 16
# __START_KERNEL_map
_IMAGE_START: Final = 0xFFFF_FFFF_8000_0000
# Of an image from its text to linux_banner in its read-only data, as far as it is searched for one.
_MAX_IMAGE: Final = 256 << 20
_MAX_BANNER: Final = 512
_MAX_CPUS: Final = 4096

_NEEDS: Final = "the kernel needs CONFIG_VMCORE_INFO (CONFIG_CRASH_CORE before v6.9), which CONFIG_KEXEC selects"
_READ_HINT: Final = "let the kernel finish booting, or run in kernel mode; then try again"

ReadMemory = Callable[[int, int], bytes]


class NotBootedError(TargetError):
    """The machine has not booted far enough to have a kernel that can be found."""


class RamRange(NamedTuple):
    """A range of physical memory, the end excluded."""

    start: int
    end: int


class CachedMemory:
    """Memory of a stopped machine: each block is read once while it stands.

    :param read: reads from the machine.
    :param block: bytes that are read at once; a power of two, at most a page, since the next page may be unreadable.
    """

    def __init__(self, read: ReadMemory, block: int = PAGE_SIZE) -> None:
        self._read = read
        self._block = block
        self._blocks: dict[int, bytes] = {}

    def forget(self, block: int | None = None) -> None:
        """Read every block again: the machine has run.

        :param block: bytes to read at once from now on.
        """
        self._blocks.clear()
        self._block = block or self._block

    def read(self, address: int, size: int) -> bytes:
        """Return any span of memory.

        :raises StubReadError: when any block of it cannot be read.
        """
        block, blocks = self._block, self._blocks
        first, last = address // block, (address + size - 1) // block
        if first != last:
            self._fill(first, last)
            data = b"".join([blocks[number] for number in range(first, last + 1)])
        else:
            found = blocks.get(first)
            if found is None:
                found = blocks[first] = self._read(first * block, block)
            data = found
        offset = address - first * block
        return data[offset : offset + size]

    def _fill(self, first: int, last: int) -> None:
        """Read the blocks that are missing, neighbors at once."""
        missing = [number for number in range(first, last + 1) if number not in self._blocks]
        for _, group in itertools.groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in group]
            data = self._read(numbers[0] * self._block, len(numbers) * self._block)
            for index, number in enumerate(numbers):
                self._blocks[number] = data[index * self._block : (index + 1) * self._block]


def find_ram(text: str) -> list[RamRange]:
    """Return the ranges of physical memory in QEMU's ``info mtree -f``, in whole pages; empty when its form is unknown.

    Reads of other addresses return zeros, or change the state of a device.
    """
    for view in text.replace("\r", "").split("FlatView ")[1:]:
        if not re.search(r'^ AS "memory"', view, re.MULTILINE):
            continue
        found: list[RamRange] = []
        pattern = r"^\s*([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, (?:nv-)?(?:ram|rom|romd)\)"
        for start, end in re.findall(pattern, view, re.MULTILINE):
            low, high = int(start, 16), int(end, 16) + 1
            if found and found[-1].end == low:
                found[-1] = RamRange(found[-1].start, high)
            else:
                found.append(RamRange(low, high))
        pages = (RamRange(page_align(low), page_align_down(high)) for low, high in found)
        return [part for part in pages if part.start < part.end]
    return []


def read_by_monitor(monitor: Callable[[str], str], address: int, size: int) -> bytes:
    """Read physical memory through QEMU's monitor: slow, for what is read before there is another way.

    :param monitor: runs a command and returns its output.
    :raises StubReadError: when it cannot be read.
    """
    text = monitor(f"xp /{size}xb {address:#x}")
    found = bytes(int(byte, 16) for line in text.splitlines() for byte in re.findall(r"\b0x([0-9a-f]{2})\b", line))
    if len(found) != size:
        raise StubReadError(f"physical {address:#x}")
    return found


class CpuRegisters(NamedTuple):
    """The registers of x86-64 that a kernel is found by."""

    idt: int
    cr3: int
    cr4: int


def is_before_kernel(text: str) -> bool:
    """Return whether QEMU's ``info registers`` are of an x86 CPU that is not in 64-bit mode, as in firmware."""
    return re.search(r"\bEIP=", text) is not None


def parse_registers(text: str) -> CpuRegisters | None:
    """Parse QEMU's ``info registers`` of x86-64; return None when it is of another machine."""
    idt = re.search(r"\bIDT=\s*([0-9a-f]{16}) ", text)
    cr3 = re.search(r"\bCR3=([0-9a-f]{16})\b", text)
    cr4 = re.search(r"\bCR4=([0-9a-f]+)\b", text)
    if idt is None or cr3 is None or cr4 is None:
        return None
    return CpuRegisters(int(idt[1], 16), int(cr3[1], 16), int(cr4[1], 16))


def translate(read: ReadMemory, cpu: CpuRegisters, address: int) -> int | None:
    """Return the physical address of a virtual one by the page tables of an x86-64 CPU, None when it is not mapped."""
    table = cpu.cr3 & _ADDRESS
    for level in range(5 if cpu.cr4 & _CR4_LA57 else 4, 0, -1):
        shift = 12 + 9 * (level - 1)
        try:
            entry = _WORD.unpack(read(table + 8 * (address >> shift & 0x1FF), 8))[0]
        except (StubReadError, struct.error):
            return None
        if not entry & _PRESENT:
            return None
        if level == 1 or (level <= 3 and entry & _LARGE):
            span = (1 << shift) - 1
            return int(entry & _ADDRESS & ~span | address & span)
        table = entry & _ADDRESS
    return None


def make_notes(client: Stub, registers: StubRegisters, vmcoreinfo: bytes) -> bytes:
    """Return the ELF notes that a dump of the machine would have: VMCOREINFO, and the registers of each CPU."""
    notes = b""
    for cpu in range(_MAX_CPUS):
        status = registers.make_prstatus(cpu, client.registers(cpu + 1))
        if status is None:
            break
        notes += make_note("CORE", NT_PRSTATUS, status)
    return notes + make_note(VMCOREINFO, 0, vmcoreinfo)


class FoundKernel(NamedTuple):
    """A kernel found in a machine."""

    vmcoreinfo: bytes
    kaslr_offset: int


CheckImage = Callable[[int, Read], None]
"""Compare a vmlinux with the kernel in memory, by the KASLR offset; raises MismatchError."""


def find_kernel(
    where: str, cpu: CpuRegisters, physical: ReadMemory, symbols: dict[str, int], check: CheckImage | None = None
) -> FoundKernel:
    """Find the KASLR offset by the interrupt descriptor table, and VMCOREINFO by the offset.

    :param where: what messages call the machine.
    :param physical: reads physical memory.
    :param symbols: addresses of :data:`SYMBOLS` in the vmlinux.
    :param check: compares the image, before variables of the kernel are read.
    :raises NotBootedError: when it is too early in its boot.
    :raises MismatchError: when it is another kernel.
    :raises TargetError: when the kernel cannot be described.
    """
    try:
        return _find_by_tables(where, cpu, physical, symbols, check)
    except TargetError:
        if not cpu.cr3 & _PTI_SWITCH:
            raise
        # The CPU may have been stopped in user space, with the page table that lacks most of the kernel. Tried second: without
        # page-table isolation, this page is not a page table.
        try:
            return _find_by_tables(where, cpu._replace(cr3=cpu.cr3 & ~_PTI_SWITCH), physical, symbols, check)
        except TargetError:
            pass
        raise


def _find_by_tables(
    where: str, cpu: CpuRegisters, physical: ReadMemory, symbols: dict[str, int], check: CheckImage | None
) -> FoundKernel:
    def virtual(address: int, size: int) -> bytes:
        found = translate(physical, cpu, address)
        if found is None:
            raise StubReadError(f"{address:#x} is not mapped")
        return physical(found, size)

    def read_image(address: int, size: int) -> bytes:
        # Contiguous in physical memory, so that what spans pages is read at once.
        try:
            return virtual(address, size)
        except StubReadError as error:
            raise ReadError(f"could not read the kernel's memory: {error}", address) from None

    try:
        gate = virtual(cpu.idt, IDT_GATE_SIZE)
    except StubReadError:
        raise NotBootedError(
            f"the machine at {where} has no interrupt descriptor table of a 64-bit kernel",
            hint="it may not have booted yet: let it run, then try again",
        ) from None
    link = next((symbols[name] for name in DIVIDE_ERROR if name in symbols), None)
    if link is None:
        raise TargetError(f"the vmlinux has no symbol {DIVIDE_ERROR[0]}", hint="is it a kernel for x86-64?")
    handler = gate_handler(gate)
    early = symbols.get("early_idt_handler_array")
    # The table of what loads the kernel, or the kernel's before idt_setup_traps().
    if handler < UPPER_HALF_START or (early is not None and (handler - early) % X86_ALIGNMENT == 0):
        raise NotBootedError(f"the kernel at {where} is still booting", hint="let it run, then try again")
    offset = handler - link
    try:
        _check_offset(offset)
        if check is not None:
            check(offset, read_image)
    except MismatchError as error:
        release = _search_release(virtual, handler)
        detail = f"its release is {release}" if release is not None else str(error)
        raise MismatchError(
            f"the vmlinux does not match the kernel at {where}: {detail}", hint="give the vmlinux of the same build"
        ) from None
    except ReadError as error:
        raise NotBootedError(str(error), hint=_READ_HINT) from None
    if "vmcoreinfo_data" in symbols or "init_top_pgt" not in symbols:
        return FoundKernel(read_vmcoreinfo(virtual, symbols, offset), offset)
    return FoundKernel(_make_vmcoreinfo(cpu, physical, read_image, symbols, offset), offset)


def _check_offset(offset: int) -> None:
    if offset % X86_ALIGNMENT or not 0 <= offset < X86_RANGE:
        raise MismatchError("the kernel's divide error handler is not at its address")


def _search_release(virtual: ReadMemory, handler: int) -> str | None:
    """Return the release of the kernel that an address in its text leads to."""
    start = handler - handler % X86_ALIGNMENT
    rest = b""
    for address in range(start, start + _MAX_IMAGE, X86_ALIGNMENT):
        try:
            data = rest + virtual(address, X86_ALIGNMENT)
        except StubReadError:
            return None
        position = data.find(BANNER)
        while position >= 0:
            # The text of a message that prints it has no version.
            release = find_release(data[position : position + _MAX_BANNER])
            if release is not None and release[:1].isdigit():
                return release
            position = data.find(BANNER, position + 1)
        rest = data[-_MAX_BANNER:]
    return None


def _make_vmcoreinfo(cpu: CpuRegisters, physical: ReadMemory, read: Read, symbols: dict[str, int], offset: int) -> bytes:
    """Return what VMCOREINFO would say of a kernel without CONFIG_VMCORE_INFO, as far as its memory is found by."""
    table = symbols["init_top_pgt"] + offset
    position = translate(physical, cpu, table)
    release = find_release(read(symbols["linux_banner"] + offset, _MAX_BANNER)) if "linux_banner" in symbols else None
    if position is None or release is None:
        raise TargetError("the kernel has no VMCOREINFO", hint=_NEEDS)
    return _format_vmcoreinfo(release, table, offset, position - (table - _IMAGE_START), bool(cpu.cr4 & _CR4_LA57))


def _format_vmcoreinfo(release: str, table: int, offset: int, base: int = 0, has_five_levels: bool = False) -> bytes:
    lines = (
        f"OSRELEASE={release}",
        f"PAGESIZE={PAGE_SIZE}",
        f"SYMBOL(swapper_pg_dir)={table:x}",
        f"NUMBER(phys_base)={base}",
        f"NUMBER(pgtable_l5_enabled)={int(has_five_levels)}",
        f"KERNELOFFSET={offset:x}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def describe_virtual(virtual: ReadMemory, symbols: Mapping[str, int], offset: int) -> bytes:
    """Return the VMCOREINFO of a kernel whose virtual memory only is read, or as much as that takes.

    :raises TargetError: when the kernel cannot be described.
    """
    try:
        return read_vmcoreinfo(virtual, symbols, offset)
    except TargetError:
        if "linux_banner" not in symbols or "init_top_pgt" not in symbols:
            raise
        release = find_release(virtual(symbols["linux_banner"] + offset, _MAX_BANNER))
        if release is None:
            raise
        return _format_vmcoreinfo(release, symbols["init_top_pgt"] + offset, offset)


def read_vmcoreinfo(virtual: ReadMemory, symbols: Mapping[str, int], offset: int) -> bytes:
    """Return the VMCOREINFO in a kernel's memory.

    :param virtual: reads virtual memory.
    :param symbols: addresses of :data:`SYMBOLS` in the vmlinux.
    :param offset: the KASLR offset.
    :raises NotBootedError: when the kernel has not filled it yet.
    :raises TargetError: when the kernel has none.
    """
    try:
        if "vmcoreinfo_data" not in symbols or "vmcoreinfo_size" not in symbols:
            raise TargetError("the kernel has no VMCOREINFO", hint=_NEEDS)
        data = _WORD.unpack(virtual(symbols["vmcoreinfo_data"] + offset, 8))[0]
        size = _WORD.unpack(virtual(symbols["vmcoreinfo_size"] + offset, 8))[0]
        if not data or not 0 < size <= _MAX_VMCOREINFO:
            raise NotBootedError("the kernel has not filled its VMCOREINFO yet", hint="let it finish booting, then try again")
        text = b""
        while len(text) < size:
            # It need not be contiguous in physical memory.
            address = data + len(text)
            text += virtual(address, min(size - len(text), PAGE_SIZE - address % PAGE_SIZE))
    except StubReadError as error:
        raise NotBootedError(
            f"could not read the kernel's memory: {error}",
            hint=_READ_HINT,
        ) from None
    if b"OSRELEASE=" not in text:
        raise MismatchError(
            "the vmlinux does not match: the kernel's VMCOREINFO is not at its address",
            hint="give the vmlinux of the same build",
        )
    return text


# The member vmcore_info of struct lowcore (arch/s390/include/asm/lowcore.h), which dumpers read at this address; odd while the
# kernel boots.
_VMCORE_INFO: Final = 0x0E0C
# VMCOREINFO_BYTES and the head of a note, in whole pages.
_NOTE_SIZE: Final = 2 * PAGE_SIZE


def read_lowcore_vmcoreinfo(read: Callable[[int, int], bytes]) -> bytes:
    """Return the VMCOREINFO of an s390x kernel, whose address is in its lowcore: QEMU's dumps have no note of it.

    :param read: reads physical memory; raises StubReadError where there is none.
    :raises TargetError: when there is none.
    """
    try:
        address = int.from_bytes(read(_VMCORE_INFO, 8), "big")
        data = b"" if not address or address & 1 else read(address, _NOTE_SIZE)
    except StubReadError as error:
        raise TargetError(f"could not read the lowcore: {error}", hint="the dump may be truncated or damaged") from None
    for note in parse_notes(data, ">"):
        if note.name == VMCOREINFO:
            return note.desc.rstrip(b"\0")
    raise TargetError("the lowcore has no VMCOREINFO", hint="the guest needs CONFIG_KEXEC, and to have booted")
