# SPDX-License-Identifier: LGPL-2.1-or-later
"""Lengths of calls: a recorded PC is the return address of a call."""

from __future__ import annotations

from typing import Final

CALL_LENGTHS: Final = {
    **dict.fromkeys(("x86_64", "i386", "i686"), 5),
    **dict.fromkeys(("aarch64", "armv7l", "ppc64le", "ppc64", "riscv64", "loongarch64"), 4),
    "s390x": 6,
    "mips64": 8,
}
"""Bytes from a call at a coverage point to its return address, by machine (syzkaller's pkg/cover/backend/pc.go)."""
