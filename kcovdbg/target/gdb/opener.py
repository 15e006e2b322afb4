# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens the kernel of GDB's selected inferior.

GDB silently answers from the vmlinux file when it has no target or the target lacks a page: a target is returned only after
its memory was compared with the vmlinux.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import gdb
from kcovdbg.abi.address import WORD_MASK
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64, EM_X86_64
from kcovdbg.elf.segment import PT_LOAD
from kcovdbg.errors import KcovdbgError, ReadError, TargetError
from kcovdbg.target import arm64_kernel
from kcovdbg.target.gdb.kernel import GdbKernel, find_kernel
from kcovdbg.target.gdb.memory import make_reader, open_core
from kcovdbg.target.gdb.stub import Stub, find_packets, identify_stub
from kcovdbg.target.gdb.target import FoundOffset, GdbTarget
from kcovdbg.target.kaslr import MismatchError, Read, check_image, offset_from_idt, search_offset, user_mode_of_cpus
from kcovdbg.target.stub_kernel import read_by_monitor

_NOTHING_OPEN: Final = "connect to a guest (target remote ADDRESS), or open a core (core-file PATH)"
# What makes system calls, in C, by machine: x86-64 and arm64.
_SYSTEM_CALL: Final = ("do_syscall_64", "do_el0_svc")

# The KASLR offset of the last target: tried first, and checked against the target's memory again.
_last_offset: dict[tuple[str, str], FoundOffset] = {}


def open_target(kaslr_offset: int | None = None) -> GdbTarget:
    """Return the kernel of the selected inferior, checked to be that of the loaded vmlinux.

    :param kaslr_offset: as set by the user, if at all.
    :raises TargetError: when there is no target, or GDB would read something else than the kernel of the vmlinux.
    """
    inferior = gdb.selected_inferior()
    connection = inferior.connection
    if connection is None or not connection.is_valid():
        raise TargetError("no target: GDB would answer from the vmlinux file", hint=_NOTHING_OPEN)
    kernel = find_kernel()
    core: ElfFile | None = None
    stub: Stub | None = None
    name = connection.details or connection.type
    if connection.type == "core":
        core = open_core()
        name = str(core.path)
    else:
        _check_stopped()
        if "remote" in connection.type:
            stub = identify_stub()
    read = make_reader(core, stub, kernel.image.header.machine)
    key = (kernel.image.path.as_posix(), f"{connection.num} {name}")
    if core is not None:
        _check_core(kernel.image, core)
    offset = _find_offset(kernel, core, read, kaslr_offset, _last_offset.get(key))
    _last_offset.clear()
    _last_offset[key] = offset
    return GdbTarget(kernel, name, core, offset, read, stub)


def _check_stopped() -> None:
    thread = gdb.selected_thread()
    if thread is None:
        raise TargetError("the target has no CPU", hint=_NOTHING_OPEN)
    if thread.is_running():
        raise TargetError("the target is running", hint="stop it first: C-c, or interrupt")


def _check_core(image: ElfFile, core: ElfFile) -> None:
    """Refuse a core that has no virtual addresses of the kernel."""
    init = image.symbols.find("init_task")
    if init is None or not init.address >> 63:
        return
    if not any(segment.vaddr >> 63 for segment in core.segments if segment.type == PT_LOAD and segment.filesz):
        raise TargetError(
            f"{core.path} has physical addresses only: GDB would answer from the vmlinux file",
            hint=f"read it outside of GDB: kcovdbg -c {core.path} -s {image.path}",
        )


def _find_offset(
    kernel: GdbKernel, core: ElfFile | None, read: Read, given: int | None, last: FoundOffset | None
) -> FoundOffset:
    image = kernel.image
    info = core.vmcoreinfo if core is not None else {}
    if given is not None:
        check_image(image, given, read, info)
        return FoundOffset(given, "as set by `set kcov kaslr-offset`")
    if last is not None:
        try:
            check_image(image, last.offset, read, info)
            return last
        except (MismatchError, ReadError):
            # The guest was restarted, or its CPU is in user mode.
            pass
    failure: KcovdbgError | None = None
    for candidate in _candidates(kernel, core, read):
        try:
            check_image(image, candidate.offset, read, info)
            return candidate
        except (MismatchError, ReadError) as error:
            # Later candidates are guesses: their failures say less than the first one.
            failure = failure or error
    if core is None:
        _refuse_physical()
        _refuse_user_mode(image, read)
    if isinstance(failure, MismatchError):
        raise TargetError(str(failure), hint="load the vmlinux of the target's kernel: symbol-file VMLINUX")
    raise TargetError(
        f"could not find the kernel in memory: {failure}" if failure is not None else "could not find the kernel in memory",
        hint="give its KASLR offset: set kcov kaslr-offset OFFSET",
    )


