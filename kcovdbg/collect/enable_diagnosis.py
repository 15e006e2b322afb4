# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why KCOV_ENABLE failed with EINVAL, found out with a fresh object (kcov-abi.md 4).

The fresh object is asked for the same mode, and if it refuses, for mode 0, which is PC in every series. No other number is
tried: they mean different things in different series (kcov-abi.md 8.6).
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import Any

from kcovdbg.abi.mode import ENABLE
from kcovdbg.collect.native_module import request_number
from kcovdbg.compiled_module import load_native


class EnableRefusal(Enum):
    """What KCOV_ENABLE refuses with EINVAL."""

    MODE = "mode"
    """The mode: the kernel only knows PC."""
    PREFIX = "prefix"
    """A prefix of the buffer that leaves no room for records, or is empty."""
    OBJECT = "object"
    """The object, which is enabled already, by some task that has its file: a fresh one accepts the mode."""
    FILE = "file"
    """Everything: not even PC can be enabled on a fresh object."""
    UNKNOWN = "unknown"
    """Not found out."""


def find_refusal(
    path: str, *, request: int, argument: int, size: int, word_size: int, has_prefix: bool, device: Any = None
) -> EnableRefusal:
    """Return why a request to enable was refused with EINVAL.

    The calling thread must not be collecting. It may be enabled for a moment.

    :param path: path of KCOV's file.
    :param request: number of the ioctl.
    :param argument: argument of the ioctl.
    :param size: size of the buffer in words of the kernel.
    :param has_prefix: whether the argument is the size of what comes before the count, in words.
    :param device: ``struct kcovdbg_device *`` to use instead of the kernel.
    """
    if has_prefix and not 0 < argument < size - 1:
        return EnableRefusal.PREFIX
    ffi, lib = load_native()
    kcov = ffi.new("struct kcovdbg_kcov *")
    if lib.kcovdbg_open(kcov, ffi.NULL if device is None else device, os.fsencode(path), word_size):
        return EnableRefusal.UNKNOWN
    try:
        if lib.kcovdbg_init(kcov, size) or lib.kcovdbg_map(kcov, 0):
            return EnableRefusal.UNKNOWN
        if _try_enable(ffi, lib, kcov, request, argument) == 0:
            return EnableRefusal.OBJECT
        error = _try_enable(ffi, lib, kcov, request_number(ENABLE), 0)
    finally:
        lib.kcovdbg_close(kcov)
    return EnableRefusal.MODE if error == 0 else EnableRefusal.FILE if error == errno.EINVAL else EnableRefusal.UNKNOWN


def _try_enable(ffi: Any, lib: Any, kcov: Any, request: int, argument: int) -> int:
    mode = ffi.new("struct kcovdbg_mode *", {"request": request, "argument": argument, "record_words": 1})
    error = -int(lib.kcovdbg_enable(kcov, mode))
    if not error:
        lib.kcovdbg_disable(kcov)
    return error
