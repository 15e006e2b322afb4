# SPDX-License-Identifier: LGPL-2.1-or-later
"""What reports on a console say; made up in the formats of the kernel's printers and of
syzkaller.
"""

import pytest

from kcovdbg.records.crash_report import (
    ReportedTask,
    find_stacks,
    find_tasks,
    find_title,
    summarize_report,
)
from kcovdbg.records.log_text import split_log

TASK = "CPU: 1 UID: 0 PID: 77 Comm: kworker/1:2 Not tainted 6.12.0 #1\n"
END = " entry_SYSCALL_64_after_hwframe+0x77/0x7f\nRIP: 0033:0x7f67c7d5cfce\n"
KASAN = (
    "BUG: KASAN: slab-use-after-free in made_up+0x12/0x340\n"
    f"{TASK}Call Trace:\n <TASK>\n dump_stack_lvl+0x116/0x1b0\n print_report+0xc3/0x620\n "
    f"kasan_report+0xd9/0x110\n"
    " ? stale+0x1/0x2\n made_up+0x12/0x340\n vfs_read+0x87/0xbe0\n __x64_sys_read+0x12/0x20\n "
    "do_syscall_64+0xcd/0x250\n"
    f"{END}"
    " </TASK>\n\nAllocated by task 3:\n kasan_save_stack+0x33/0x60\n allocating+0x1/0x2\n"
)
OOPS = (
    "BUG: kernel NULL pointer dereference, address: 0000000000000008\nOops: Oops: 0000 [#1] "
    "PREEMPT SMP KASAN\n"
    f"{TASK}RIP: 0010:made_up+0x12/0x340\nCode: 00 00 <0f> 0b\nRAX: 0000000000000000 RBX: "
    f"ffff8880\nCall Trace:\n <TASK>\n"
    f" vfs_read+0x87/0xbe0\n __do_sys_read+0x12/0x20 [made]\n{END}"
)
OLD = (
    "WARNING: CPU: 0 PID: 77 at made/up.c:73 made_up+0x2db/0x380\nKernel panic - not syncing: "
    "panic_on_warn set ...\n\n"
    "CPU: 0 PID: 77 Comm: kworker/1:2 Not tainted 4.15.0 #2\nCall Trace:\nbinder: a message of "
    "another CPU\n"
    " dump_stack+0x194/0x257\n ? vsnprintf+0x1ed/0x1900\n panic+0x1e4/0x41c\n "
    "__warn+0x1dc/0x200\n report_bug+0x211/0x2d0\n"
    " do_error_trap+0x2d7/0x3e0\n do_invalid_op+0x1b/0x20\n invalid_op+0x22/0x40\nRIP: "
    "0010:made_up+0x2db/0x380\n"
    "RSP: 0018:ffff8801d8837ce0 EFLAGS: 00010216\n vfs_read+0x87/0xbe0\n SyS_read+0x12/0x20\n"
)
HUNG = (
    "INFO: task kworker/1:2:77 blocked for more than 143 seconds.\n"
    "task:kworker/1:2     state:D stack:0     pid:77    tgid:77    ppid:2   task_flags:0x1 "
    "flags:0x8\nCall trace:\n"
    " __switch_to+0x2b0/0x6e0 (T)\n __schedule+0x1b74/0x2d24\n schedule+0xa4/0x140\n "
    "made_up+0x98/0x5ac\n"
    " __arm64_sys_read+0x9c/0xb8\n\nShowing all locks held in the system:\n1 lock held by "
    "khungtaskd/31:\n #0: ..., at: "
    f"other+0x1/0x2\nNMI backtrace for cpu 0\n{TASK.replace('77', '31')}Call Trace:\n "
    f"nmi_back+0x1/0x2\n watchdog+0x1/0x2\n"
)
KMSAN = (
    "=====================================================\nBUG: KMSAN: uninit-value in "
    "made_up+0x12/0x340 made/up.c:3\n"
    f" made_up+0x12/0x340 made/up.c:3\n __se_sys_read+0x1/0x2\n\nUninit was created at:\n "
    f"other+0x1/0x2\n\n{TASK}"
)

