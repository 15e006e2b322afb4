# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory that kcovdbg reads for a drgn Program: all memory of some targets; on some machines the
kernel's, which drgn cannot read, or reads at addresses that no kernel has.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import drgn

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, ReadMemory
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import (
    EM_386,
    EM_AARCH64,
    EM_ARM,
    EM_PPC64,
    EM_RISCV,
    EM_S390,
    EM_X86_64,
    PT_LOAD,
    ElfError,
    Header,
    parse_vmcoreinfo,
)
from kcovdbg.errors import ReadError, TargetError
from kcovdbg.input_file import PathName
from kcovdbg.target.drgn.drgn_messages import WALK_ERRORS, collect_warnings, walking
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.end_signals import holds_signals
from kcovdbg.target.pointer import UPPER_HALF_START
from kcovdbg.user_folder import find_debuginfod_cache

if TYPE_CHECKING:
    from kcovdbg.target.riscv_pages import PageTables

UPPER_HALF: Final = frozenset(
    {drgn.Architecture.X86_64, drgn.Architecture.AARCH64, drgn.Architecture.RISCV64}
)
"""Architectures whose kernels are in the upper half of the address space."""
PHYSICAL_SIZE: Final = 1 << 52
"""Size of physical address spaces, in bytes: supported machines have at most 52 bits."""
# Addresses of the only page of an empty dump, which no machine has.
_NOWHERE: Final = 0x8000_0000_0000_0000
_NO_PAGE: Final = PHYSICAL_SIZE - PAGE_SIZE
_ARCHITECTURES: Final = {
    EM_386: drgn.Architecture.I386,
    EM_PPC64: drgn.Architecture.PPC64,
    EM_S390: drgn.Architecture.S390X,
    EM_ARM: drgn.Architecture.ARM,
    EM_X86_64: drgn.Architecture.X86_64,
    EM_AARCH64: drgn.Architecture.AARCH64,
    EM_RISCV: drgn.Architecture.RISCV64,
}
SLICE_MACHINES: Final = {
    _ARCHITECTURES[machine]: machine
    for machine in (EM_X86_64, EM_AARCH64, EM_RISCV, EM_PPC64, EM_S390)
}
"""``e_machine`` of the architectures whose kernels can be sliced."""
_ERRORS: Final = (LookupError, drgn.FaultError, NotImplementedError, ValueError)


def platform_of(header: Header) -> drgn.Platform:
    """Return the platform of an ELF file."""
    flags = drgn.PlatformFlags(0)
    if header.is_64bit:
        flags |= drgn.PlatformFlags.IS_64_BIT
    if not header.big_endian:
        flags |= drgn.PlatformFlags.IS_LITTLE_ENDIAN
    return drgn.Platform(_ARCHITECTURES.get(header.machine, drgn.Architecture.UNKNOWN), flags)


def add_memory(
    prog: drgn.Program,
    read: ReadMemory,
    start: int = 0,
    size: int = PHYSICAL_SIZE,
    *,
    is_physical: bool = True,
) -> None:
    """Let a Program read memory by a function of kcovdbg."""

    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        try:
            return read(address, count)
        except (ReadError, ElfError) as error:
            raise drgn.FaultError(str(error), getattr(error, "address", address)) from None

    prog.add_memory_segment(start, size, answer, is_physical)


def physical_memory(prog: drgn.Program) -> ReadMemory:
    """Return a reader of a Program's physical memory."""

    def read(address: int, size: int) -> bytes:
        try:
            data: bytes = prog.read(address, size, True)
        except drgn.FaultError as error:
            raise ReadError(str(error), error.address) from None
        return data

    return read


