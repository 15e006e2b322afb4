# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about background work: it is recorded if a function on its stack announces a remote
handle.
"""

import pytest

from kcovdbg.model.remote import RemoteSite
from kcovdbg.model.state import Part
from kcovdbg.why.background_work import explain_background, explain_function_work
from kcovdbg.why.missing_coverage import NEEDS
from tests.support.kernels.build import Kernel
from tests.support.kernels.rows import E9A

HUB = RemoteSite(
    0x10, "hub_event", "hub_event", "kcov_remote_start_usb", "drivers/usb/core/hub.c", 5896, None
)
INLINED = RemoteSite(0x20, "nested", "outer.constprop.0", "kcov_remote_start", "net/a.c", 7, "some")
RING = RemoteSite(
    0x30,
    "io_wq_submit_work",
    "io_wq_submit_work",
    "kcov_remote_start_common",
    "io_uring/io_uring.c",
    9,
    None,
)
KTHREADD, IN_SECTION, USER = 2, 7, 40


def codes(pid, *functions, sites=(HUB, INLINED), of=None):
    """Return the codes of the answers about a task, or about a function, while the task's stack has
    these functions.
    """
    kernel = Kernel(E9A)
    kernel.give_stack(pid, *functions)
    state = kernel.reader().read(NEEDS | Part.ALL_TASKS, stacks=[kernel.tasks[pid]])
    found = explain_background(state, state.find_task(pid), sites) if of is None else None
    return [answer.code for answer in found or explain_function_work(state, of, sites)]


@pytest.mark.parametrize(
    ("pid", "functions", "expected"),
    [
        (
            KTHREADD,
            ["usb_disable_lpm", "hub_event", "process_one_work", "worker_thread", "kthread"],
            ["at-site"],
        ),
        (KTHREADD, ["schedule", "outer", "kthread"], ["at-site"]),
        (KTHREADD, ["schedule", "kthreadd"], ["outside-sites"]),
        (KTHREADD, [], []),
        # Its session shows that it is in a remote section.
        (IN_SECTION, ["schedule", "worker_thread"], []),
        (USER, ["schedule", "do_syscall_64"], []),
    ],
)
def test_of_a_task(pid, functions, expected):
    assert codes(pid, *functions) == expected


def test_the_context_of_io_uring():
    """Linux 7.3 announces handles there; the functions have other names than those that the table
    of contexts has.
    """
    assert RING.context == "task"
    assert RING._replace(file="lib/other.c").context is None


def test_of_io_uring():
    """Its workers are threads of a process: recorded on kernels where io_uring announces a handle,
    on others never.
    """
    stack = [
        "io_read",
        "io_issue_sqe",
        "io_wq_submit_work",
        "io_worker_handle_work",
        "io_wq_worker",
        "ret_from_fork",
    ]
    child = 44
    assert codes(child, *stack) == ["io-uring-not-announced", "outside-sites"]
    assert codes(child, *stack, sites=(HUB, RING)) == ["at-site"]


def test_of_a_function():
    stack = ["usb_disable_lpm", "hub_event", "process_one_work", "worker_thread"]
    assert codes(KTHREADD, *stack, of="hub_event") == ["announces-handle", "at-site"]
    assert codes(KTHREADD, *stack, of="usb_disable_lpm") == ["at-site"]
    # Its callers announce nothing; what it calls does.
    assert codes(KTHREADD, *stack, of="worker_thread") == ["outside-sites"]
    assert codes(USER, "vfs_read", "do_syscall_64", of="vfs_read") == []


def test_contexts():
    assert (HUB.subsystem, HUB.context) == (1, "task")
    assert HUB._replace(wrapper="kcov_remote_start_usb_softirq").context == "softirq"
    assert (INLINED.subsystem, INLINED.context) == (None, None)
    assert (RING.subsystem, RING._replace(function="ieee80211_rx_list").context) == (0, "softirq")
