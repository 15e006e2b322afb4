# SPDX-License-Identifier: LGPL-2.1-or-later
"""Finds the KASLR offset and the VMCOREINFO of a kernel in memory, for machines and for dumps
without VMCOREINFO, and checks that a vmlinux is its image.

QEMU's memory is read by physical address: if page-table isolation is on and a CPU was stopped in
user space, its page tables lack the kernel. On x86-64, the interrupt descriptor table leads to the
image; on arm64, see arm64_kernel.py; on s390x, the lowcore leads to VMCOREINFO. The memory of other
stubs is read by virtual address.

Functions take a reader of the target's memory. Debuggers read memory that a target lacks from the
vmlinux file: the reader must not do that.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from kcovdbg.abi.address import PAGE_SIZE, ReadMemory
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_X86_64, Note, find_build_id, find_vmcoreinfo, parse_notes
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.target.pointer import UPPER_HALF_START

CheckImage = Callable[[int, ReadMemory], None]
"""Compares a vmlinux with the kernel in memory at a KASLR offset; raises MismatchError."""

_NOTES: Final = (".notes", ".note.gnu.build-id")
X86_ALIGNMENT: Final = 2 << 20
"""The smallest CONFIG_PHYSICAL_ALIGN of x86-64, in bytes: KASLR offsets are multiples of it."""
X86_RANGE: Final = 1 << 30
"""KERNEL_IMAGE_SIZE: KASLR offsets of x86-64 are below it."""
DIVIDE_ERROR: Final = ("asm_exc_divide_error", "divide_error")
"""The names of gate 0's handler, newest first; changed by "x86/entry: Convert Divide Error to
IDTENTRY" (in v5.8).
"""
_GATE_SIZE: Final = 16
BANNER: Final = b"Linux version "
# Bytes of the banner by which it is searched for; all of it is compared later.
_BANNER_START: Final = 32


class MismatchError(TargetError):
    """The vmlinux is not the image of the target's kernel."""


def find_release(banner: bytes) -> str | None:
    """Return the release in ``linux_banner``, None when the bytes are not a banner."""
    words = banner.partition(b"\0")[0].split()
    if not banner.startswith(BANNER) or len(words) <= 2:
        return None
    return words[2].decode("utf-8", "backslashreplace")


def read_banner(image: ElfFile) -> tuple[int, bytes]:
    """Return the address and the bytes of ``linux_banner`` in a vmlinux; no bytes if it has no
    such symbol.
    """
    symbol = image.symbols.find("linux_banner")
    if symbol is None:
        return 0, b""
    # Symbols of assembly have no size; linux_banner is longer than this.
    return symbol.address, image.read(symbol.address, symbol.size or 64)


def check_image(image: ElfFile, offset: int, read: ReadMemory) -> None:
    """Check that a vmlinux is the image of the target's kernel, by ``linux_banner`` and build ID.

    :param offset: the KASLR offset.
    :param read: reads the target's memory.
    :raises MismatchError: when it is another kernel's.
    :raises ReadError: when neither of them can be read.
    """
    banner, ours = read_banner(image)
    spans: list[tuple[int, int]] = []
    if ours:
        spans.append((banner, len(ours)))
    if image.build_id:
        # The .notes of the kernel stay in memory, for /sys/kernel/notes.
        notes = (section for section in image.sections if section.name in _NOTES)
        spans += ((section.address, section.size) for section in notes if section.address)
    is_known = False
    failure: ReadError | None = None
    for address, size in spans:
        try:
            found = read(address + offset, size)
        except ReadError as error:
            failure = failure or error
            continue
        if ours and address == banner:
            is_same = found == ours
            release = find_release(found)
            problem = "linux_banner is not at its address"
            if release:
                problem = f"the target runs {release}"
        else:
            build_id = find_build_id(parse_notes(found, image.header.byte_order))
            is_same = build_id == image.build_id
            problem = "its build ID is not at its address"
            if build_id:
                problem = f"build ID {build_id} instead of {image.build_id}"
        if not is_same:
            raise MismatchError(f"{image.name}: not the vmlinux of the target: {problem}")
        is_known = True
    if not is_known:
        raise failure or ReadError(
            f"{image.name} has neither linux_banner nor a build ID to compare", 0
        )


def _search_offset(image: ElfFile, read: ReadMemory) -> int | None:
    """Search for ``linux_banner`` at each KASLR offset that a kernel of this machine can have.

    :return: the offset, None when it is not found.
    """
    address, banner = read_banner(image)
    start = banner[:_BANNER_START]
    if not start:
        return None
    offsets = range(1)
    if image.header.machine == EM_X86_64:
        offsets = range(0, X86_RANGE, X86_ALIGNMENT)
    for offset in offsets:
        with contextlib.suppress(ReadError):
            if read(address + offset, len(start)) == start:
                return offset
    return None