class CachedMemory:
    """Memory of a stopped machine. Each block is read once, until :meth:`forget`.

    :param read: reads from the machine.
    :param block: bytes to read at once; a power of two, and at most a page, as the next page may be
        unreadable.
    """

    def __init__(self, read: ReadMemory, block: int = PAGE_SIZE) -> None:
        self._read = read
        self._block = block
        self.blocks: dict[int, bytes] = {}
        """The blocks that were read, by number."""

    def forget(self, block: int | None = None) -> None:
        """Drop all blocks, as the machine has run.

        :param block: bytes to read at once from now on; None for no change.
        """
        self.blocks.clear()
        self._block = block or self._block

    def read(self, address: int, size: int) -> bytes:
        """Read a span of memory.

        :raises ReadError: when a block of it is unreadable.
        """
        block, blocks = self._block, self.blocks
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
        """Read the missing blocks, adjacent ones at once."""
        missing = [number for number in range(first, last + 1) if number not in self.blocks]
        for _, group in itertools.groupby(enumerate(missing), key=lambda pair: pair[1] - pair[0]):
            numbers = [number for _, number in group]
            data = self._read(numbers[0] * self._block, len(numbers) * self._block)
            for index, number in enumerate(numbers):
                self.blocks[number] = data[index * self._block : (index + 1) * self._block]


# Plugins of drgn and of kcovdbg that add commands to drgn's shell.
_COMMAND_PLUGINS: Final = ("builtin_commands", "crash_commands", "kcov")
_DISABLED_PLUGINS: Final = "DRGN_DISABLE_PLUGINS"


@contextlib.contextmanager
def without_command_plugins() -> Iterator[None]:
    """Keep drgn from loading plugins in the block that only add commands to its shell.

    drgn loads plugins for the first Program that gets memory. These import all of drgn's helpers,
    which takes a fifth of the time to open a dump.
    """
    given = os.environ.get(_DISABLED_PLUGINS)
    os.environ[_DISABLED_PLUGINS] = ",".join(filter(None, (given, *_COMMAND_PLUGINS)))
    try:
        yield
    finally:
        del os.environ[_DISABLED_PLUGINS]
        if given is not None:
            os.environ[_DISABLED_PLUGINS] = given


@without_command_plugins()
def open_empty_program(machine: int, notes: bytes, vmcoreinfo: bytes | None = None) -> drgn.Program:
    """Return the Program of a dump that has notes but no memory. The caller adds memory.

    Unlike a Program after :meth:`drgn.Program.set_linux_kernel_custom`, it has the registers of
    each CPU, by which running tasks are unwound.

    :param machine: ``e_machine`` of a 64-bit kernel, which also decides the byte order.
    :param notes: ELF notes with VMCOREINFO.
    :param vmcoreinfo: the VMCOREINFO to use instead of the one in the notes.
    """
    from kcovdbg.target.slice_file import build_slice

    content = build_slice(machine, notes, {_NO_PAGE: bytes(PAGE_SIZE)}, _NOWHERE - _NO_PAGE, ())
    import tempfile

    with tempfile.NamedTemporaryFile(prefix="kcovdbg-") as file:
        file.writelines(content)
        file.flush()
        prog = drgn.Program(vmcoreinfo=vmcoreinfo)
        # The Program keeps the file open when the name is removed.
        prog.set_core_dump(Path(file.name))
    return prog


_DEBUGINFOD: Final = "debuginfod"


def load_debug_info(prog: drgn.Program, paths: Sequence[PathName]) -> None:
    """Load debug info from files, and from the places that drgn searches. For root, these do not
    include another user's cache of debuginfod's client.

    :raises drgn.MissingDebugInfoError: when some debug info is not found.
    """
    enabled = prog.enabled_debug_info_finders()
    if _DEBUGINFOD in enabled and find_debuginfod_cache() is None:
        prog.set_enabled_debug_info_finders([name for name in enabled if name != _DEBUGINFOD])
    prog.load_debug_info(list(paths), default=True)


def copy_program(prog: drgn.Program, notes: bytes, read: ReadMemory) -> drgn.Program:
    """Return another Program of the same kernel, with the same debug info.

    :param notes: ELF notes of a dump, with the registers of the CPUs.
    :param read: reads its physical memory.
    """
    assert prog.platform is not None
    made = open_empty_program(
        SLICE_MACHINES[prog.platform.arch], notes, prog["VMCOREINFO"].string_()
    )
    add_memory(made, read)
    add_kernel_memory(made)
    paths = [*filter(None, (working_path(module.debug_file_path) for module in prog.modules()))]
    # The warnings were shown when the target was opened.
    with collect_warnings(), contextlib.suppress(drgn.MissingDebugInfoError):
        load_debug_info(made, paths)
    exclude_per_cpu_data(made)
    return made


