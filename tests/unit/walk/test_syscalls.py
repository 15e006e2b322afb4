# SPDX-License-Identifier: LGPL-2.1-or-later
"""The system calls that tasks are in, on a made-up stack, and with damage."""

import struct

import pytest

from kcovdbg.model.task import Syscall
from kcovdbg.target.target import Symbol
from kcovdbg.walk.syscalls import SyscallWalk
from tests.support.kernels.declare import Declarations
from tests.support.memory_target import MemoryTarget
from tests.support.state import make_fields

STACK = 0xFFFFC90000100000
SIZE = 0x4000
NAMES = "r15 r14 r13 r12 bp bx r11 r10 r9 r8 ax cx dx si di orig_ax ip cs flags sp ss".split()
X86 = f"struct pt_regs {{ {' '.join(f'u64 {name};' for name in NAMES)} }};"
READ = {
    "orig_ax": 0,
    "di": 3,
    "si": 0x7F0000001000,
    "dx": 512,
    "r10": 9,
    "cs": 0x33,
    "ss": 0x2B,
    "ip": 0x4000,
    "sp": 0x7FFE,
}


def make_target(registers, padding=0):
    target = MemoryTarget(types=Declarations().declare(X86).types)
    target.symbols = {
        "__start_init_stack": Symbol("__start_init_stack", 0xFFFFFFFF82000000, 0),
        "__end_init_stack": Symbol("__end_init_stack", 0xFFFFFFFF82000000 + SIZE, 0),
    }
    words = struct.pack(
        "<21Q", *(registers.get(name, 0) & (1 << 64) - 1 for name in NAMES)
    ) + bytes(padding)
    target.segments[STACK] = bytearray(bytes(SIZE - len(words)) + words)
    return target


def ask(target, is_in_kernel=None, **values):
    fields = make_fields(41, "syz-executor", **{"stack": STACK, "on_cpu": False, **values})
    return SyscallWalk(target).read(fields, lambda _task: is_in_kernel)


@pytest.mark.parametrize("padding", [0, 16])
def test_arguments(padding):
    found = ask(make_target(READ, padding))
    assert found == (Syscall(0, "read", (3, 0x7F0000001000, 512)), None)


def test_not_in_a_system_call():
    assert ask(make_target({**READ, "orig_ax": -1})) == (None, None)
    # vhost's workers never were in user space.
    assert ask(make_target({**READ, "ip": 0, "sp": 0})) == (None, None)
    assert ask(make_target({}), flags=0x00200000) == (None, None)
    # A dead task's stack is freed.
    assert ask(make_target(READ), stack=0) == (None, None)


def test_32_bit():
    found = ask(make_target({**READ, "cs": 0x23, "orig_ax": 3, "bx": 0x1_0000_0005}))
    assert (found.call.number, found.call.name, found.call.args[0]) == (3, None, 5)


@pytest.mark.parametrize(
    ("is_in_kernel", "is_known", "has_error"),
    [(True, True, False), (False, False, False), (None, False, True)],
)
def test_running_task(is_in_kernel, is_known, has_error):
    found = ask(make_target(READ), is_in_kernel, on_cpu=True)
    assert (found.call is not None, found.error is not None) == (is_known, has_error)
    # A softirq section interrupted it, so that it is in the kernel.
    assert ask(make_target(READ), None, on_cpu=True, kcov_softirq=1).call is not None


def test_damage():
    assert ask(make_target({**READ, "cs": 0x10})).error is not None
    assert ask(make_target(READ), stack=0x1000).error is not None
    assert ask(make_target(READ), stack=STACK + 0x100000).error is not None


def test_size_of_a_stack_by_its_type():
    target = make_target(READ)
    target.symbols = {}
    target.types |= Declarations().declare(f"struct thread_union {{ char stack[{SIZE}]; }};").types
    target.types["union thread_union"] = target.types.pop("struct thread_union")
    assert ask(target).call.name == "read"


def test_debug_info_without_the_types():
    assert ask(make_target(READ), stack=None) == (None, None)
    target = make_target(READ)
    target.types = {}
    assert ask(target) == (None, None)
