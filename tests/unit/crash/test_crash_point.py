# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where coverage ends before a crash, and where it meets the stack."""

import pytest

from kcovdbg.crash.crash_point import find_crash_point, find_fault
from kcovdbg.model.memory import StackFrame


def stack(text):
    """Frames, innermost first; one in parentheses is inlined."""
    return [
        StackFrame(
            0xFFFFFFFF81000000 + number, name.strip("()"), None, None, None, name.startswith("(")
        )
        for number, name in enumerate(text.split())
    ]


def end_of(records, frames, *, is_crashed=False):
    names = [None, *dict.fromkeys(records.split())]
    pcs = [names.index(name) if name != "-" else 0 for name in records.split()]
    return find_crash_point(pcs, lambda pc: names[pc], stack(frames), is_crashed=is_crashed)


@pytest.mark.parametrize(
    ("frames", "fault"),
    [
        ("delay_tsc panic sysrq_handle_crash __handle_sysrq vfs_write", "sysrq_handle_crash"),
        ("crash_kexec oops_end page_fault_oops exc_page_fault asm_exc_page_fault three two one", "three"),
        ("__crash_kexec panic oops_end die handle_bug exc_invalid_op asm_exc_invalid_op broken " "caller", "broken"),
        # NULL with an offset, where KASAN is inline: the address of its shadow is not canonical.
        ("panic oops_end (__exc_general_protection) exc_general_protection " "asm_exc_general_protection inner " "outer", "inner"),
        ("__crash_kexec die __do_kernel_fault do_page_fault do_mem_abort el1_abort el1h_64_sync " "broken", "broken"),
        # An address of the kernel's half that is not mapped, and others.
        ("die die_kernel_fault __do_kernel_fault do_bad_area do_translation_fault do_mem_abort " "el1_abort broken", "broken"),
        ("panic die do_el1_undef el1_undef el1h_64_sync_handler el1h_64_sync broken caller", "broken"),
        # riscv64, s390x
        ("panic die die_kernel_fault no_context handle_page_fault do_page_fault " "handle_exception broken " "caller", "broken"),
        (
            "panic die handle_fault_error_nolock do_exception do_dat_exception __do_pgm_check " "pgm_check_handler broken " "caller",
            "broken",
        ),
        (
            "__crash_kexec panic check_panic_on_warn __warn __report_bug report_bug handle_bug " "exc_invalid_op"
            " asm_exc_invalid_op warned caller",
            "warned",
        ),
        ("__crash_kexec panic check_panic_on_warn end_report kasan_report " "__asan_report_load8_noabort read " "caller", "read"),
        ("__crash_kexec panic check_panic_on_warn end_report kasan_report kasan_check_range " "read caller", "read"),
        (
            "__crash_kexec panic watchdog_timer_fn __hrtimer_run_queues hrtimer_interrupt " "__sysvec_apic_timer_interrupt"
            " sysvec_apic_timer_interrupt asm_sysvec_apic_timer_interrupt loop caller",
            "loop",
        ),
        # A timer's interrupt is no crash.
        ("hrtimer_interrupt sysvec_apic_timer_interrupt loop", None),
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
    assert (ending.end, ending.fault, ending.stack_frames) == (3, None, {1: (1,)})


def test_what_panic_executes_is_left_out():
    ending = end_of("write sysrq crash panic printk printk panic", "delay panic crash sysrq write")
    assert (ending.end, ending.fault, ending.is_covered) == (3, "crash", True)
    assert ending.stack_frames == {2: (2,), 1: (3,), 0: (4,)}


def test_registers_of_the_fault():
    """kdump saves those of an oops: the stack ends in the function that faulted."""
    records = (
        "write outer inner bad_area_nosemaphore page_fault_oops printk oops_end crash_save_cpu"
    )
    ending = end_of(records, "inner outer write", is_crashed=True)
    assert (ending.end, ending.fault, ending.is_covered) == (3, "inner", True)
    assert ending.stack_frames == {2: (0,), 1: (1,), 0: (2,)}
    # The stack of another task, and of one that did not crash.
    assert end_of(records, "inner outer write").fault is None
    assert end_of("write outer inner", "inner outer write", is_crashed=True).fault is None


def test_panic_passes_through_the_function_again():
    ending = end_of("write shared panic shared console shared flush", "panic shared write")
    assert (ending.end, ending.fault) == (2, "shared")


def test_function_without_points():
    ending = end_of("write one helper die print print", "die silent one write")
    assert (ending.end, ending.fault, ending.is_covered) == (3, "silent", False)


def test_nothing_of_the_stack_is_covered():
    ending = end_of("a b", "panic silent")
    assert (ending.end, ending.fault, ending.is_covered) == (2, "silent", False)


def test_inlined_fault_and_clones():
    ending = end_of("write outer.isra.0 panic print", "panic (inner) outer.isra.0 write.cold")
    assert (ending.end, ending.fault) == (2, "outer")
    assert ending.stack_frames[1] == (2,)
    assert ending.stack_frames[0] == (3,)


def test_records_without_address():
    ending = end_of("- write - panic", "panic write")
    assert ending.end == 2