ARM = (
    f"8<--- cut here ---\n{TASK}Hardware name: made up\nPC is at memset+0x30/0xa8\nLR is at "
    f"0x0\nBacktrace: \n"
    "[<8062ed24>] (memset) from [<80632588>] (made_up+0x88/0x334)\n r10:84e00c00 r9:20000000 "
    "r8:84e00c00\n r4:85363540\n"
    "[<80632500>] (made_up) from [<80632c94>] (vfs_read+0x284/0x678)\n[<80632a10>] (vfs_read) "
    "from [<80633598>] "
    "(__se_sys_read+0x1/0x2)\n[<80100000>] (__se_sys_read) from [<80100168>] "
    "(ret_fast_syscall+0x0/0x2c)\n"
)
ARM_WARNING = (
    f"WARNING: CPU: 1 PID: 77 at made/up.c:3 made_up+0x1/0x2\n{TASK}Backtrace: \n "
    f"dump_backtrace from show_stack+0x18/0x1c\n"
    " r7:81d73900 r6:8190dcc8\n show_stack from dump_stack_lvl+0x48/0x54\n dump_stack_lvl from "
    "panic+0x1/0x2\n"
    " panic from __warn+0x1/0x2\n __warn from warn_slowpath_fmt+0x1/0x2\n warn_slowpath_fmt "
    "from made_up+0x1/0x2\n"
    " made_up from __se_sys_read+0x1/0x2\n"
)
POWERPC = (
    f"WARNING: CPU: 1 PID: 77 at made/up.c:79 made_up+0x2c/0x70\n{TASK}Call Trace:\n"
    "[c00000003ae5b800] [c00000000135c19c] dump_stack+0x128/0x1cc "
    "(unreliable)\n[c00000003ae5b860] [c00000000016ab98] "
    "panic+0x1cc/0x534\n[c00000003ae5b9a0] [c00000000135a500] report_bug+0x150/0x270\n"
    "[c00000003ae5ba30] [c00000000002f9a8] "
    "program_check_exception+0x1f8/0x280\n[c00000003ae5bac0] [c0000000000090a4] "
    "program_check_common+0x184/0x190\n--- interrupt: 700 at made_up+0x2c/0x70\n    LR = "
    "lr+0x19c/0x2d0\n"
    "[c00000003ae5bdc0] [0000000000000000]           (null) (unreliable)\n[c00000003ae5bdf0] "
    "[c00000000009651c] "
    "__se_sys_read+0x10c/0x250\n"
)
FREED = (
    f"BUG: KASAN: use-after-free in made_up+0x1/0x2 at addr ffff8801d0c6b080\n{TASK}Call Trace:\n"
    " [<ffffffff81d91389>] dump_stack+0xc1/0x128\n [<ffffffff81d91388>] kasan_report+0x1/0x2\n "
    "made_up+0x1/0x2\n"
    " __se_sys_read+0x1/0x2\nAllocated:\nPID = 3\n save_stack+0x1/0x2\n "
    "kasan_kmalloc+0x1/0x2\n allocating+0x1/0x2\n"
)
HARMLESS = (
    "FAULT_INJECTION: forcing a failure.\nname failslab, interval 1, probability 0, space 0, "
    "times 0\n"
    f"{TASK}Call Trace:\n should_failslab+0x1/0x2\n injected+0x1/0x2\n "
    f"__se_sys_write+0x1/0x2\nRIP: 0033:0x7f67c7d5cfce\n"
    f"syz: vmalloc: allocation failure: 17045651456 bytes\n{TASK}Call Trace:\n "
    f"warn_alloc+0x1/0x2\n allocating+0x1/0x2\n"
    "Mem-Info:\n"
)
ATOMIC = (
    f"BUG: scheduling while atomic: kworker/1:2/77/0x2\nPreemption disabled "
    f"at:\n[<ffffffff812b2934>] other+0x64/0x260\n{TASK}"
    "Call Trace:\n __schedule_bug+0x1/0x2\n __schedule+0x1/0x2\n schedule+0x1/0x2\n "
    "made_up+0x1/0x2\n __se_sys_read+0x1/0x2\n"
)


