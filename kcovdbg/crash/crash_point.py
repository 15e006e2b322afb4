# SPDX-License-Identifier: LGPL-2.1-or-later
"""The end of a crashed task's coverage, and the records of functions on its stack.

A crashing kernel keeps executing: panic() and its output leave tens of thousands of records in the buffer. The stack shows in
which function the crash began; the records up to there led to it. Functions that notice, report or handle a crash, or that work
for any caller, are not where it began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final, NamedTuple, overload

from kcovdbg.elf.symbol_table import demangle
from kcovdbg.model.memory import StackFrame


class CrashRole(Enum):
    """The part of a function in a crash."""

    CRASH = "runs only in a crash"
    REPORT = "reports what its caller did"
    INTERRUPT_REPORT = "runs in an interrupt and reports what that interrupted"
    REMOTE_REPORT = "reports what another task or CPU did"
    EXCEPTION = "handles an exception"
    ENTRY = "entry point of an exception or interrupt"
    OUTERMOST = "entry point of a system call or of a new task"
    INSTRUMENTATION = "called by code that the compiler or a macro adds"
    HELPER = "works for any caller"
    ALLOCATOR = "allocates or frees for its caller, and is passed over behind a report"
    WAIT = "puts the task to sleep"
    INTERRUPTED = "is passed over where an interrupt found the CPU in it"


class FunctionGroup(NamedTuple):
    """Functions of one subsystem with one role."""

    name: str
    role: CrashRole
    functions: str
    """A regular expression of whole names without a clone's suffix."""
    source: str
    """The files of the kernel that define them."""