def find_offset(image: ElfFile, read: ReadMemory, candidates: Iterable[int]) -> int:
    """Return the KASLR offset of a kernel by its memory alone.

    :param read: reads the target's memory.
    :param candidates: offsets to try first.
    :raises TargetError: when the kernel of the vmlinux is at none of the possible offsets.
    """
    failure: TargetError | ReadError | None = None
    for offset in dict.fromkeys((*candidates, 0)):
        try:
            check_image(image, offset, read)
            return offset
        except (MismatchError, ReadError) as error:
            failure = failure or error
    found = _search_offset(image, read)
    if found is not None:
        check_image(image, found, read)
        return found
    raise TargetError(
        f"could not find the KASLR offset through this stub: {failure}",
        hint="boot the kernel with nokaslr, or use QEMU's stub; in GDB: set kcov kaslr-offset "
        "OFFSET",
    )


_PRESENT: Final = 1
_LARGE: Final = 0x80
_ADDRESS: Final = 0x000F_FFFF_FFFF_F000
# PTI_PGTABLE_SWITCH_BIT: the page table of user space is the page after the kernel's.
_PTI_SWITCH: Final = 0x1000
_CR4_LA57: Final = 1 << 12
# Data found by symbols of the vmlinux.
_NAMES: Final = (
    "early_idt_handler_array",
    "init_top_pgt",
    "linux_banner",
    "vmcoreinfo_data",
    "vmcoreinfo_size",
)
SYMBOLS: Final = (*DIVIDE_ERROR, *_NAMES)
_MAX_VMCOREINFO: Final = 1 << 16
# __START_KERNEL_map
_IMAGE_START: Final = 0xFFFF_FFFF_8000_0000
# Bytes from the text of an image in which linux_banner, which is read-only data, is searched for.
_MAX_IMAGE: Final = 256 << 20
_MAX_BANNER: Final = 512

_NEEDS: Final = (
    "the kernel needs CONFIG_VMCORE_INFO (CONFIG_CRASH_CORE before v6.9), which CONFIG_KEXEC "
    "selects"
)


class NotBootedError(TargetError):
    """The machine has not booted far enough to have a kernel that can be found."""


# QEMUCPUState (target/i386/arch_dump.c): version and size, 18 general registers, ten segments of 24
# bytes with the base in the last word, cr0 to cr4; since QEMU 3.0 also kernel_gs_base.
_QEMU_HEADER: Final = struct.Struct("<II")
_QEMU_VERSION: Final = 1
_IDT_BASE: Final = _QEMU_HEADER.size + 18 * 8 + 9 * 24 + 16
# The base of the last segment, which is the IDT, and cr0 to cr4.
_REGISTERS: Final = struct.Struct("<6Q")


class CpuRegisters(NamedTuple):
    """The registers of an x86-64 CPU by which the kernel is found."""

    idt: int
    cr3: int
    cr4: int

    def translate(self, read: ReadMemory, address: int) -> int | None:
        """Return the physical address for a virtual address by the CPU's page tables, None when it
        is not mapped.

        :param read: reads physical memory.
        """
        table = self.cr3 & _ADDRESS
        levels = 5 if self.cr4 & _CR4_LA57 else 4
        for level in range(levels, 0, -1):
            shift = 12 + 9 * (level - 1)
            try:
                entry = int.from_bytes(read(table + 8 * (address >> shift & 0x1FF), 8), "little")
            except ReadError:
                return None
            if not entry & _PRESENT:
                return None
            table = entry & _ADDRESS
            if level == 1 or (level <= 3 and entry & _LARGE):
                span = (1 << shift) - 1
                return table & ~span | address & span
        return None

    def find_kernel(
        self, where: str, physical: ReadMemory, symbols: Mapping[str, int], check: CheckImage
    ) -> bytes:
        """Return the VMCOREINFO of the kernel in a machine.

        :param where: the machine's name in messages.
        :param physical: reads physical memory.
        :param symbols: addresses of :data:`SYMBOLS` in the vmlinux.
        :param check: compares the image with the vmlinux, before variables of the kernel are read.
        :raises NotBootedError: when the kernel has not booted far enough.
        :raises MismatchError: when the machine has another kernel.
        :raises TargetError: when the kernel cannot be described.
        """
        try:
            return _find_by_tables(where, self, physical, symbols, check)
        except TargetError:
            if not self.cr3 & _PTI_SWITCH:
                raise
            # The CPU may have been stopped in user space, whose page table lacks most of the
            # kernel: try the kernel's page table. Without page-table isolation there is none.
            with contextlib.suppress(TargetError):
                cpu = self._replace(cr3=self.cr3 & ~_PTI_SWITCH)
                return _find_by_tables(where, cpu, physical, symbols, check)
            raise


