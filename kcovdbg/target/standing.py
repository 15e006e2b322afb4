# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that stands still in a machine, read through its GDB stub: where its memory, its image and its VMCOREINFO are.

x86-64 in QEMU: memory is read by physical address, so that it doesn't matter what the CPU was doing when it stopped; under
page-table isolation, a CPU in user space has page tables without the kernel. The image is found by the interrupt descriptor
table, whose first gate leads to ``asm_exc_divide_error``. Other stubs: by virtual address, without KASLR.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from kcovdbg.errors import TargetError
from kcovdbg.target import elf
from kcovdbg.target.rsp import RspClient, StubReadError

PAGE: Final = 4096
_WORD: Final = struct.Struct("<Q")
_PRESENT: Final = 1
_LARGE: Final = 0x80
_ADDRESS: Final = 0x000F_FFFF_FFFF_F000
# X86_CR3_PTI_PCID_USER_BIT's neighbour: the user's page table is the page after the kernel's (PTI_PGTABLE_SWITCH_BIT).
_PTI_SWITCH: Final = 0x1000
_CR4_LA57: Final = 1 << 12
# The names of gate 0's handler, newest first. Renamed by "x86/entry: Convert Divide Error to
# IDTENTRY" (in v5.8).
DIVIDE_ERROR: Final = ("asm_exc_divide_error", "divide_error")
VMCOREINFO_SYMBOLS: Final = ("vmcoreinfo_data", "vmcoreinfo_size", "vmcoreinfo_note")
_MAX_VMCOREINFO: Final = 1 << 16
_MAX_CPUS: Final = 4096
# What a `g` packet of x86-64 starts with: 16 general registers, rip, eflags, six segments.
_GDB_REGISTERS: Final = struct.Struct("<17Q7I")
_PRSTATUS_SIZE: Final = 336

ReadMemory = Callable[[int, int], bytes]


class Ram(NamedTuple):
    """A range of physical memory, the end excluded."""

    start: int
    end: int


class CachedMemory:
    """Pages of a machine that stands still, each read once.

    :param read: reads from the machine.
    """

    def __init__(self, read: ReadMemory) -> None:
        self._read = read
        self._pages: dict[int, bytes] = {}

    def read(self, address: int, size: int) -> bytes:
        """Read any span.

        :raises StubReadError: when any page of it can't be read.
        """
        first, last = address // PAGE, (address + size - 1) // PAGE
        pages = self._pages
        if first == last:
            page = pages.get(first)
            if page is None:
                page = pages[first] = self._read(first * PAGE, PAGE)
            offset = address % PAGE
            return page[offset : offset + size]
        parts = []
        for number in range(first, last + 1):
            page = pages.get(number)
            if page is None:
                page = pages[number] = self._read(number * PAGE, PAGE)
            parts.append(page)
        data = b"".join(parts)
        offset = address - first * PAGE
        return data[offset : offset + size]

    @property
    def page_count(self) -> int:
        """How many pages have been read."""
        return len(self._pages)


