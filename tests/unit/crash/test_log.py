# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel's log says about a crash. The lines are those of the kernel's sources."""

import pytest

from kcovdbg.model.log_record import LogRecord
from kcovdbg.records.crash_report import CrashReport, find_report


def records(*lines, seconds=0.001, facility=0):
    return [
        LogRecord(number, int(number * seconds * 1e9), 4, facility, None, line)
        for number, line in enumerate(lines)
    ]


PANIC = "Kernel panic - not syncing: "
NULL = "BUG: kernel NULL pointer dereference, address: 000000000000000c"
OOPS = (NULL, "#PF: error", "Oops: Oops: 0000 [#1] SMP", "RIP: x")
WARNED = "WARNING: CPU: 0 PID: 1 at fs/a.c:3 f+0x1/0x2"
LIST = "list_del corruption. prev->next should be a, but was b"
ARM64 = "Unable to handle kernel paging request at virtual address 0"
HUNG = "INFO: task kc: 7:41 blocked for more than 10 seconds."
SOFT = "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [kc:41]"
HARD = "watchdog: CPU0: Watchdog detected hard LOCKUP on cpu 1"
STALL = "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:"
OWN_STALL = "rcu: INFO: rcu_sched self-detected stall on CPU"


@pytest.mark.parametrize(
    ("lines", "report"),
    [
        ((*OOPS, f"{PANIC}Fatal exception"), (NULL, "Fatal exception")),
        # kdump starts its kernel before panic().
        (OOPS, (NULL, None)),
        ((WARNED, *OOPS), (NULL, None)),
        ((LIST, "---[ cut here ]---", "kernel BUG at a.c:62!", "Oops: invalid opcode: 0000 [#1] " "SMP"), (LIST, None)),
        (("sysrq: Trigger a crash", f"{PANIC}sysrq triggered crash"), ("sysrq: Trigger a crash", "sysrq triggered crash")),
        ((WARNED, "Call Trace:", f"{PANIC}kernel: panic_on_warn set ..."), (WARNED, "kernel: panic_on_warn set " "...")),
        # A panic of its own has no report.
        ((WARNED, f"{PANIC}VFS: Unable to mount root fs"), (None, "VFS: Unable to mount root fs")),
        ((ARM64, "Internal error: Oops: 96000004 [#1] SMP"), (ARM64, None)),
        ((SOFT, f"{PANIC}softlockup: hung tasks"), (SOFT, "softlockup: hung tasks")),
        ((HUNG, "      Not tainted", f"{PANIC}hung_task: blocked tasks"), (HUNG, "hung_task: blocked tasks", 41)),
        ((HARD, f"{PANIC}Hard LOCKUP"), (HARD, "Hard LOCKUP", None, 1)),
        ((STALL, "rcu: \t2-...!: (1 GPs behind) idle=b", f"{PANIC}RCU Stall"), (STALL, "RCU Stall", None, 2)),
        ((STALL, "rcu: \tTasks blocked on level-0 rcu_node: P97/1:b..l", f"{PANIC}RCU Stall"), (STALL, "RCU Stall", 97)),
        ((OWN_STALL, "rcu: \t2-...!: (1 GPs behind) idle=b", f"{PANIC}RCU Stall"), (OWN_STALL, "RCU Stall")),
        # Warnings of a kernel that goes on.
        ((WARNED, "more"), ()),
        ((), ()),
    ],
)  # fmt: skip
def test_report(lines, report):
    assert find_report(records(*lines)) == CrashReport(*report)


def test_the_first_task_of_the_last_round():
    old, first = HUNG.replace("41", "5"), HUNG.replace("41", "6")
    said = records(
        old, first, HUNG, "Kernel panic - not syncing: hung_task: blocked tasks", seconds=4
    )
    said[0] = said[0]._replace(time=-1_000_000_000_000)
    assert find_report(said).pid == 6


def test_another_cpu_reports_at_the_same_time():
    lines = (
        "BUG: of the crash",
        "x",
        "WARNING: CPU: 1 PID: 1 at fs/a.c:3 f+0x1/0x2",
        "Kernel panic - not syncing: Fatal exception",
    )
    for callers, title in (
        (("T1", "T1", "C1", "T1"), lines[0]),
        (("T1", "T1", "T1", "T1"), lines[0]),
        ((None,) * 4, lines[0]),
    ):
        said = [
            record._replace(caller=caller)
            for record, caller in zip(records(*lines), callers, strict=True)
        ]
        assert find_report(said).title == title
    far = records(lines[0], *"abcdef", *lines[2:])
    said = [
        record._replace(caller=caller)
        for record, caller in zip(far, ("T1", *["C1"] * 7, "T1"), strict=True)
    ]
    assert find_report(said).title == lines[0]
    # One CPU alone: the last report before the panic.
    assert find_report(far).title == lines[2]


def test_what_programs_wrote_is_no_report():
    assert find_report(records("Kernel panic - not syncing: hoax", facility=1)) == CrashReport()