def find_qemu_cpus(notes: Iterable[Note]) -> Iterator[CpuRegisters]:
    """Yield the CPUs in the notes of an x86 guest's dump, in the order of the notes."""
    for note in notes:
        if note.name != "QEMU" or len(note.desc) < _IDT_BASE + _REGISTERS.size:
            continue
        version, _ = _QEMU_HEADER.unpack_from(note.desc)
        if version == _QEMU_VERSION:
            idt, _, _, _, cr3, cr4 = _REGISTERS.unpack_from(note.desc, _IDT_BASE)
            yield CpuRegisters(idt, cr3, cr4)


def is_before_kernel(text: str) -> bool:
    """Return whether QEMU's ``info registers`` shows an x86 CPU that is not in 64-bit mode, as in
    firmware.
    """
    return re.search(r"\bEIP=", text) is not None


def parse_registers(text: str) -> CpuRegisters | None:
    """Parse QEMU's ``info registers`` of x86-64; return None for another machine."""
    idt = re.search(r"\bIDT=\s*([0-9a-f]{16}) ", text)
    cr3 = re.search(r"\bCR3=([0-9a-f]{16})\b", text)
    cr4 = re.search(r"\bCR4=([0-9a-f]{1,16})\b", text)
    if idt is None or cr3 is None or cr4 is None:
        return None
    return CpuRegisters(int(idt[1], 16), int(cr3[1], 16), int(cr4[1], 16))


def make_virtual_reader(find: Callable[[int], int | None], physical: ReadMemory) -> ReadMemory:
    """Return a reader of virtual memory. A read must not cross from one mapping into another.

    :param find: returns the physical address for a virtual address, None when it is not mapped.
    """

    def read(address: int, size: int) -> bytes:
        found = find(address)
        if found is None:
            raise ReadError(f"{address:#x} is not mapped", address)
        return physical(found, size)

    return read


def _find_by_tables(
    where: str,
    cpu: CpuRegisters,
    physical: ReadMemory,
    symbols: Mapping[str, int],
    check: CheckImage,
) -> bytes:
    virtual = make_virtual_reader(partial(cpu.translate, physical), physical)
    try:
        gate = virtual(cpu.idt, _GATE_SIZE)
    except ReadError:
        raise NotBootedError(
            f"the machine at {where} has no interrupt descriptor table of a 64-bit kernel",
            hint="it may not have booted yet: let it run, then try again",
        ) from None
    link = next((symbols[name] for name in DIVIDE_ERROR if name in symbols), None)
    if link is None:
        raise TargetError(
            f"the vmlinux has no symbol {DIVIDE_ERROR[0]}", hint="is it a kernel for x86-64?"
        )
    # The address is in two members of struct gate_struct.
    handler = int.from_bytes(gate[0:2] + gate[6:12], "little")
    early = symbols.get("early_idt_handler_array")
    # The table is the boot loader's, or the kernel's before idt_setup_traps().
    if handler < UPPER_HALF_START or (early is not None and (handler - early) % X86_ALIGNMENT == 0):
        raise NotBootedError(
            f"the kernel at {where} is still booting", hint="let it run, then try again"
        )
    offset = handler - link
    try:
        if offset % X86_ALIGNMENT or not 0 <= offset < X86_RANGE:
            problem = "the kernel's divide error handler is not at its address"
            raise MismatchError(problem)  # noqa: TRY301 (named below)
        check(offset, virtual)
    except MismatchError as error:
        release = _search_release(virtual, handler)
        detail = f"its release is {release}" if release is not None else str(error)
        raise MismatchError(
            f"the vmlinux does not match the kernel at {where}: {detail}",
            hint="give the vmlinux of the same build",
        ) from None
    except ReadError as error:
        raise _make_read_error(error) from None
    made = None
    if "vmcoreinfo_data" not in symbols and "init_top_pgt" in symbols:
        table = symbols["init_top_pgt"] + offset
        position = cpu.translate(physical, table)
        if position is not None:
            base, five = position - (table - _IMAGE_START), bool(cpu.cr4 & _CR4_LA57)
            made = _make_vmcoreinfo(virtual, symbols, offset, base, has_five_levels=five)
    return made or read_vmcoreinfo(virtual, symbols, offset)


def _make_read_error(error: ReadError) -> NotBootedError:
    return NotBootedError(
        f"could not read the kernel's memory: {error}",
        hint="let the kernel finish booting, or run in kernel mode; then try again",
    )


def _search_release(virtual: ReadMemory, handler: int) -> str | None:
    """Return the release of a kernel by an address in its text, None when it is not found."""
    start = handler - handler % X86_ALIGNMENT
    rest = b""
    for address in range(start, start + _MAX_IMAGE, X86_ALIGNMENT):
        try:
            data = rest + virtual(address, X86_ALIGNMENT)
        except ReadError:
            return None
        position = data.find(BANNER)
        while position >= 0:
            # A message that prints the release has the same start, but no version.
            release = find_release(data[position : position + _MAX_BANNER])
            if release is not None and release[:1].isdigit():
                return release
            position = data.find(BANNER, position + 1)
        rest = data[-_MAX_BANNER:]
    return None