def _candidates(kernel: GdbKernel, core: ElfFile | None, read: Read) -> Iterator[FoundOffset]:
    image = kernel.image
    if core is not None and "KERNELOFFSET" in core.vmcoreinfo:
        yield FoundOffset(int(core.vmcoreinfo["KERNELOFFSET"], 16), "from the core's VMCOREINFO")
    if core is None:
        yield from _offsets_by_cpu(image, read)
    if kernel.relocation:
        yield FoundOffset(kernel.relocation, "as the loaded symbols are relocated")
    yield FoundOffset(0, "not shifted")
    offset = search_offset(image, read)
    if offset is not None:
        yield FoundOffset(offset, "found by searching for linux_banner")


def _offsets_by_cpu(image: ElfFile, read: Read) -> Iterator[FoundOffset]:
    """Yield the KASLR offsets that the selected CPU's registers lead to, in user mode as well."""
    if image.header.machine == EM_X86_64:
        offset = offset_from_idt(image, _monitor("info registers"), read)
        if offset is not None:
            yield FoundOffset(offset, "from the IDT, by QEMU's `info registers`")
    elif image.header.machine == EM_AARCH64:
        for found in _find_arm64_offsets(image):
            yield FoundOffset(found, "from the CPU's page table, by QEMU's monitor")


def _monitor(command: str) -> str:
    """Return the answer of the stub's monitor, empty when it has no such command."""
    try:
        return gdb.execute(f"monitor {command}", to_string=True)
    except gdb.error:
        return ""


def _find_arm64_offsets(image: ElfFile) -> list[int]:
    """Return the KASLR offsets that the page table of the selected CPU leads to; none where the stub does not tell them."""
    registers = arm64_kernel.read_registers(_read_register)
    if registers is None:
        return []
    symbols = {symbol.name: symbol.address for symbol in filter(None, map(image.symbols.find, arm64_kernel.SYMBOLS))}
    return arm64_kernel.find_offsets(registers, lambda address, size: read_by_monitor(_monitor, address, size), symbols)


def _read_register(name: str) -> int | None:
    """Return a register of the selected CPU, None when the stub has none of this name."""
    try:
        return int(gdb.newest_frame().read_register(name)) & WORD_MASK
    except (gdb.error, ValueError):
        return None


def _refuse_physical() -> None:
    """Refuse a stub of QEMU that another debugger left in physical memory mode, which outlasts the connection."""
    send = find_packets()
    try:
        answer = send("qqemu.PhyMemMode") if send is not None else b""
    except gdb.error:
        return
    if answer == b"1":
        raise TargetError(
            "QEMU's stub reads physical memory: another debugger switched it",
            hint="switch it back: maint packet Qqemu.PhyMemMode:0",
        )


def _refuse_user_mode(image: ElfFile, read: Read) -> None:
    in_user_mode = user_mode_of_cpus(_monitor("info registers -a"))
    thread = gdb.selected_thread()
    if thread is None:
        return
    # QEMU's stub numbers its threads, one for each CPU in order, from 1.
    cpu = thread.ptid[1] - 1
    if not 0 <= cpu < len(in_user_mode) or not in_user_mode[cpu]:
        return
    others = [number for number, is_user in enumerate(in_user_mode) if not is_user]
    threads = {other.ptid[1] - 1: other.num for other in gdb.selected_inferior().threads()}
    found = next(_offsets_by_cpu(image, read), None)
    entry = next(filter(None, map(image.symbols.find, _SYSTEM_CALL)), None)
    if others and others[0] in threads:
        hint = f"select a CPU that is in the kernel: thread {threads[others[0]]}"
    elif found is not None and entry is not None:
        hint = f"let it enter the kernel: thbreak *{entry.address + found.offset:#x}, then continue"
    else:
        hint = "let it run and stop it again, until it is in the kernel"
    raise TargetError(f"CPU {cpu} is in user mode, from where the kernel's memory cannot be read", hint=hint)
