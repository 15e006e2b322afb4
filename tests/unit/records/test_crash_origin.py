# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a crash began, by the functions of a stack; and the table of what the kernel prints about
crashes.
"""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from kcovdbg.records import report_table
from kcovdbg.records.crash_origin import find_origin
from kcovdbg.records.report_table import role_of

TABLES = ConfigParser(interpolation=None)
TABLES.read(Path(report_table.__file__).with_name("crash_reports.ini"))

TIMER = (
    "__hrtimer_run_queues hrtimer_interrupt sysvec_apic_timer_interrupt "
    "asm_sysvec_apic_timer_interrupt"
)
FAULT = "oops_end page_fault_oops exc_page_fault asm_exc_page_fault"
ARM64 = "arch_timer_handler_virt el1_interrupt el1h_64_irq_handler el1h_64_irq"
NMI = "nmi_handle default_do_nmi exc_nmi asm_exc_nmi"
BUG = "__warn report_bug handle_bug exc_invalid_op asm_exc_invalid_op"


@pytest.mark.parametrize(
    ("names", "origin"),
    [
        # Interrupted in KCOV's callbacks, in a lock, and in a delay loop.
        (f"panic watchdog_timer_fn {TIMER} __sanitizer_cov_trace_pc broken outer", "broken"),
        # As drgn unwinds it, with inlined functions.
        (
            "panic watchdog_timer_fn __run_hrtimer hrtimer_interrupt __sysvec_apic_timer_interrupt"
            " instr_sysvec_apic_timer_interrupt sysvec_apic_timer_interrupt " "asm_sysvec_apic_timer_interrupt " "broken",
            "broken",
        ),
        (f"panic watchdog_timer_fn {TIMER} write_comp_data __sanitizer_cov_trace_const_cmp4 " f"broken outer", "broken"),
        (f"panic watchdog_timer_fn {TIMER} check_kcov_mode.part.0 __sanitizer_cov_trace_pc " f"broken outer", "broken"),
        (f"panic watchdog_timer_fn {TIMER} native_queued_spin_lock_slowpath do_raw_spin_lock " f"_raw_spin_lock broken", "broken"),
        (f"panic watchdog_timer_fn {TIMER} delay_tsc __const_udelay broken", "broken"),
        (f"panic watchdog_timer_fn {TIMER} kcov_remote_start broken", "broken"),
        (f"panic rcu_sched_clock_irq update_process_times tick_nohz_handler {TIMER} broken", "broken"),
        (f"sched_show_task print_cpu_stall rcu_pending rcu_sched_clock_irq tick_sched_timer " f"{TIMER} broken", "broken"),
        (f"panic nmi_panic watchdog_hardlockup_check watchdog_overflow_callback " f"__perf_event_overflow {NMI} " f"broken", "broken"),
        (f"dump_stack nmi_cpu_backtrace nmi_cpu_backtrace_handler {NMI} __asan_load8 broken", "broken"),
        (f"panic watchdog_timer_fn hrtimer_interrupt {ARM64} broken", "broken"),
        # Another task or CPU.
        ("panic check_hung_uninterruptible_tasks watchdog kthread ret_from_fork", None),
        (f"panic print_other_cpu_stall rcu_sched_clock_irq {TIMER} innocent", None),
        (f"panic nmi_panic watchdog_hardlockup_check watchdog_timer_fn {TIMER} innocent", None),
        # The trap of WARN() since v6.19.
        ("__WARN_trap broken outer", "broken"),
        ("__warn report_bug handle_bug exc_invalid_op asm_exc_invalid_op __WARN_trap broken outer", "broken"),
        # Noticed by a check, that was called directly or by way of an exception.
        ("dump_stack_lvl print_report kasan_report kasan_check_range __asan_memcpy memcpy broken", "broken"),
        ("print_report kasan_report_invalid_free __kasan_slab_free slab_free_freelist_hook " "kmem_cache_free broken", "broken"),
        ("panic kmsan_report __msan_warning broken", "broken"),
        ("print_report kcsan_report_known_origin kcsan_setup_watchpoint __tsan_read8 broken", "broken"),
        ("panic check_panic_on_warn ubsan_epilogue __ubsan_handle_shift_out_of_bounds broken", "broken"),
        ("dump_stack print_circular_bug check_prev_add __lock_acquire __mutex_lock " "mutex_lock_nested broken", "broken"),
        ("dump_stack_lvl __might_resched __mutex_lock broken", "broken"),
        ("dump_stack_lvl __schedule_bug __schedule schedule schedule_timeout broken", "broken"),
        (f"panic {BUG} refcount_warn_saturate broken", "broken"),
        (f"panic {BUG} __list_del_entry_valid_or_report broken", "broken"),
        (f"panic {BUG} debug_print_object __debug_check_no_obj_freed slab_free_hook kfree broken", "broken"),
        (f"panic {BUG} kcov_remote_start outer", "kcov_remote_start"),
        ("panic oops_end die handle_bug exc_invalid_op asm_exc_invalid_op __fortify_panic broken", "broken"),
        ("panic oops_end die exc_invalid_op asm_exc_invalid_op usercopy_abort " "__check_object_size broken", "broken"),
        ("panic __stack_chk_fail broken", "broken"),
        ("panic fail_dump should_fail_ex broken", "broken"),
        ("panic fail_dump", None),
        ("panic out_of_memory __alloc_pages_slowpath alloc_pages_mpol broken", "broken"),
        (f"panic {FAULT} strlen broken", "broken"),
        # Faults of a handler that happened to interrupt an instrumented access.
        (f"panic {FAULT} broken call_timer_fn asm_sysvec_x __asan_load8 other", "broken"),
        # Assertions, and functions that work for any caller.
        (f"panic {BUG} skb_panic skb_put broken", "broken"),
        (f"panic {BUG} usb_submit_urb usb_start_wait_urb usb_bulk_msg broken", "broken"),
        (f"panic {FAULT} innermost usb_submit_urb broken", "innermost"),
        (f"panic {FAULT} rb_erase broken", "broken"),
        ("print_report kasan_report string vsnprintf vprintk_emit _printk broken", "broken"),
        ("print_report kasan_report __lock_acquire lock_acquire _raw_spin_lock_irqsave " "finish_wait broken", "broken"),
        (f"panic {BUG} debug_print_object debug_object_activate __call_rcu.constprop.67 " f"call_rcu broken", "broken"),
        (f"panic {BUG} refcount_warn_saturate kobject_get kobject_add_internal device_add broken", "broken"),
        (f"panic {BUG} hlock_class mark_lock __lock_acquire lock_acquire lock_sock_nested broken", "broken"),
        (f"panic {BUG} drop_nlink broken", "broken"),
        (f"panic {BUG} inc_nlink broken", "broken"),
        (f"panic {BUG} ida_free broken", "broken"),
        (f"panic {BUG} __mod_timer add_timer broken", "broken"),
        (f"panic {BUG} folio_unlock broken", "broken"),
        (f"panic {BUG} innermost iput dput broken", "innermost"),
        ("print_report kasan_report aes_encrypt broken", "broken"),
        # rust/kernel/lib.rs
        (f"{BUG} rust_helper_BUG rust_begin_unwind " f"_ZN4core9panicking9panic_fmt17h89af7b08942b8a76E " f"broken", "broken"),
        (
            f"{BUG} rust_helper_BUG _RNvCs1_7___rustc17rust_begin_unwind " f"_RNvNtCs2_4core9panicking9panic_fmt"
            " _RNvNtCs2_4core6option13unwrap_failed _RNvCs3_6broken4read",
            "_RNvCs3_6broken4read",
        ),
        (f"{BUG} __rustc::rust_begin_unwind core::panicking::panic core::option::unwrap_failed " f"a::read", "a::read"),
        ("create_object kmemleak_alloc kmem_cache_alloc broken", "broken"),
        ("schedule schedule_timeout ldsem_down_write broken", "broken"),
        ("__schedule schedule io_schedule wait_on_page_bit_common filemap_fdatawait_range broken", "broken"),
        ("panic __schedule preempt_schedule_irq retint_kernel __sanitizer_cov_trace_pc broken", "broken"),
        ("__schedule preempt_schedule_irq irqentry_exit asm_sysvec_apic_timer_interrupt broken", "broken"),
        # Preempted, and interrupted on another stack.
        ("__schedule_bug __schedule preempt_schedule_irq asm_sysvec_apic_timer_interrupt broken " "outer", "broken"),
        (f"dump_stack nmi_cpu_backtrace {TIMER.replace(' asm_', ' asm_call_irq_on_stack asm_')} " f"__asan_load8 broken", "broken"),
        ("rcu_sched_clock_irq smp_trace_apic_timer_interrupt trace_apic_timer_interrupt broken", "broken"),
        # The CPU of a stall that no other CPU causes.
        (f"sched_show_task print_other_cpu_stall rcu_sched_clock_irq {TIMER} broken", "broken"),
        # The unwinder got as far as the entry alone.
        ("dump_stack print_circular_bug check_prev_add lock_acquire entry_SYSENTER_compat", None),
        ("dump_stack lock_acquire do_syscall_64 entry_SYSCALL_64_after_hwframe", None),
        # A panic of its own.
        ("panic sysrq_handle_crash __handle_sysrq", "sysrq_handle_crash"),
        # Backtraces of tasks.
        ("__schedule schedule __mutex_lock mutex_lock_nested broken outer", "broken"),
        ("context_switch __schedule schedule io_schedule folio_wait_bit_common broken", "broken"),
        ("broken outer", "broken"),
        ("", None),
    ],
)  # fmt: skip
def test_origin(names, origin):
    found = find_origin(names.split())
    assert (None if found is None else names.split()[found]) == origin


def test_frame_without_name():
    assert find_origin(["panic", None, "outer"]) == 1


@pytest.mark.parametrize("section", TABLES.sections())
def test_entries_name_their_release_and_source(section):
    assert re.match(r"v\d+\.\d+", TABLES[section]["since"])
    assert TABLES[section]["source"]


def test_every_key_is_read():
    text = Path(report_table.__file__).read_text()
    known = {"role", "functions", "since", "source"}
    keys = {key for section in TABLES.sections() for key in TABLES[section]}
    assert {key for key in keys - known if f"('{key}')" not in text.replace('"', "'")} == set()


def test_an_ordinary_function():
    assert role_of("unix_stream_recvmsg") is None