def _make_vmcoreinfo(
    virtual: ReadMemory,
    symbols: Mapping[str, int],
    offset: int,
    base: int = 0,
    *,
    has_five_levels: bool = False,
) -> bytes | None:
    """Build the part of VMCOREINFO that is needed to translate addresses, for a kernel without
    CONFIG_VMCORE_INFO.

    :param base: ``phys_base``; needed if physical memory is read.
    :return: None when the vmlinux lacks symbols, or the kernel its banner.
    """
    if "linux_banner" not in symbols or "init_top_pgt" not in symbols:
        return None
    release = find_release(virtual(symbols["linux_banner"] + offset, _MAX_BANNER))
    if release is None:
        return None
    lines = (
        f"OSRELEASE={release}",
        f"PAGESIZE={PAGE_SIZE}",
        f"SYMBOL(swapper_pg_dir)={symbols['init_top_pgt'] + offset:x}",
        f"NUMBER(phys_base)={base}",
        f"NUMBER(pgtable_l5_enabled)={int(has_five_levels)}",
        f"KERNELOFFSET={offset:x}",
    )
    return "".join(f"{line}\n" for line in lines).encode()


def describe_virtual(virtual: ReadMemory, symbols: Mapping[str, int], offset: int) -> bytes:
    """Return the VMCOREINFO of a kernel whose virtual memory is read, or the part that this needs.

    :raises TargetError: when the kernel cannot be described.
    """
    try:
        return read_vmcoreinfo(virtual, symbols, offset)
    except TargetError:
        made = _make_vmcoreinfo(virtual, symbols, offset)
        if made is None:
            raise
        return made


def read_vmcoreinfo(virtual: ReadMemory, symbols: Mapping[str, int], offset: int) -> bytes:
    """Return the VMCOREINFO in a kernel's memory.

    :param virtual: reads virtual memory.
    :param symbols: addresses of :data:`SYMBOLS` in the vmlinux.
    :param offset: the KASLR offset.
    :raises NotBootedError: when the kernel has not filled in its VMCOREINFO yet.
    :raises TargetError: when the kernel has no VMCOREINFO.
    """
    try:
        if "vmcoreinfo_data" not in symbols or "vmcoreinfo_size" not in symbols:
            raise TargetError("the kernel has no VMCOREINFO", hint=_NEEDS)
        data, size = (
            int.from_bytes(virtual(symbols[name] + offset, 8), "little")
            for name in ("vmcoreinfo_data", "vmcoreinfo_size")
        )
        if not data or not 0 < size <= _MAX_VMCOREINFO:
            raise NotBootedError(
                "the kernel has not filled its VMCOREINFO yet",
                hint="let it finish booting, then try again",
            )
        text = b""
        while len(text) < size:
            # Its pages need not be contiguous in physical memory.
            address = data + len(text)
            text += virtual(address, min(size - len(text), PAGE_SIZE - address % PAGE_SIZE))
    except ReadError as error:
        raise _make_read_error(error) from None
    if b"OSRELEASE=" not in text:
        raise MismatchError(
            "the vmlinux does not match: the kernel's VMCOREINFO is not at its address",
            hint="give the vmlinux of the same build",
        )
    return text


# Address of the member vmcore_info of struct lowcore (arch/s390/include/asm/lowcore.h), which
# dumpers read. Its value is odd while the kernel boots.
_VMCORE_INFO: Final = 0x0E0C
# VMCOREINFO_BYTES and the header of a note, in whole pages.
_NOTE_SIZE: Final = 2 * PAGE_SIZE


def read_lowcore_vmcoreinfo(read: ReadMemory) -> bytes:
    """Return the VMCOREINFO of an s390x kernel, whose lowcore has the address of a note with it.
    QEMU's dumps do not have this note.

    :param read: reads physical memory; raises ReadError for memory that does not exist.
    :raises TargetError: when the kernel has no VMCOREINFO.
    """
    try:
        address = int.from_bytes(read(_VMCORE_INFO, 8), "big")
        is_set = address and not address & 1
        data = read(address, _NOTE_SIZE) if is_set else b""
    except ReadError as error:
        raise TargetError(
            f"could not read the lowcore: {error}", hint="the dump may be truncated or damaged"
        ) from None
    found = find_vmcoreinfo(parse_notes(data, ">")).rstrip(b"\0")
    if not found:
        raise TargetError(
            "the lowcore has no VMCOREINFO", hint="the guest needs CONFIG_KEXEC, and to have booted"
        )
    return found