WARN_619 = (
    "------------[ cut here ]------------\nWARNING: made/up.c:713 at made_up+0x99/0x150, "
    "CPU#1: kworker/1:2/77\n"
    f"Modules linked in:\n{TASK}RIP: 0010:__WARN_trap+0x4/0x10\nCode: 0f 0b\nRSP: "
    f"0018:ffffc90003e7fd00 EFLAGS: 00010293\n"
    f"Call Trace:\n <TASK>\n made_up+0x99/0x150\n __x64_sys_read+0x15/0x20\n{END}"
)
LEAK = (
    "BUG: memory leak\nunreferenced object 0xffff888111111100 (size 32):\n  comm "
    '"kworker/1:2", pid 77, jiffies 4294945000\n'
    "  hex dump (first 8 bytes):\n    00 00 00 00 00 00 00 00  ........\n  backtrace (crc "
    "12345678):\n"
    "    __kmalloc_cache_noprof+0x2be/0x350\n    kstrdup+0x1/0x2\n    made_up+0x20/0x820\n    "
    "__se_sys_read+0x1/0x2\n"
)
OLD_LEAK = (
    "BUG: memory leak\nunreferenced object 0xffff888111111100 (size 64):\n"
    '  comm "kworker/1:2", pid 77, jiffies 4295 (age 80.593s)\n'
    "  backtrace:\n    [<00000000cf39be81>] slab_alloc_node mm/slub.c:3478 [inline]\n"
    "    [<00000000cf39be81>] __kmem_cache_alloc_node+0x1f1/0x310 mm/slub.c:3517\n"
    "    [<00000000ffb5fd6b>] kzalloc include/linux/slab.h:721 [inline]\n"
    "    [<00000000ffb5fd6b>] made_up+0x20/0x820 made/up.c:980\n    [<00000000ffb5fd6c>] "
    "__se_sys_read+0x54/0xb0 fs/a.c:3\n"
)
STARVED = (
    "rcu: INFO: rcu_preempt self-detected stall on CPU\nrcu: \t1-...!: (1 GPs behind) "
    "idle=b/1/0x4 softirq=1/2 fqs=0\n"
    "rcu: rcu_preempt kthread starved for 10502 jiffies! g-123 f0x0 RCU_GP_WAIT_FQS(5) "
    "->state=0x0 ->cpu=0\n"
    "rcu: RCU grace-period kthread stack dump:\ntask:rcu_preempt     state:R  running task     "
    "stack:28 pid:17    tgid:17\n"
    "Call Trace:\n <TASK>\n __schedule+0x1/0x2\n schedule+0x1/0x2\n schedule_timeout+0x1/0x2\n "
    "rcu_gp_fqs_loop+0x1/0x2\n"
    " kthread+0x1/0x2\n </TASK>\nrcu: Stack dump where RCU GP kthread last ran:\nSending NMI "
    "from CPU 1 to CPUs 0:\n"
    f"NMI backtrace for cpu 0\n{TASK.replace('77', '5')}RIP: 0010:innocent+0x1/0x2\nCall "
    f"Trace:\n innocent_too+0x1/0x2\n"
    f"{TASK}RIP: 0010:made_up+0x1/0x2\nCall Trace:\n <TASK>\n __se_sys_read+0x1/0x2\n{END}"
)
S390 = (
    f"Unable to handle kernel pointer dereference in virtual kernel address space\n{TASK}"
    "Krnl PSW : 0704c00180000000 00000000001c4fd8 (made_up+0x68/0x1c8)\n           R:0 T:1 "
    "IO:1\nKrnl GPRS: 0000000000000000\n"
    "Call Trace:\n [<00000000001c4fd8>] outer+0x68/0x1c8 \n([<00000000001c4fd8>] unsure+0x1/0x2)\n"
    " [<00000000001c4fd9>] __se_sys_read+0x1/0x2 \nLast Breaking-Event-Address:\n "
    "[<00000000001c4fd8>] other+0x1/0x2\n"
)
SPARC = (
    f"Oops\n{TASK}TSTATE: 0000004411001603 TPC: 0000000000456789\nTPC: <made_up+0x1/0x2>\nCall "
    f"Trace:\n"
    "[<00456>] __se_sys_read+0x1/0x2\n"
)
LOONGARCH = (
    f"CPU 1 Unable to handle kernel paging request\n{TASK}pc 9000000000223d3c ra 9000000000224600\n"
    "   ra: 9000000000224600 outer+0x1/0x2\n  ERA: 9000000000223d3c made_up+0x2c/0x80\nCall "
    "Trace:\n"
    "[<9000000000223d3c>] outer+0x1/0x2\n[<9000000000223d3c>] __se_sys_read+0x1/0x2\n"
)
MIPS = (
    f"Oops[#1]:\n{TASK}epc   : 80104a18 made_up+0x8/0x30\nra    : 80104a18 g+0x8/0x30\nCall "
    f"Trace:\n"
    "[<80104a18>] __se_sys_read+0x1/0x2\n"
)
LINEINFO = (
    f"BUG: KASAN: use-after-free in made_up+0x1/0x2 (made/up.c:3)\n{TASK}Call Trace:\n <TASK>\n"
    " dump_stack_lvl+0x1/0x2 (lib/d.c:1)\n print_report+0x1/0x2 (mm/kasan/report.c:5)\n "
    "kasan_report+0x1/0x2 (mm/a.c:5)\n"
    f" made_up+0x30/0x100 [my_driver] (drivers/foo/bar.c:123)\n __se_sys_read+0x1/0x2 "
    f"(fs/a.c:5)\n{END}"
)