def find_ram(text: str) -> list[Ram]:
    """Find the physical memory in what QEMU's monitor says to ``info mtree -f``; empty where it can't be understood.

    Reads elsewhere would give zeros, or make a device act.
    """
    for view in text.replace("\r", "").split("FlatView ")[1:]:
        if not re.search(r'^ AS "memory"', view, re.MULTILINE):
            continue
        found: list[Ram] = []
        pattern = r"^\s*([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, (?:nv-)?(?:ram|rom|romd)\)"
        for start, end in re.findall(pattern, view, re.MULTILINE):
            low, high = int(start, 16), int(end, 16) + 1
            if found and found[-1].end == low:
                found[-1] = Ram(found[-1].start, high)
            else:
                found.append(Ram(low, high))
        # Only whole pages.
        return [Ram(-(-low // PAGE) * PAGE, high // PAGE * PAGE) for low, high in found if high // PAGE > -(-low // PAGE)]
    return []


class Cpu(NamedTuple):
    """The registers that tell where an x86-64 kernel is."""

    idt: int
    cr3: int
    cr4: int


def parse_registers(text: str) -> Cpu | None:
    """Understand what QEMU's monitor says to ``info registers`` on x86-64, None where it is something else."""
    idt = re.search(r"\bIDT=\s*([0-9a-f]{16}) ", text)
    cr3 = re.search(r"\bCR3=([0-9a-f]{16})\b", text)
    cr4 = re.search(r"\bCR4=([0-9a-f]+)\b", text)
    if idt is None or cr3 is None or cr4 is None:
        return None
    return Cpu(int(idt[1], 16), int(cr3[1], 16), int(cr4[1], 16))


def translate(read: ReadMemory, cpu: Cpu, address: int) -> int | None:
    """Walk an x86-64 CPU's page tables: return the physical address of a virtual one, None where it isn't mapped."""
    return _walk(read, cpu.cr3 & _ADDRESS, 5 if cpu.cr4 & _CR4_LA57 else 4, address)


def _walk(read: ReadMemory, table: int, levels: int, address: int) -> int | None:
    for level in range(levels, 0, -1):
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


def make_notes(client: RspClient, vmcoreinfo: bytes) -> bytes:
    """Build the ELF notes that a dump of the machine would have: VMCOREINFO, and each x86-64 CPU's registers."""
    notes = b""
    for cpu in range(_MAX_CPUS):
        registers = client.registers(cpu + 1)
        if len(registers) < _GDB_REGISTERS.size:
            break
        notes += elf.make_note("CORE", elf.NT_PRSTATUS, _make_prstatus(cpu, registers))
    return notes + elf.make_note("VMCOREINFO", 0, vmcoreinfo)


def _make_prstatus(cpu: int, registers: bytes) -> bytes:
    """Build a ``struct elf_prstatus`` of x86-64 out of GDB's registers."""
    rax, rbx, rcx, rdx, rsi, rdi, rbp, rsp, *others = _GDB_REGISTERS.unpack_from(registers)
    r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags, cs, ss, ds, es, fs, gs = others
    # struct user_regs_struct; orig_rax, fs_base and gs_base aren't known and nobody asks for them.
    user = (
        r15,
        r14,
        r13,
        r12,
        rbp,
        rbx,
        r11,
        r10,
        r9,
        r8,
        rax,
        rcx,
        rdx,
        rsi,
        rdi,
        0,
        rip,
        cs,
        rflags,
        rsp,
        ss,
        0,
        0,
        ds,
        es,
        fs,
        gs,
    )
    status = bytearray(_PRSTATUS_SIZE)
    # As QEMU numbers CPUs in its dumps.
    struct.pack_into("<I", status, 32, cpu + 1)
    struct.pack_into("<27Q", status, 112, *user)
    return bytes(status)


class FoundKernel(NamedTuple):
    """What a stub's kernel says about itself."""

    vmcoreinfo: bytes
    kaslr_offset: int


def find_kernel(where: str, cpu: Cpu, physical: ReadMemory, symbols: dict[str, int]) -> FoundKernel:
    """Find the KASLR offset by the interrupt descriptor table, and VMCOREINFO by that.

    :param where: the machine, in the user's words.
    :param physical: reads physical memory.
    :param symbols: link addresses from the vmlinux.
    :raises TargetError: when it isn't this kernel, or it is too early in its boot.
    """
    try:
        return _find_by_tables(where, cpu, physical, symbols)
    except TargetError:
        if not cpu.cr3 & _PTI_SWITCH:
            raise
        # The CPU may have been in user space, with the page table that lacks most of the kernel. The other way round, where no
        # page tables are isolated, what lies there is anyone's page: so only in the second place.
        try:
            return _find_by_tables(where, cpu._replace(cr3=cpu.cr3 & ~_PTI_SWITCH), physical, symbols)
        except TargetError:
            pass
        raise


def _find_by_tables(where: str, cpu: Cpu, physical: ReadMemory, symbols: dict[str, int]) -> FoundKernel:
    def virtual(address: int, size: int) -> bytes:
        found = translate(physical, cpu, address)
        if found is None:
            raise StubReadError(f"{address:#x} isn't mapped")
        return physical(found, size)

    try:
        gate = virtual(cpu.idt, 16)
    except StubReadError:
        raise TargetError(
            f"the machine at {where} has no interrupt table of a 64-bit kernel",
            hint="it may not have booted yet: let it run and try again",
        ) from None
    low, _, _, middle, high = struct.unpack_from("<HHHHI", gate)
    handler = low | middle << 16 | high << 32
    link = next((symbols[name] for name in DIVIDE_ERROR if name in symbols), None)
    if link is None:
        raise TargetError("the vmlinux has no symbol of the divide error handler", hint="is it a kernel for x86-64?")
    offset = handler - link
    # KASLR moves by CONFIG_PHYSICAL_ALIGN, 2 MiB at least, within KERNEL_IMAGE_SIZE, 1 GiB.
    if offset % (2 << 20) or not 0 <= offset < 1 << 30:
        raise TargetError(
            "the vmlinux doesn't match: the kernel's divide error handler isn't where it should be",
            hint="give the vmlinux of the kernel that runs there; if it is right, let the kernel finish booting",
        )
    return FoundKernel(read_vmcoreinfo(virtual, symbols, offset), offset)


def read_vmcoreinfo(virtual: ReadMemory, symbols: dict[str, int], offset: int) -> bytes:
    """Read VMCOREINFO out of a kernel's memory.

    :param virtual: reads virtual memory.
    :param symbols: link addresses.
    :param offset: of KASLR.
    :raises TargetError: when there is none.
    """
    hint = "the kernel needs CONFIG_VMCORE_INFO (CONFIG_CRASH_CORE before v6.9), which CONFIG_KEXEC brings along"
    try:
        if "vmcoreinfo_data" not in symbols or "vmcoreinfo_size" not in symbols:
            raise TargetError("this kernel has no VMCOREINFO", hint=hint)
        data = _WORD.unpack(virtual(symbols["vmcoreinfo_data"] + offset, 8))[0]
        size = _WORD.unpack(virtual(symbols["vmcoreinfo_size"] + offset, 8))[0]
        if not data or not 0 < size <= _MAX_VMCOREINFO:
            raise TargetError("this kernel's VMCOREINFO isn't made yet", hint="let it finish booting, and try again")
        text = b""
        while len(text) < size:
            # It needn't be contiguous in physical memory.
            address = data + len(text)
            text += virtual(address, min(size - len(text), PAGE - address % PAGE))
    except StubReadError as error:
        raise TargetError(
            f"the kernel's memory can't be read: {error}",
            hint="let the kernel finish booting, or run in kernel mode; then try again",
        ) from None
    if b"OSRELEASE=" not in text:
        raise TargetError(
            "the vmlinux doesn't match: the kernel's VMCOREINFO isn't where it should be",
            hint="give the vmlinux of the kernel that runs there",
        )
    return text
