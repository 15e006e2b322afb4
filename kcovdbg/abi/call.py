# SPDX-License-Identifier: LGPL-2.1-or-later
"""The call before a recorded PC: what KCOV records is where it returns to."""

from __future__ import annotations

from typing import Final

CALL_LENGTHS: Final = {
    **dict.fromkeys(("x86_64", "i386", "i686"), 5),
    **dict.fromkeys(("aarch64", "armv7l", "ppc64le", "ppc64", "riscv64", "loongarch64"), 4),
    "s390x": 6,
    "mips64": 8,
}
"""Bytes from a call of a coverage point to where it returns, by machine: what syzkaller takes off (pkg/cover/backend/pc.go)."""
