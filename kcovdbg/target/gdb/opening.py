# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens the kernel of GDB's selected inferior.

GDB silently answers from the vmlinux file where it has no target, or where the target lacks a page: every way to that is closed
here, before the first answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import gdb
from kcovdbg.errors import KcovdbgError, ReadError, TargetError
from kcovdbg.target.gdb.kernel import GdbKernel, find_kernel
from kcovdbg.target.gdb.reading import make_reader, open_core
from kcovdbg.target.gdb.target import GdbTarget, Way
from kcovdbg.target.image import ElfFile
from kcovdbg.target.relocation import MismatchError, Read, check_image, offset_of_idt, search_offset, user_mode_of_cpus

_NOTHING_OPEN: Final = "connect to a guest (target remote ADDRESS), or open a core (core-file PATH)"

# How the last target's shift was found: it is looked at first, and compared with the target's memory again.
_last_way: dict[tuple[str, str], Way] = {}


def open_target(kaslr_offset: int | None = None) -> GdbTarget:
    """Return the kernel of the selected inferior, once it is certain that answers come from it.

    :param kaslr_offset: what its image is shifted by, where the user says so.
    :raises TargetError: when there is no target, or what GDB would read isn't the kernel that the vmlinux is of.
    """
    inferior = gdb.selected_inferior()
    connection = inferior.connection
    if connection is None or not connection.is_valid():
        raise TargetError("there is no target: GDB would answer from the vmlinux file", hint=_NOTHING_OPEN)
    kernel = find_kernel()
    core: ElfFile | None = None
    name = connection.details or connection.type
    if connection.type == "core":
        core = open_core()
        name = str(core.path)
    else:
        _check_stopped()
    read = make_reader(core)
    key = (kernel.image.path.as_posix(), f"{connection.num} {name}")
    if core is not None:
        _check_core(kernel.image, core)
    way = _find_way(kernel, core, read, kaslr_offset, _last_way.get(key))
    _last_way.clear()
    _last_way[key] = way
    return GdbTarget(kernel, name, core, way, read)


def _check_stopped() -> None:
    thread = gdb.selected_thread()
    if thread is None:
        raise TargetError("the target has no CPU to look through", hint=_NOTHING_OPEN)
    if thread.is_running():
        raise TargetError("the target is running", hint="stop it first: C-c, or interrupt")


def _check_core(image: ElfFile, core: ElfFile) -> None:
    """Refuse a core in which the kernel's addresses mean nothing."""
    init = image.symbol("init_task")
    if init is None or not init.address >> 63 or image.word_size == 4:
        return
    if not any(segment.address >> 63 for segment in core.segments):
        raise TargetError(
            f"{core.path} holds physical addresses only: GDB would answer from the vmlinux file",
            hint=f"read it with: kcovdbg -c {core.path} -s {image.path}",
        )


def _find_way(kernel: GdbKernel, core: ElfFile | None, read: Read, given: int | None, last: Way | None) -> Way:
    image = kernel.image
    info = core.vmcoreinfo if core is not None else {}
    if given is not None:
        check_image(image, given, read, info)
        return Way(given, "as set by `set kcov kaslr-offset`")
    if last is not None:
        try:
            check_image(image, last.offset, read, info)
            return last
        except (MismatchError, ReadError):
            # The guest was restarted, or its CPU is in user mode now.
            pass
    failure: KcovdbgError | None = None
    for way in _ways(kernel, core, read):
        try:
            check_image(image, way.offset, read, info)
            return way
        except (MismatchError, ReadError) as error:
            # The first failure says most: later ways are guesses.
            failure = failure or error
    if core is None:
        _refuse_physical()
        _refuse_user_mode(image, read)
    if isinstance(failure, MismatchError):
        raise TargetError(str(failure), hint="load the vmlinux of the target's kernel: symbol-file VMLINUX")
    raise TargetError(
        f"the kernel isn't found in memory: {failure}" if failure is not None else "the kernel isn't found in memory",
        hint="say what it is shifted by: set kcov kaslr-offset OFFSET",
    )


def _ways(kernel: GdbKernel, core: ElfFile | None, read: Read) -> Iterator[Way]:
    image = kernel.image
    if core is not None and "KERNELOFFSET" in core.vmcoreinfo:
        yield Way(int(core.vmcoreinfo["KERNELOFFSET"], 16), "from the core's VMCOREINFO")
    if core is None and image.machine == "x86_64":
        offset = offset_of_idt(image, _monitor("info registers"), read)
        if offset is not None:
            yield Way(offset, "from the IDT, by QEMU's `info registers`")
    if kernel.relocation:
        yield Way(kernel.relocation, "as the loaded symbols are relocated")
    yield Way(0, "not shifted")
    offset = search_offset(image, read)
    if offset is not None:
        yield Way(offset, "found by searching for linux_banner")


def _monitor(command: str) -> str:
    """Ask what is behind the connection; what knows no such command answers nothing."""
    try:
        return gdb.execute(f"monitor {command}", to_string=True)
    except gdb.error:
        return ""


def _refuse_physical() -> None:
    """Refuse a stub of QEMU's that another debugger left reading physical memory: it does so for all that connect."""
    send = getattr(gdb.selected_inferior().connection, "send_packet", None)
    try:
        answer = send("qqemu.PhyMemMode") if send is not None else b""
    except gdb.error:
        return
    if answer == b"1":
        raise TargetError(
            "QEMU's stub answers from physical memory: another debugger told it to",
            hint="have it read virtual memory again: maint packet Qqemu.PhyMemMode:0",
        )


def _refuse_user_mode(image: ElfFile, read: Read) -> None:
    registers = _monitor("info registers -a")
    in_user_mode = user_mode_of_cpus(registers)
    thread = gdb.selected_thread()
    if thread is None:
        return
    # QEMU's stub numbers threads from 1 on, one for each virtual CPU in their order.
    cpu = thread.ptid[1] - 1
    if not 0 <= cpu < len(in_user_mode) or not in_user_mode[cpu]:
        return
    others = [number for number, is_user in enumerate(in_user_mode) if not is_user]
    threads = {other.ptid[1] - 1: other.num for other in gdb.selected_inferior().threads()}
    offset = offset_of_idt(image, registers, read)
    entry = image.symbol("do_syscall_64")
    if others and others[0] in threads:
        hint = f"look through a CPU that is in the kernel: thread {threads[others[0]]}"
    elif offset is not None and entry is not None:
        hint = f"let it enter the kernel: thbreak *{entry.address + offset:#x}, then continue"
    else:
        hint = "let it run and stop it again, until it is in the kernel"
    raise TargetError(f"CPU {cpu} is in user mode with page-table isolation, where the kernel's memory isn't mapped", hint=hint)