GROUPS: Final = (
    FunctionGroup(
        "panic",
        CrashRole.CRASH,
        r"v?panic|nmi_panic|oops_\w+|__?crash_kexec|crash_kexec_post_notifiers|make_task_dead",
        "kernel/panic.c: panic(), nmi_panic(); kernel/crash_core.c; kernel/exit.c: make_task_dead()",
    ),
    FunctionGroup(
        "die",
        CrashRole.CRASH,
        r"die|__die\w*|die_\w+|page_fault_oops|(native_)?machine_crash_shutdown|__do_kernel_fault|(do_)?no_context"
        r"|arm64_notify_die",
        "arch/x86/kernel/dumpstack.c: die(); arch/*/kernel/traps.c; arch/*/mm/fault.c",
    ),
    FunctionGroup(
        "x86 exceptions",
        CrashRole.EXCEPTION,
        # DEFINE_IDTENTRY() makes two functions of a handler.
        r"(__)?exc_\w+|kernelmode_fixup_or_oops|_{0,2}bad_area\w*|do_(user|kern)_addr_fault|handle_page_fault"
        r"|do_(error_)?trap\w*|handle_bug|fixup_bug|do_page_fault|__do_page_fault|do_invalid_op|do_general_protection"
        r"|gp_try_fixup_and_notify|handle_invalid_op|math_error|do_double_fault|do_machine_check|mce_panic|handle_stack_overflow"
        r"|spurious_kernel_fault|show_fault_oops",
        "arch/x86/kernel/traps.c; arch/x86/mm/fault.c; arch/x86/kernel/cpu/mce/core.c",
    ),
    FunctionGroup(
        "arm64 exceptions",
        CrashRole.EXCEPTION,
        r"do_el1_\w+|do_mem_abort|do_translation_fault|do_bad(_area)?|do_alignment_fault|do_tag_check_fault|do_sea|do_sp_pc_abort"
        r"|do_undefinstr|do_debug_exception|call_(el1_)?break_hook|(bug|cfi|kasan|ubsan|reserved_fault)_(brk_)?handler"
        r"|brk_handler|do_serror|arm64_serror_panic|__panic_unhandled|panic_bad_stack|handle_bad_stack|bad_mode",
        "arch/arm64/kernel/traps.c; arch/arm64/mm/fault.c; arch/arm64/kernel/entry-common.c",
    ),
    FunctionGroup(
        "arm and powerpc exceptions",
        CrashRole.EXCEPTION,
        r"do_(DataAbort|PrefetchAbort)|__do_kernel_fault|(program_check|alignment|machine_check|unrecoverable|unknown)_exception"
        r"|bad_page_fault|___do_page_fault",
        "arch/arm/mm/fault.c; arch/powerpc/kernel/traps.c; arch/powerpc/mm/fault.c",
    ),
    FunctionGroup(
        "riscv64 and s390x exceptions",
        CrashRole.EXCEPTION,
        r"handle_break|handle_kernel_stack_overflow|__do_pgm_check|do_(dat|protection)_exception|do_exception"
        r"|handle_fault_error\w*|do_report_trap|default_trap_handler|illegal_op|\w+_event_exception|kernel_stack_overflow",
        "arch/riscv/kernel/traps.c; arch/riscv/mm/fault.c; arch/s390/kernel/traps.c, pgm_check.c; arch/s390/mm/fault.c",
    ),
    FunctionGroup(
        "entries",
        CrashRole.ENTRY,
        r"asm_(exc|sysvec|common|spurious|fred|call)_\w+|(__|instr_)?sysvec_\w+|(smp_)?(trace_)?(apic_timer|reschedule|irq_work"
        r"|call_function(_single)?|common|spurious|reboot)_interrupt\w*|ret_from_intr|error_entry|(end_repeat_|repeat_)?nmi"
        r"|(async_)?page_fault|general_protection|invalid_op|double_fault|divide_error|machine_check|int3|debug|stack_segment|xen_hvm_callback_vector"
        r"|el1h?_\w+|handle_exception|ret_from_exception|(ext|io|mcck)_int_handler|pgm_check_handler"
        r"|(decrementer|hardware_interrupt|system_reset|program_check|data_access(_slb)?)_common\w*|except_vec_\w+"
        r"|handle_(vint|loongarch_irq)|__(irq|dabt|pabt|und|fiq)_(svc|usr)",
        "arch/x86/entry/entry_64.S, arch/x86/include/asm/idtentry.h; arch/arm64/kernel/entry.S, entry-common.c; "
        "arch/riscv/kernel/entry.S; arch/s390/kernel/entry.S; arch/powerpc/kernel/exceptions-64s.S; "
        "arch/loongarch/kernel/genex.S; arch/arm/kernel/entry-armv.S",
    ),
    FunctionGroup(
        "system calls and new tasks",
        CrashRole.OUTERMOST,
        r"entry_(SYSCALL|SYSENTER|INT80|FRED)_?\w*|_*do_(fast_)?syscall_\w+|(x64|ia32)_sys_call|do_(int80|SYSENTER)\w*|tracesys\w*|sysenter_\w+|system_call\w*"
        r"|int_ret_from_sys_call|ret_(from_fork|fast_syscall|to_user)\w*|el0t?_\w+|do_el0_svc|_*invoke_syscall",
        "arch/x86/entry; arch/arm64/kernel/entry.S, syscall.c; arch/arm/kernel/entry-common.S",
    ),
    FunctionGroup(
        "backtraces",
        CrashRole.REPORT,
        r"(__)?dump_stack(_lvl)?|show_(stack|trace|regs)\w*|(dump|unwind|c)_backtrace|walk_stackframe|dump_cpu_task"
        r"|sched_show_task|print_modules|__?show_regs",
        "lib/dump_stack.c; arch/*/kernel/dumpstack.c, stacktrace.c; kernel/sched/core.c: sched_show_task()",
    ),
    FunctionGroup(
        "warnings",
        CrashRole.REPORT,
        r"check_panic_on_warn|__warn|__warn_printk|warn_slowpath_\w+|(__)?report_bug(_entry)?|add_taint|(__)?stack_chk_fail",
        "kernel/panic.c: __warn(), __warn_printk(), check_panic_on_warn(), __stack_chk_fail(), add_taint(); lib/bug.c",
    ),
    FunctionGroup(
        "KASAN",
        CrashRole.REPORT,
        r"(__)?kasan_\w+|end_report|start_report|print_report|complete_report_info|print_address_description|describe_(object|addr)\w*"
        r"|(__)?(asan|hwasan)_\w+|check_memory_region(_inline)?|check_region_inline|poison_slab_object"
        r"|check_(slab|page)_allocation",
        "mm/kasan/report.c, generic.c, sw_tags.c, common.c, shadow.c",
    ),
    FunctionGroup(
        "KFENCE", CrashRole.REPORT, r"kfence_report_error|kfence_handle_page_fault|kfence_\w+|__kfence_free", "mm/kfence"
    ),
    FunctionGroup("KMSAN", CrashRole.REPORT, r"kmsan_\w+|__msan_\w+", "mm/kmsan/report.c, instrumentation.c, hooks.c"),
    FunctionGroup("KCSAN", CrashRole.REPORT, r"kcsan_\w+|__kcsan_\w+|__tsan_\w+", "kernel/kcsan/report.c, core.c"),
    FunctionGroup(
        "UBSAN",
        CrashRole.REPORT,
        r"ubsan_\w+|__ubsan_\w+|handle_(overflow|null_ptr_deref|misaligned_access|object_size_mismatch)|report_cfi_failure"
        r"|handle_cfi_failure",
        "lib/ubsan.c; kernel/cfi.c",
    ),
    FunctionGroup(
        "hardening",
        CrashRole.REPORT,
        r"fortify_panic|__fortify_(panic|report)|usercopy_(abort|warn)|(__)?check_heap_object|__check_object_size"
        r"|check_object_size|check_bogus_address|check_page_span|__?copy_overflow|(__)?(read|write)_overflow\w*",
        "lib/string_helpers.c: __fortify_panic(); mm/usercopy.c; include/linux/thread_info.h: check_copy_size()",
    ),
    FunctionGroup(
        "data structure checks",
        CrashRole.REPORT,
        r"__list_(add|del_entry)_valid(_or_report)?|list_\w+_valid\w*|refcount_warn_saturate|refcount_error_report"
        r"|debug_(print_object|object_\w+|timer_\w+|work_\w+|rcu_head_\w+)|__debug_(object_init|check_no_obj_freed)"
        r"|debug_check_no_obj_freed|lookup_object_or_alloc|(timer|work|hrtimer)_(is_static_object|fixup_\w+)",
        "lib/list_debug.c; lib/refcount.c: refcount_warn_saturate(); lib/debugobjects.c",
    ),
    FunctionGroup(
        "lockdep",
        CrashRole.REPORT,
        r"lockdep_rcu_suspicious|print_(\w+_bug|circular_bug_header)|check_noncircular"
        r"|check_(deadlock|prev_add|prevs_add|wait_context|irq_usage|lock_chain_key|chain_key)|mark_lock\w*|mark_(usage|held_locks)"
        r"|validate_chain|register_lock_class|lookup_chain_cache_add|valid_state|(__)?lock_acquire|(__)?lock_release"
        r"|lock_(acquired|contended|is_held_type|sync|pin_lock|unpin_lock|downgrade|set_class)|__lock_(pin|unpin)_lock"
        r"|debug_check_no_locks_(freed|held)|lockdep_\w+|__?debug_locks_off\w*|reacquire_held_locks|look_up_lock_class|hlock_class|lock_map_acquire\w*",
        "kernel/locking/lockdep.c",
    ),
    FunctionGroup(
        "lock and context checks",
        CrashRole.REPORT,
        r"spin_(bug|dump)|rwlock_bug|debug_(spin|write|mutex|rt_mutex)_\w+|__might_(sleep|resched|fault)|___might_sleep"
        r"|might_fault|__schedule_bug|check_preemption_disabled|debug_smp_processor_id|__this_cpu_preempt_check"
        r"|preempt_count_(add|sub)|rcu_(sleep_check|lockdep_\w+)|__rcu_irq_enter_check_tick|warn_bogus_irq_restore",
        "kernel/locking/spinlock_debug.c; kernel/sched/core.c: __might_resched(), __schedule_bug(); lib/smp_processor_id.c",
    ),
    FunctionGroup(
        "memory",
        CrashRole.REPORT,
        r"bad_page|dump_page|__dump_(page|folio)|warn_alloc|(check_panic_on|mem_cgroup|__)?_?out_of_memory|oom_kill_process"
        r"|check_panic_on_oom|dump_header|slab_(err|bug|fix|pad_check)|object_err|print_trailer|slab_fix|print_bad_pte",
        "mm/page_alloc.c; mm/debug.c; mm/oom_kill.c; mm/slub.c; mm/memory.c",
    ),
    FunctionGroup("kmemleak", CrashRole.REPORT, r"kmemleak_\w+|create_object|__create_object", "mm/kmemleak.c"),
    FunctionGroup(
        "assertions",
        CrashRole.REPORT,
        r"skb_(over_|under_)?panic|__reiserfs_panic|(btrfs_)?assertfail|assfail|rust_helper_BUG|sysfs_warn_dup",
        "net/core/skbuff.c; fs/reiserfs/prints.c; fs/btrfs/messages.h; fs/xfs; rust/helpers/bug.c; fs/sysfs/dir.c",
    ),
    FunctionGroup(
        "Rust panics",
        CrashRole.REPORT,
        r"(__rustc::)?rust_begin_unwind|core::panicking::.*|core::(option|result)::(unwrap|expect)_failed.*",
        "rust/kernel/lib.rs: panic(); library/core/src of Rust: panicking.rs, option.rs, result.rs",
    ),
    FunctionGroup(
        "fault injection", CrashRole.REPORT, r"fail_dump|should_fail\w*|__should_fail\w*", "lib/fault-inject.c; mm/failslab.c"
    ),
    FunctionGroup(
        "NMI backtraces",
        CrashRole.INTERRUPT_REPORT,
        r"nmi_cpu_backtrace(_handler)?|nmi_trigger_cpumask_backtrace|showacpu|sysrq_(showregs_othercpus|handle_showallcpus)"
        r"|arch_trigger_cpumask_backtrace",
        "lib/nmi_backtrace.c; arch/x86/kernel/apic/hw_nmi.c; drivers/tty/sysrq.c",
    ),
    FunctionGroup(
        "NMIs",
        CrashRole.INTERRUPT_REPORT,
        r"nmi_handle|default_do_nmi|do_nmi|unknown_nmi_error|(pci_serr|io_check|mem_parity)_error|crash_nmi_callback"
        r"|kdump_nmi_callback|panic_smp_self_stop|nmi_panic_self_stop|ghes_\w+",
        "arch/x86/kernel/nmi.c, reboot.c, crash.c; drivers/acpi/apei/ghes.c",
    ),
    FunctionGroup(
        "lockup detectors",
        CrashRole.INTERRUPT_REPORT,
        r"watchdog_(timer_fn|overflow_callback|hardlockup_check|check_timestamp)|is_(soft|hard)lockup|print_cpustat",
        "kernel/watchdog.c: watchdog_timer_fn(), watchdog_hardlockup_check(); kernel/watchdog_perf.c",
    ),
    FunctionGroup(
        "RCU stalls",
        CrashRole.INTERRUPT_REPORT,
        r"rcu_(sched_clock_irq|check_callbacks|pending|dump_cpu_stacks|stall_kick_kthreads|check_gp_kthread_\w+)|panic_on_rcu_stall"
        r"|print_cpu_stall\w*|check_cpu_stall",
        "kernel/rcu/tree.c: rcu_sched_clock_irq(); kernel/rcu/tree_stall.h",
    ),
    FunctionGroup(
        "tasks and CPUs elsewhere",
        CrashRole.REMOTE_REPORT,
        r"check_hung_(task|uninterruptible_tasks)|print_other_cpu_stall|watchdog_buddy_check_hardlockup|wq_watchdog_timer_fn"
        r"|show_cpu_pools?_hogs?|clocksource_watchdog|csd_lock_wait_toolong",
        "kernel/hung_task.c; kernel/rcu/tree_stall.h: print_other_cpu_stall(); kernel/watchdog_buddy.c; kernel/workqueue.c",
    ),
    FunctionGroup(
        "KCOV",
        CrashRole.INSTRUMENTATION,
        r"__sanitizer_cov_\w+|write_comp_data|check_kcov_mode|canonicalize_ip|in_softirq_really|kcov_mode_enabled"
        r"|kcov_get_mode",
        "kernel/kcov.c",
    ),
    FunctionGroup(
        "instrumentation",
        CrashRole.INSTRUMENTATION,
        r"stackleak_track_stack|__fentry__|mcount|ftrace_\w*call\w*|function_trace_\w+|trace_hardirqs_(on|off)\w*"
        r"|trace_(preempt|irq)_\w+|tracer_\w+|rcu_is_watching|rcu_read_(un)?lock_\w*held|debug_lockdep_rcu_enabled"
        r"|__rcu_read_(un)?lock|__x86_(indirect|return)_thunk\w*|\w*_indirect_thunk_\w+|__cfi_\w+",
        "kernel/stackleak.c; kernel/trace; kernel/rcu/update.c; arch/x86/lib/retpoline.S",
    ),
    FunctionGroup("KCOV's interface", CrashRole.INTERRUPTED, r"kcov_\w+", "kernel/kcov.c"),
    FunctionGroup(
        "waiting for CPUs",
        CrashRole.INTERRUPTED,
        r"smp_call_function_\w+|on_each_cpu\w*|csd_lock_wait|cpu_relax",
        "kernel/smp.c",
    ),
    FunctionGroup(
        "locks",
        CrashRole.HELPER,
        r"_?_?(raw_)?_?(spin|read|write)_(try)?(un)?lock\w*|do_raw_\w+|(native_)?queued_\w+_slowpath|pv_\w*queued_\w+"
        r"|__pv_queued_\w+|(virt|arch|ticket)_spin_\w+|_?_?mutex_(try)?(un)?lock\w*|__ww_mutex_lock\w*|ww_mutex_lock\w*"
        r"|call_rwsem_\w+|ldsem_\w+|mutex_(optimistic_spin|spin_on_owner)|osq_(un)?lock|_?_?(down|up)(_read|_write)?(_trylock|_killable|_nested"
        r"|_interruptible|_common|_failed)*|rwsem_\w+|percpu_(down|up)_\w+|_?_?percpu_(down|up)_\w+|rt_mutex_\w+|_?_?rt_mutex_\w+"
        r"|rt_(spin|read|write)_\w+|rtlock_\w+",
        "kernel/locking",
    ),
    FunctionGroup(
        "library",
        CrashRole.HELPER,
        r"(__)?mem(cpy|move|set|cmp|chr|scan)\w*|str(n|l|s|r)?(cpy|cat|cmp|casecmp|len|chr|str|scpy|lcpy|ncpy|lcat|pbrk|sep)\w*"
        r"|sized_strscpy|read_word_at_a_time|delay_\w+|_?_?(const_)?[un]?delay|__const_udelay|__delay|copy_(user|page|to|from)_\w+"
        r"|_copy_(to|from)_\w+|raw_copy_(to|from)_user|rep_(movs|stos)_\w+|clear_(user|page)_\w+|csum_partial\w*"
        r"|(__)?refcount_(inc|dec|add|sub|set)\w*|kref_(get|put)\w*",
        "lib/string.c; arch/x86/lib; include/linux/refcount.h, kref.h",
    ),
    FunctionGroup(
        "data structures and text",
        CrashRole.HELPER,
        r"(__)?rb_\w+|xas?_\w+|(__)?list_(add|del)\w*|crc(16|32|_\w+|32_\w+)|v?sc?n?printf|string(_nocheck)?|hex_string|va_format|pointer"
        r"|_?printk\w*|vprintk\w*|(_?dev|__dev)_\w*printk\w*|_dev_info|(print_)?hex_dump\w*|j?hash|test_and_\w+_bit"
        r"|(raw_)?atomic_(read|inc|dec|add|sub|fetch)\w*|_?atomic_dec_and_lock\w*",
        "lib/rbtree.c, xarray.c, crc16.c, vsprintf.c, hexdump.c, dec_and_lock.c; kernel/printk; include/asm-generic",
    ),
    FunctionGroup(
        "timers, work and wake-ups",
        CrashRole.HELPER,
        r"lock_timer_base|(__)?(try_to_)?(del_timer|timer_delete)\w*|init_timer_key|(__)?mod_timer\w*|add_timer\w*|timer_reduce"
        r"|sk_stop_timer\w*|try_to_grab_pending|__queue_work|queue_work_on|insert_work|(__)?queue_delayed_work\w*"
        r"|call_rcu\w*|__call_rcu\w*|__wake_up\w*|complete(_all)?|finish_wait|mutex_remove_waiter",
        "kernel/time/timer.c; kernel/workqueue.c; kernel/rcu/tree.c; kernel/sched/wait.c, completion.c; kernel/locking/mutex.c",
    ),
    FunctionGroup(
        "inodes, numbers, pages and ciphers",
        CrashRole.HELPER,
        r"(drop|inc|clear|set)_nlink|iput(_final)?|ihold|(fast_)?dput|ida_(free|destroy|alloc_range)|(un)?lock_page|folio_unlock"
        r"|klist_\w+|put_device|rhashtable_lookup\w*|extract_(user|iter)_to_sg|aes_(en|de)crypt\w*|aes_expandkey",
        "fs/inode.c, dcache.c; lib/idr.c, klist.c, rhashtable.c, iov_iter.c, crypto/aes.c; mm/filemap.c; drivers/base/core.c; "
        "syzkaller's pkg/report/linux.go: stackParams.skip",
    ),
    FunctionGroup(
        "objects of devices, requests, buffers and sockets",
        CrashRole.HELPER,
        r"(__)?kobject_\w+|sysfs_(create|remove)_\w+|dpm_sysfs_remove|device_(add|del|destroy|unregister|remove_file)"
        r"|get_device_parent|add_uevent_var|ref_tracker_(free|dir_exit)|skb_(put|push|pull)|usb_(submit_urb|start_wait_urb|(bulk|control|interrupt)_msg"
        r"|kill_urb|kill_anchored_urbs)|lock_sock\w*|release_sock|proc_(create\w*|register)|console_lock",
        "lib/kobject.c, kobject_uevent.c, ref_tracker.c; fs/sysfs; drivers/base/core.c; drivers/usb/core; net/core; "
        "fs/proc/generic.c; kernel/printk/printk.c",
    ),
    FunctionGroup(
        "allocators",
        CrashRole.ALLOCATOR,
        r"(__|___)?(do_)?(slab|kmalloc|kzalloc|kcalloc|kmem_cache|kvmalloc|kvfree|krealloc|kfree|slub)\w*|\w*freelist_hook|new_slab"
        r"|allocate_slab|(__)?free_(pages?|frozen_pages|unref_\w+|slab)\w*|(__)?alloc_(pages?|frozen_pages|from_pcs)\w*|get_page_from_freelist"
        r"|prep_new_page|check_new_pages?|post_alloc_hook|get_partial\w*|discard_slab|qlist_free_all|qlink_free|quarantine\w*"
        r"|v(free|malloc|zalloc)\w*|__vmalloc_\w+|__vfree|memdup_\w+|kmemdup\w*|rcu_guarded_free|folio_alloc\w*|alloc_slab_page",
        "mm/slub.c; mm/slab_common.c; mm/page_alloc.c; mm/vmalloc.c",
    ),
    FunctionGroup(
        "scheduler",
        CrashRole.WAIT,
        r"context_switch|__switch_to(_asm)?|_?_?schedule\w*|_*preempt_schedule\w*|irqentry_exit"
        r"|retint_kernel|io_schedule\w*|_{0,2}cond_resched\w*"
        r"|(__|___)?wait_(for|on|woken|event)\w*|do_wait_for_common|wait_woken|(__)?(out_of_line_)?wait_on_bit\w*|bit_wait\w*|folio_(wait|lock)\w*"
        r"|(__)?folio_(wait|lock)\w*|_?_?synchronize_\w+|__wait_rcu_gp|rcu_barrier\w*|_?_?flush_work\w*|cancel_(delayed_)?work_sync"
        r"|__cancel_work_\w+|(__)?filemap_fdatawait\w*|kthread_(stop|park)\w*|drain_workqueue|do_nanosleep|msleep\w*|usleep_range\w*",
        "kernel/sched/core.c, completion.c, wait.c, wait_bit.c; kernel/rcu; kernel/workqueue.c; mm/filemap.c",
    ),
)
"""The groups; a function has the role of the first that names it."""

