# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where coverage ends before a crash, and where it meets the stack."""

import pytest

from kcovdbg.analysis.crash_point import find_crash_point, find_fault
from kcovdbg.model.memory import StackFrame


def stack(text):
    """Frames, innermost first; one in parentheses is inlined."""
    return [
        StackFrame(0xFFFFFFFF81000000 + number, name.strip("()"), None, None, None, name.startswith("("))
        for number, name in enumerate(text.split())
    ]


def end_of(records, frames):
    names = [None, *dict.fromkeys(records.split())]
    return find_crash_point(
        [names.index(name) if name != "-" else 0 for name in records.split()], lambda pc: names[pc], stack(frames)
    )


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ("delay_tsc panic sysrq_handle_crash __handle_sysrq vfs_write", "sysrq_handle_crash"),
        ("crash_kexec oops_end page_fault_oops exc_page_fault asm_exc_page_fault three two one", "three"),
        ("__crash_kexec panic oops_end die handle_bug exc_invalid_op asm_exc_invalid_op broken caller", "broken"),
        ("__crash_kexec die __do_kernel_fault do_page_fault do_mem_abort el1_abort el1h_64_sync broken", "broken"),
        # A fault in a system call that itself came by an exception of user space.
        ("panic broken handle_mm_fault exc_page_fault asm_exc_page_fault", "broken"),
        ("__schedule schedule do_nanosleep", None),
        ("exc_page_fault asm_exc_page_fault", None),
        ("panic", None),
        ("", None),
    ],
)  # fmt: skip
def test_fault(frames, fault):
    found = find_fault(stack(frames))
    assert (None if found is None else stack(frames)[found].function) == fault


def test_no_crash():
    ending = end_of("a b c", "schedule b")
    assert (ending.end, ending.fault, ending.meets) == (3, None, {1: (1,)})


def test_what_panic_executes_is_left_out():
    ending = end_of("write sysrq crash panic printk printk panic", "delay panic crash sysrq write")
    assert (ending.end, ending.fault, ending.is_covered) == (3, "crash", True)
    assert ending.meets == {2: (2,), 1: (3,), 0: (4,)}


def test_panic_passes_through_the_function_again():
    ending = end_of("write printk panic printk console printk flush", "panic printk write")
    assert (ending.end, ending.fault) == (2, "printk")


def test_function_without_points():
    ending = end_of("write one helper die print print", "die silent one write")
    assert (ending.end, ending.fault, ending.is_covered) == (3, "silent", False)


def test_nothing_of_the_stack_is_covered():
    ending = end_of("a b", "panic silent")
    assert (ending.end, ending.fault, ending.is_covered) == (2, "silent", False)


def test_inlined_fault_and_clones():
    ending = end_of("write outer.isra.0 panic print", "panic (inner) outer.isra.0 write.cold")
    assert (ending.end, ending.fault) == (2, "outer")
    assert ending.meets[1] == (2,)
    assert ending.meets[0] == (3,)


def test_records_without_address():
    ending = end_of("- write - panic", "panic write")
    assert ending.end == 2
