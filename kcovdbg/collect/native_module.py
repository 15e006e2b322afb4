# SPDX-License-Identifier: LGPL-2.1-or-later
"""The compiled collector, if this installation has it."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

from kcovdbg.abi.mode import Ioctl
from kcovdbg.collect.requests import CollectMode
from kcovdbg.compiled_module import load_native

DEVICE: Final = "/sys/kernel/debug/kcov"
"""KCOV's file, where debugfs is usually mounted."""


def device_path(mode: CollectMode) -> str:
    """Return the path of the file that a mode is collected with."""
    device = mode.request.device
    return DEVICE if device is None else str(Path(DEVICE).with_name(device.file))


DEFAULT_SIZE: Final = 1 << 19
"""Words of a buffer: as many as syzkaller gives each thread (its kCoverSize)."""

# KCOV's buffers hold words of the kernel. On these machines a 32-bit program may run on a 64-bit kernel.
_MACHINES_64: Final = frozenset(
    {"x86_64", "aarch64", "aarch64_be", "riscv64", "s390x", "ppc64", "ppc64le", "loongarch64", "mips64"}
)


def kernel_word_size() -> int:
    """Return the size of the running kernel's ``unsigned long`` in bytes."""
    machine = platform.machine()
    if machine in _MACHINES_64:
        return 8
    return 4 if os.sysconf("SC_LONG_BIT") == 32 else 8


def request_number(ioctl: Ioctl) -> int:
    """Return the number of a request on this architecture."""
    _, lib = load_native()
    return int(lib.kcovdbg_request(ioctl.letter.encode(), ioctl.direction.encode() or b"\0", ioctl.number, ioctl.size))


def make_native_mode(mode: CollectMode, size: int) -> Any:
    """Return a new ``struct kcovdbg_mode *`` for a mode and a buffer size in words of the kernel."""
    ffi, _ = load_native()
    native = ffi.new("struct kcovdbg_mode *")
    native.request = request_number(mode.request.ioctl)
    native.argument = mode.argument(size)
    native.count_at = mode.prefix_words(size)
    native.record_words = mode.codec.record_words
    native.second = mode.second is not None
    device = mode.request.device
    if device is not None:
        for name in ("init", "disable", "remote_enable", "remote_disable"):
            setattr(native.requests, name, request_number(getattr(device, name)))
    return native
