# SPDX-License-Identifier: LGPL-2.1-or-later
"""Classes of kernel functions that most traces hold and few readers look for: locking, allocation, and the like."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from kcovdbg.records.located_records import matches_file
from kcovdbg.model.location import Frame


class FunctionClass(NamedTuple):
    """A named class of functions."""

    name: str
    summary: str
    functions: tuple[str, ...]
    """Patterns of names."""
    files: tuple[str, ...]
    """Paths, directories, or patterns; functions of inlined headers count as the file that they were compiled into."""


CLASSES: Final = (
    FunctionClass(
        "locking",
        "spin locks, mutexes, semaphores, lockdep",
        (
            "*_spin_lock*",
            "*_spin_trylock*",
            "*_spin_unlock*",
            "_raw_read_*",
            "_raw_write_*",
            "mutex_*",
            "__mutex_*",
            "rt_mutex_*",
            "rt_spin_*",
            "down_read*",
            "down_write*",
            "up_read*",
            "up_write*",
            "down_trylock",
            "percpu_down_*",
            "percpu_up_*",
            "lock_acquire*",
            "lock_release",
            "lock_is_held*",
            "lockdep_*",
            "lockref_*",
        ),
        ("kernel/locking", "lib/lockref.c", "lib/dec_and_lock.c"),
    ),
    FunctionClass(
        "rcu",
        "read-copy-update",
        ("rcu_*", "__rcu_*", "call_rcu*", "kvfree_call_rcu", "synchronize_rcu*", "srcu_*", "__srcu_*"),
        ("kernel/rcu",),
    ),
    FunctionClass(
        "memory-allocation",
        "slab, page and per-CPU allocators, memory control groups",
        (
            "kmalloc*",
            "__kmalloc*",
            "kzalloc*",
            "kfree*",
            "kvmalloc*",
            "__kvmalloc*",
            "kvfree*",
            "kmem_cache_*",
            "__kmem_cache_*",
            "alloc_pages*",
            "__alloc_pages*",
            "__free_pages*",
            "free_pages*",
            "obj_cgroup_*",
            "mem_cgroup_*",
            "__mem_cgroup_*",
        ),
        (
            "mm/slub.c",
            "mm/slab.c",
            "mm/slab_common.c",
            "mm/slab.h",
            "mm/page_alloc.c",
            "mm/mempool.c",
            "mm/mempolicy.c",
            "mm/percpu*.c",
            "mm/memcontrol*.c",
            "mm/vmstat.c",
        ),
    ),
    FunctionClass(
        "scheduling",
        "the scheduler, waking and waiting",
        ("schedule*", "__schedule*", "arch_scale_*", "preempt_schedule*", "wake_up_*", "__wake_up*", "*cond_resched*"),
        ("kernel/sched",),
    ),
    FunctionClass(
        "instrumentation",
        "sanitizers, tracing, fault injection, debugging aids",
        (
            "kasan_*",
            "__kasan_*",
            "__asan_*",
            "kcsan_*",
            "kmsan_*",
            "__msan_*",
            "__ubsan_*",
            "kcov_*",
            "should_fail*",
            "trace_*",
        ),
        (
            "kernel/kcov.c",
            "kernel/kcsan",
            "kernel/trace",
            "mm/kasan",
            "mm/kmsan",
            "mm/kfence",
            "mm/failslab.c",
            "mm/fail_page_alloc.c",
            "mm/page_owner.c",
            "lib/ubsan.c",
            "lib/fault-inject.c",
            "lib/stackdepot.c",
            "lib/debugobjects.c",
        ),
    ),
    FunctionClass(
        "copy",
        "copies between user space and the kernel, and within memory",
        (
            "*copy_from_user*",
            "*copy_to_user*",
            "*copy_from_iter*",
            "*copy_to_iter*",
            "*strncpy_from_user*",
            "*strnlen_user*",
            "*clear_user*",
            "__check_object_size",
            "mem*cpy*",
            "memset*",
        ),
        ("lib/usercopy.c", "lib/iov_iter.c", "lib/string.c", "lib/strn*_user.c", "mm/usercopy.c"),
    ),
    FunctionClass(
        "time",
        "clocks and timers",
        ("ktime_*", "hrtimer_*", "__hrtimer_*", "timer_*", "mod_timer*", "del_timer*", "read_tsc", "sched_clock*"),
        ("kernel/time", "lib/timerqueue.c", "arch/x86/kernel/tsc.c"),
    ),
)
"""The classes; a function is in the first one that matches."""

OUTERMOST: Final = (
    "__x64_sys_*",
    "__ia32_sys_*",
    "__ia32_compat_sys_*",
    "__arm64_sys_*",
    "__riscv_sys_*",
    "*exit_to_user_mode*",
)
"""Patterns of functions that only the kernel's entry code calls."""
# A trace without its system call could not be recognized: clock_nanosleep() is in kernel/time, for instance.
_SYSTEM_CALLS: Final = ("__*_sys_*", "__se_sys_*", "__do_sys_*", "ksys_*", "do_sys_*", "*_syscall_*", "do_syscall*")


def find_class(frame: Frame, classes: Iterable[FunctionClass] = CLASSES) -> str | None:
    """Return the name of the class that a function is in; None for one in no class, and for the functions of system calls.

    :param frame: the function, with the file that it was compiled from.
    """
    name = frame.function
    if name is None or any(fnmatchcase(name, pattern) for pattern in _SYSTEM_CALLS):
        return None
    for one in classes:
        if any(fnmatchcase(name, pattern) for pattern in one.functions) or any(matches_file(path, frame) for path in one.files):
            return one.name
    return None