def add_kernel_memory(prog: drgn.Program) -> None:
    """Let a new Program of kcovdbg read virtual memory only at addresses that a kernel can have,
    and by the kernel's page tables if drgn does not walk them.

    In a QEMU dump without paging, virtual addresses are physical ones, so that NULL would read as
    memory of the firmware.

    :raises TargetError: when the kernel's page tables cannot be found.
    """
    assert prog.platform is not None
    if prog.platform.arch in UPPER_HALF:
        add_memory(prog, _refuse, size=UPPER_HALF_START, is_physical=False)
    if is_walked(prog):
        size = (1 << 64) - UPPER_HALF_START
        add_memory(prog, _page_tables(prog).read, UPPER_HALF_START, size, is_physical=False)


def _refuse(address: int, size: int) -> bytes:
    del size
    raise ReadError("not a kernel address", address)


def vmcoreinfo_of(prog: drgn.Program) -> dict[str, str]:
    """Return the lines ``KEY=value`` of the kernel's VMCOREINFO; empty when it has none."""
    try:
        return parse_vmcoreinfo(prog["VMCOREINFO"].string_())
    except WALK_ERRORS:
        return {}


def is_walked(prog: drgn.Program) -> bool:
    """Return whether kcovdbg walks the page tables of this machine, because drgn does not."""
    return prog.platform is not None and prog.platform.arch == drgn.Architecture.RISCV64


def translate(prog: drgn.Program, address: int) -> int | None:
    """Return the physical address for a virtual address of the kernel, None if it is not mapped."""
    try:
        if is_walked(prog):
            return _page_tables(prog).translate(address)
        from drgn.helpers.linux.mm import follow_phys

        return int(follow_phys(prog["init_mm"].address_of_(), address))
    except _ERRORS:
        return None


def direct_map_start(prog: drgn.Program) -> int | None:
    """Return the virtual address of physical address 0, None if there is no direct map, or it is
    unknown.
    """
    if is_walked(prog):
        from kcovdbg.target.riscv_pages import find_direct_map

        return find_direct_map(vmcoreinfo_of(prog))
    try:
        with walking("the direct map"):
            from drgn.helpers.linux.mm import phys_to_virt

            return int(phys_to_virt(prog, 0))
    except (ReadError, NotImplementedError):
        return None


def _page_tables(prog: drgn.Program) -> PageTables:
    from kcovdbg.target.riscv_pages import find_page_tables

    return find_page_tables(
        vmcoreinfo_of(prog), lambda address, size: prog.read(address, size, True)
    )


def exclude_per_cpu_data(prog: drgn.Program) -> None:
    """Take per-CPU data out of the address range of the kernel's image.

    The addresses of per-CPU symbols are offsets from 0, which KASLR does not move. drgn adds the
    KASLR offset to all addresses in the range of the image. In a file of objcopy --only-keep-debug,
    the segment of per-CPU data has no contents, and drgn includes it in the range.
    """
    try:
        main = prog.main_module()
    except LookupError:
        return
    path, bias = working_path(main.debug_file_path), main.debug_file_bias
    # If the range starts at the bias, it includes the segment at address 0.
    if path is None or not bias or not main.address_ranges or main.address_ranges[0][0] != bias:
        return
    try:
        with ElfFile(path) as image:
            loaded = [segment for segment in image.segments if segment.type == PT_LOAD]
    except TargetError:
        return
    kernel = [segment for segment in loaded if segment.vaddr >= UPPER_HALF_START]
    if kernel:
        start = min(segment.vaddr for segment in kernel)
        end = max(segment.vaddr + segment.memsz for segment in kernel)
        main.address_ranges = [(start + bias & WORD_MASK, end + bias & WORD_MASK)]
