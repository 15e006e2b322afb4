# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reads the system calls that tasks are in, from the registers that were saved when a task entered
the kernel.

The registers are at the top of the kernel stack: ``task_pt_regs()`` of
arch/x86/include/asm/processor.h and arch/arm64/include/asm/processor.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias

from kcovdbg.abi.address import WORD_MASK
from kcovdbg.abi.syscall_names import argument_count, syscall_name
from kcovdbg.errors import KcovdbgError, MissingTypeError, ReadError
from kcovdbg.model.task import Syscall, TaskFields, TaskSyscall
from kcovdbg.target.pointer import check_pointer
from kcovdbg.target.struct_layout import BlockLayout, find_stack_size
from kcovdbg.target.target import Target

_PT_REGS: Final = "struct pt_regs"
# TOP_OF_KERNEL_STACK_PADDING of arch/x86/include/asm/thread_info.h: none, or with CONFIG_X86_FRED
# two words.
_X86_PADDINGS: Final = (0, 16)
# __USER_CS and __USER32_CS of arch/x86/include/asm/segment.h.
_USER_CS: Final = 0x33
_USER32_CS: Final = 0x23
# __X32_SYSCALL_BIT of arch/x86/include/uapi/asm/unistd.h.
_X32_BIT: Final = 0x40000000
# PSR_MODE_MASK and PSR_MODE32_BIT of arch/arm64/include/uapi/asm/ptrace.h; mode 0 is EL0, user
# space.
_ARM64_MODE: Final = 0xF
_ARM64_MODE32: Final = 0x10
_MOST_ARGUMENTS: Final = 6


def _decode_x86(regs: Mapping[str, Any], machine: str) -> tuple[bool, Syscall | None]:
    segment = regs["cs"] & 0xFFFF
    if segment not in (_USER_CS, _USER32_CS):
        return False, None
    number = regs["orig_ax"] & 0xFFFFFFFF
    # Interrupts and exceptions set -1. Threads that never were in user space, of vhost and
    # io_uring, have neither ip nor sp.
    if number == 0xFFFFFFFF or not (regs["ip"] or regs["sp"]):
        return True, None
    if segment == _USER32_CS:
        args = tuple(regs[name] & 0xFFFFFFFF for name in ("bx", "cx", "dx", "si", "di", "bp"))
        return True, Syscall(number, None, args)
    return True, _make_syscall(
        number & ~_X32_BIT, machine, [regs[name] for name in ("di", "si", "dx", "r10", "r8", "r9")]
    )


def _decode_arm64(regs: Mapping[str, Any], machine: str) -> tuple[bool, Syscall | None]:
    if regs["pstate"] & _ARM64_MODE:
        # Threads that never were in user space, of vhost and io_uring, have neither pc nor sp.
        return not (regs["pc"] or regs["sp"]), None
    number = regs["syscallno"] & 0xFFFFFFFF
    if number == 0xFFFFFFFF:
        return True, None
    args = [regs["orig_x0"], *struct.unpack_from(f"<{_MOST_ARGUMENTS - 1}Q", regs["regs"], 8)]
    if regs["pstate"] & _ARM64_MODE32:
        return True, Syscall(number, None, tuple(arg & 0xFFFFFFFF for arg in args))
    return True, _make_syscall(number, machine, args)


def _make_syscall(number: int, machine: str, args: list[int]) -> Syscall:
    name = syscall_name(number, machine)
    taken = args[: argument_count(name)]
    return Syscall(number, name, tuple(arg & WORD_MASK for arg in taken))


_Decode: TypeAlias = Callable[[Mapping[str, Any], str], "tuple[bool, Syscall | None]"]
_Members: TypeAlias = "Mapping[str, tuple[str, ...]] | str"
_X86: Final = "r10 r9 r8 cx dx si di bp bx orig_ax ip cs sp"
_ARM64: Final = {
    **{name: (name, f"user_regs.{name}") for name in ("regs", "pstate", "pc", "sp")},
    "orig_x0": ("orig_x0",),
    "syscallno": ("syscallno",),
}
# For each machine: the members of struct pt_regs that are read; the possible gaps in bytes between
# the registers and the end of the stack; and a function that returns whether these registers are of
# user space, and the system call.
_REGISTERS: Final[Mapping[str, tuple[_Members, tuple[int, ...], _Decode]]] = {
    "x86_64": (_X86, _X86_PADDINGS, _decode_x86),
    "aarch64": (_ARM64, (0,), _decode_arm64),
}


class SyscallWalk:
    """Reads the system calls of tasks."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def read(self, fields: TaskFields, is_in_kernel: Callable[[int], bool | None]) -> TaskSyscall:
        """Return the system call that a task is in.

        :param is_in_kernel: returns whether a running task is in the kernel, None if that is
            unknown.
        """
        # Kernel threads and idle tasks never were in user space; a dead task has no stack.
        was_in_user_space = not fields.is_kernel_thread and fields.pid != 0
        if self._target.machine not in _REGISTERS or not was_in_user_space or fields.stack == 0:
            return TaskSyscall(None)
        if fields.on_cpu and not fields.kcov_softirq:
            # A task in user space still has the saved registers of its last system call.
            entered = is_in_kernel(fields.address)
            if entered is None:
                problem = "the task is running, and its registers are not available"
                return TaskSyscall(None, f"system call unknown: {problem}")
            if not entered:
                return TaskSyscall(None)
        try:
            return TaskSyscall(self._read_saved(fields))
        except MissingTypeError:
            # The debug info was cut down to KCOV's own types.
            return TaskSyscall(None)
        except KcovdbgError as error:
            return TaskSyscall(None, f"system call unknown: {error}")

    def _read_saved(self, fields: TaskFields) -> Syscall | None:
        stack = fields.stack
        if stack is None:
            raise MissingTypeError("the debug info has no struct task_struct.stack")
        _, paddings, decode = _REGISTERS[self._target.machine]
        check_pointer(self._target, stack, "task_struct.stack")
        layout = self._layout
        top = stack + self._stack_size
        size = layout.size + max(paddings)
        data = self._target.read(top - size, size)
        for padding in paddings:
            start = size - layout.size - padding + layout.start
            registers = layout.decode(data[start : start + layout.span])
            values = dict(zip(layout.names, registers, strict=True))
            is_user, call = decode(values, self._target.machine)
            if is_user:
                return call
        at = top - layout.size
        raise ReadError(f"the saved registers at {at:#x} are not those of user space", at)

    @cached_property
    def _layout(self) -> BlockLayout:
        return BlockLayout(self._target, _PT_REGS, _REGISTERS[self._target.machine][0]).require()

    @cached_property
    def _stack_size(self) -> int:
        return find_stack_size(self._target)
