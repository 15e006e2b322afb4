# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frames that nothing of the kernel is above: the stacks of idle tasks end at a page that is never
there, and are whole.
"""

import pytest

from kcovdbg.model.memory import StackFrame
from kcovdbg.target.drgn.stacks import is_outermost


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("entry_SYSCALL_64_after_hwframe", True),
        ("ret_from_fork_asm", True),
        ("asm_sysvec_apic_timer_interrupt", True),
        ("el0t_64_sync", True),
        # By the architectures' entries: arch/x86/kernel/head_64.S, arch/arm64/kernel/head.S,
        # arch/s390/kernel/smp.c.
        ("secondary_startup_64", True),
        ("secondary_startup_64_no_verify", True),
        ("common_startup_64", True),
        ("x86_64_start_kernel", True),
        ("__secondary_switched", True),
        ("smp_start_secondary", True),
        ("kcov_remote_start", False),
        ("handle_softirqs", False),
        (None, False),
    ],
)
def test_outermost_frames(function, expected):
    frame = StackFrame(0, function, None, None, None, is_inline=False)
    assert is_outermost(frame) == expected