@pytest.mark.parametrize(
    "prefix", ["", "[  173.566032] ", "[  173.566032][   T77] ", "<4>[  173.566032][    C1] "]
)
@pytest.mark.parametrize(
    "report",
    [
        *(KASAN, OOPS, OLD, HUNG, KMSAN, ARM, ARM_WARNING, POWERPC, FREED, HARMLESS + OOPS, ATOMIC),
        *(WARN_619, LEAK, OLD_LEAK, STARVED, S390, SPARC, LOONGARCH, MIPS, LINEINFO),
    ],
    ids=[
        *(
            "kasan",
            "oops",
            "old",
            "hung",
            "kmsan",
            "arm",
            "warning on arm",
            "powerpc",
            "freed",
            "harmless",
            "atomic",
        ),
        *(
            "warning since 6.19",
            "leak",
            "old leak",
            "starved",
            "s390",
            "sparc",
            "loongarch",
            "mips",
            "lineinfo",
        ),
    ],
)
def test_where_it_began(report, prefix):
    text = "".join(f"{prefix}{line}\r\n" for line in report.splitlines())
    for given in (text, text.replace("\r", "")):
        found = summarize_report(given)
        assert (found.origin.function, found.task, found.problem) == (
            "made_up",
            ReportedTask(77, "kworker/1:2"),
            None,
        )
        assert found.syscall == (None if report is OLD else "read")


def test_lines_of_several_cpus():
    """Two reports at the same time, line by line: each has its own stack and task."""
    other = KASAN.replace("77", "5").replace("made_up", "wrong").replace("kworker/1:2", "other")
    own = [f"[  173.566032][   T77] {line}" for line in KASAN.splitlines()]
    theirs = [f"[  173.566033][    T5] {line}" for line in other.splitlines()]
    mixed = "\n".join(line for pair in zip(own, theirs, strict=True) for line in pair)
    found = summarize_report(mixed)
    assert (found.origin.function, found.task) == ("made_up", ReportedTask(77, "kworker/1:2"))
    stacks = find_stacks(split_log(mixed))
    assert {(stack.task.pid, stack.frames[2].function) for stack in stacks[:2]} == {
        (77, "kasan_report"),
        (5, "kasan_report"),
    }
    assert {
        frame.function for stack in stacks if stack.task.pid == 5 for frame in stack.frames
    }.isdisjoint({"made_up"})


