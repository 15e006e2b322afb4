# SPDX-License-Identifier: LGPL-2.1-or-later
"""The compiled collector, where this installation has it."""

from __future__ import annotations

import os
import platform
from typing import Any, Final

from kcovdbg.errors import CapabilityError

DEVICE: Final = "/sys/kernel/debug/kcov"
"""KCOV's file, below wherever debugfs is mounted by habit."""

DEFAULT_SIZE: Final = 1 << 19
"""Words of a buffer: what syzkaller gives each thread (its kCoverSize)."""

# 32-bit programs of these machines may run on a 64-bit kernel, whose words KCOV's buffers are made of.
_MACHINES_64: Final = frozenset(
    {"x86_64", "aarch64", "aarch64_be", "riscv64", "s390x", "ppc64", "ppc64le", "loongarch64", "mips64"}
)


def load_native() -> tuple[Any, Any]:
    """Return cffi's ``ffi`` and ``lib``.

    :raises CapabilityError: when the module wasn't compiled for this Python.
    """
    try:
        from kcovdbg._native import ffi, lib
    except ImportError as error:
        raise CapabilityError(
            f"the native collector can't be loaded: {error}",
            hint="install kcovdbg with a C compiler at hand; in a checkout: python native/build_native.py",
        ) from None
    return ffi, lib


def kernel_word_size() -> int:
    """Return the bytes of the running kernel's ``unsigned long``."""
    machine = platform.machine()
    if machine in _MACHINES_64:
        return 8
    return 4 if os.sysconf("SC_LONG_BIT") == 32 else 8