_PATTERNS: Final = tuple((re.compile(f"(?:{group.functions})$"), group) for group in GROUPS)


@cache
def role_of(function: str) -> CrashRole | None:
    """Return what a function has to do with a crash, None for an ordinary one.

    :param function: its name, without the suffix of a compiler's clone.
    """
    return next((group.role for pattern, group in _PATTERNS if pattern.match(function)), None)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The end of the coverage that led to a crash."""

    end: int
    """Index of the first record of the crash handling; the number of records if there is no crash."""
    fault: str | None = None
    """The function in which the crash began."""
    is_covered: bool = True
    """Whether that function has records of its own."""
    meets: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """From the index of a record to the stack frames, 0 the innermost, for whose function it is the last record."""


_ALWAYS: Final = frozenset({CrashRole.REPORT, CrashRole.INSTRUMENTATION, CrashRole.HELPER})
_HANDLING: Final = frozenset(
    {CrashRole.CRASH, CrashRole.REPORT, CrashRole.INTERRUPT_REPORT, CrashRole.EXCEPTION, CrashRole.ENTRY}
)
# The lockup detector's timer checks another CPU (kernel/watchdog_buddy.c, whose own functions end in tail calls).
_REMOTE_CHECK: Final = frozenset({"watchdog_hardlockup_check", "watchdog_timer_fn"})
# kernel/rcu/tree_stall.h: without another CPU to blame, print_other_cpu_stall() shows the task that it interrupted.
_OWN_STALL: Final = frozenset({"sched_show_task", "print_other_cpu_stall"})


@overload
def plain(function: str) -> str: ...
@overload
def plain(function: None) -> None: ...
def plain(function: str | None) -> str | None:
    """Return a function's name without the suffix of a compiler's clone, such as ``.isra.0``; of Rust, demangled."""
    if function is None:
        return None
    name = demangle(function)
    return name.split(" (.", 1)[0] if "::" in name else name.split(".", 1)[0]


def find_fault(stack: Sequence[StackFrame]) -> int | None:
    """Return the number of the frame in which a crash began; None if the stack shows no crash, or one noticed for another."""
    names = [frame.function for frame in stack]
    return find_origin(names) if CrashRole.CRASH in _roles(names) else None


def find_origin(names: Sequence[str | None]) -> int | None:
    """Return the index of the function in which a reported crash, stall or hang began.

    :param names: functions of a stack, innermost first: of a crashed or hung task, or of a backtrace in the kernel's log;
        None for a frame without a name.
    :return: None where the stack is that of who noticed what another task or CPU did, or ends before the function.
    """
    roles = _roles(names)
    at = max((index for index, role in enumerate(roles) if role is CrashRole.CRASH), default=-1) + 1
    # Before the first exception or interrupt, whatever a reporter calls is part of the report.
    entry = next((index for index in range(at, len(roles)) if roles[index] is CrashRole.ENTRY), len(roles))
    reporting = set(roles[at:entry])
    reporters = {plain(name) for name in names[at:entry]}
    if not reporters >= _OWN_STALL and (CrashRole.REMOTE_REPORT in reporting or reporters >= _REMOTE_CHECK):
        return None
    passed = _ALWAYS
    if CrashRole.INTERRUPT_REPORT in reporting or reporters >= _OWN_STALL:
        at, passed = entry, passed | {CrashRole.INTERRUPTED}
    elif CrashRole.REPORT in reporting:
        at = max(index for index in range(at, entry) if roles[index] is CrashRole.REPORT) + 1
    elif at < len(roles) and roles[at] is CrashRole.WAIT:
        passed |= {CrashRole.WAIT}
    before: CrashRole | None = CrashRole.CRASH
    while at < len(roles):
        role = roles[at]
        if role is CrashRole.REPORT or (at and roles[at - 1] is CrashRole.REPORT):
            passed |= {CrashRole.ALLOCATOR, CrashRole.WAIT}
        # An interrupt may have preempted the task.
        is_handling = role in _HANDLING and (before in _HANDLING or (role is CrashRole.ENTRY and before is CrashRole.WAIT))
        if role not in passed and not is_handling:
            # The function that an entry called is missing.
            return None if role in (CrashRole.ENTRY, CrashRole.OUTERMOST) else at
        before = role
        at += 1
    return None


def _roles(names: Sequence[str | None]) -> list[CrashRole | None]:
    return [None if name is None else role_of(plain(name)) for name in names]


def find_crash_point(
    pcs: Sequence[int],
    symbol: Callable[[int], str | None],
    stack: Sequence[StackFrame],
    *,
    is_crashed: bool = False,
    is_stuck: bool = False,
) -> CrashPoint:
    """Return where the coverage before a crash ends, and which records belong to functions on the stack.

    :param pcs: PC of each record; 0 for a record without one.
    :param symbol: returns the function into which a PC's code was compiled.
    :param stack: stack of the task, innermost frame first.
    :param is_crashed: whether the kernel names the task as the one that crashed it.
    :param is_stuck: whether another task or CPU reported that it hangs or stalls: then it has not recorded any crash handling.
    """
    known: dict[int, str | None] = {}
    names: list[str | None] = []
    for pc in pcs:
        if pc not in known:
            known[pc] = plain(symbol(pc)) if pc else None
        names.append(known[pc])
    fault = find_fault(stack)
    if fault is None and is_crashed and CrashRole.CRASH in _roles(tuple(known.values())):
        # The dump that kdump takes of an oops has the registers of the fault: crash_kexec() passes them on.
        fault = find_origin([frame.function for frame in stack])
    elif is_stuck:
        fault = find_origin([frame.function for frame in stack])
    end, name, covered = len(names), None, True
    if fault is not None:
        # Records of inlined functions carry the name of the function into which they were compiled.
        while fault < len(stack) - 1 and stack[fault].is_inline:
            fault += 1
        name = plain(stack[fault].function)
        end, covered = (end, name in names) if is_stuck else _cut(names, stack, fault)
    return CrashPoint(end, name, covered, _meet(names, stack, end))


def _cut(names: Sequence[str | None], stack: Sequence[StackFrame], fault: int) -> tuple[int, bool]:
    """Return the number of records before the crash, and whether the function in which it began has a record."""
    handling = {plain(frame.function) for frame in stack[:fault]}

    def is_handling(name: str | None) -> bool:
        return name is not None and (name in handling or role_of(name) in _HANDLING)

    for number in range(fault, len(stack)):
        wanted = plain(stack[number].function)
        indices = [index for index, name in enumerate(names) if name == wanted]
        if not indices:
            # Not instrumented: try its caller.
            continue
        # Crash handling may call the function again: prefer its last record that is directly followed by crash handling.
        adjacent = [index for index in indices if index + 1 < len(names) and is_handling(names[index + 1])]
        if number == fault:
            return (adjacent[-1] if adjacent else indices[-1]) + 1, True
        following = (index for index in range(indices[-1] + 1, len(names)) if is_handling(names[index]))
        return next(following, len(names)), False
    return len(names), False


def _meet(names: Sequence[str | None], stack: Sequence[StackFrame], end: int) -> dict[int, tuple[int, ...]]:
    wanted: dict[str, list[int]] = {}
    for number, frame in enumerate(stack):
        name = plain(frame.function)
        if name is not None and not frame.is_inline:
            wanted.setdefault(name, []).append(number)
    found: dict[int, tuple[int, ...]] = {}
    for index in range(end - 1, -1, -1):
        if not wanted:
            break
        name = names[index]
        if name is not None and name in wanted:
            found[index] = tuple(wanted.pop(name))
    return found