# From syzbot's reports of 6.11 and later, lib/ubsan.c, mm/slub.c and kernel/panic.c.
@pytest.mark.parametrize(
    "title",
    [
        "Oops: general protection fault, probably for non-canonical address 0xdffffc0000000055: "
        "0000 [#1] SMP KASAN PTI",
        "general protection fault: 0000 [#1] SMP",
        "Oops: divide error: 0000 [#1] SMP KASAN",
        "Internal error: UBSAN: integer subtraction overflow: 00000000f2005515 [#1]  SMP",
        "sysrq: SysRq : Trigger a crash",
        "sysrq: Trigger a crash",
        "SysRq : Trigger a crash",
        "BUG kmalloc-64 (Tainted: G    B): Redzone overwritten",
        "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: f+0x1/0x2",
    ],
)
def test_titles(title):
    report = f"usb 1-1: new device\n{title}\n{TASK}Kernel panic - not syncing: Fatal exception\n"
    assert find_title(report) == title


def test_the_first_of_two_reports_at_a_time():
    """The other CPU's stack is complete before."""
    lines = KASAN.splitlines()
    other = ["Call Trace:", " dump_stack_lvl+0x1/0x2", " other+0x1/0x2", "---[ end trace ]---"]
    text = "".join(
        f"[    1.0][   T77] {line}\n"
        + "".join(f"[    1.0][    C0] {there}\n" for there in other[index : index + 1])
        for index, line in enumerate(lines)
    )
    summary = summarize_report(text)
    assert summary.origin is not None
    assert summary.origin.function == "made_up"


def test_where_slub_says_that_an_object_was_allocated_is_aside():
    """mm/slub.c: print_track(), whose stacks need no heading."""
    text = (
        "BUG kmalloc-64 (Not tainted): Object already free\nAllocated in other+0x1/0x2 age=1 cpu=0 "
        "pid=1\n kmalloc_noprof+0x1/0x2\n other+0x1/0x2\nFreed in other+0x5/0x9 age=1 cpu=0 "
        f"pid=1\n kfree+0x1/0x2\n other+0x5/0x9\n{TASK}Call Trace:\n <TASK>\n "
        "dump_stack_lvl+0x1/0x2\n object_err+0x1/0x2\n free_to_partial_list+0x1/0x2\n kfree+0x1/0x2\n made_up+0x1/0x2\n"
    )
    summary = summarize_report(text)
    assert summary.origin is not None
    assert summary.origin.function == "made_up"


def test_where_page_owner_says_that_a_page_was_allocated_is_aside():
    """mm/page_owner.c: __dump_page_owner(), in front of the stack of a bad page."""
    text = (
        "BUG: Bad page state in process kworker/1:2  pfn:12345\npage_owner tracks the page as "
        "allocated\npage last allocated via order 0, migratetype Unmovable, gfp_mask "
        "0xcc0(GFP_KERNEL), pid 1, tgid 1 (swapper/0), ts 1, free_ts 0\n other+0x1/0x2\n"
        "page last free pid 2 tgid 2 stack trace:\n freeing+0x1/0x2\n"
        f"{TASK}Call Trace:\n <TASK>\n bad_page+0x1/0x2\n free_unref_page+0x1/0x2\n "
        "made_up+0x1/0x2\n"
    )
    summary = summarize_report(text)
    assert summary.origin is not None
    assert summary.origin.function == "made_up"


@pytest.mark.parametrize(
    "check", ["check_bytes_and_report", "check_object", "check_slab", "__slab_err"]
)
def test_checks_of_slub_are_passed(check):
    text = f"{TASK}Call Trace:\n {check}+0x1/0x2\n kfree+0x1/0x2\n made_up+0x1/0x2\n"
    summary = summarize_report(f"BUG kmalloc-64 (Not tainted): Redzone overwritten\n{text}")
    assert summary.origin is not None
    assert summary.origin.function == "made_up"


@pytest.mark.parametrize("indent", ["", "    ", "\t"])
@pytest.mark.parametrize(
    "line",
    [
        '  comm "a b", pid 77, jiffies 4294943298',
        "task:a b             state:D stack:0     pid:77    tgid:77    ppid:2",
        "WARNING: made/up.c:7 at made_up+0x1/0x2, CPU#0: a b/77",
        "CPU: 0 UID: 0 PID: 77 Comm: a b Not tainted 6.12.0 #1",
    ],
)
def test_tasks_of_indented_lines(line, indent):
    assert find_tasks(indent + line) == [ReportedTask(77, "a b")]


def test_inlined_checks_of_copies_are_passed():
    """include/linux/instrumented.h, ucopysize.h: as KMSAN and usercopy show them."""
    text = (
        "BUG: KMSAN: kernel-infoleak in instrument_copy_to_user include/linux/instrumented.h:114 "
        "[inline]\n instrument_copy_to_user include/linux/instrumented.h:114 [inline]\n"
        " _copy_to_user+0x1/0x2\n made_up+0x1/0x2\n"
    )
    summary = summarize_report(text)
    assert summary.origin is not None
    assert summary.origin.function == "made_up"


def test_places_in_a_report_that_was_symbolized():
    text = (
        "Call Trace:\n inlined made/up.h:5 [inline]\n made_up+0x12/0x340 made/up.c:73\n "
        "vfs_read+0x1/0x2 fs/read_write.c:5\n"
    )
    found = summarize_report(f"BUG: x\n{TASK}{text}")
    assert found.origin == ("inlined", "made/up.h", 5)


@pytest.mark.parametrize(
    "text",
    [
        "BUG: KASAN: use-after-free in made_up+0x670/0x690 at addr ffff8801d0c6b080\n",
        "BUG: unable to handle kernel paging request at ffff8801\nIP: [<ffffffff82f1a5c1>] "
        "made_up+0x31/0x3b0\nPGD 0\n",
        "IP: memcpy+0x1/0x2\nRIP: 0010:[<ffffffff82f1a5c1>]  [<ffffffff82f1a5c1>] "
        "made_up+0x31/0x3b0\n",
        "WARNING: CPU: 0 PID: 4 at made/up.c:3 made_up+0x1/0x2\nCall Trace:\n dump_stack+0x1/0x2\n",
        "WARNING: made/up.c:713 at made_up+0x99/0x150, CPU#1: syz.0.17/6543\n",
        "WARNING: at made_up+0x99/0x150, CPU#1: syz.0.17/6543\n",
        "Kernel panic - not syncing: stack-protector: Kernel stack is corrupted in: "
        "made_up+0x1/0x2\n",
        "kworker/1:2/77 is trying to acquire lock:\nffff888012345678 (&p->lock){+.+.}-{4:4}, at: "
        "made_up+0x0/0xb0\n",
        "kworker/1:2/77 is trying to acquire lock:\n (kacpid){+.+.+.}, at: "
        "[<ffffffff8105bbd0>] made_up+0x0/0xb0\n",
        # Some unwinders get as far as the entry alone.
        "IP: made_up+0x1/0x2\nCall Trace:\n dump_stack+0x1/0x2\n lock_acquire+0x1/0x2\n "
        "entry_SYSENTER_compat+0x1/0x2\n",
    ],
)
def test_headline_of_a_report_without_its_stack(text):
    found = summarize_report(text)
    assert found.origin.function == "made_up"
    assert found.problem


@pytest.mark.parametrize(
    "text", ["", "nothing\n", "Call Trace:\n", "Call Trace:\nnothing\n" * 3, f"BUG: x\n{TASK}"]
)
def test_what_is_missing_is_told(text):
    found = summarize_report(text)
    assert found.origin is None
    assert found.problem


@pytest.mark.parametrize(
    "line",
    [
        " f+0x1/0x2",
        "Call Trace:",
        " (" * 60_000,
        "RIP: 0010:" + "a" * 100_000,
        "PID: 1 Comm: " * 9999,
    ],
)
def test_hostile_reports_take_no_time(line):
    summarize_report(f"{line}\n" * (1_000_000 // len(line)))
