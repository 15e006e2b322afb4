# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why KCOV_ENABLE said EINVAL, which it does for several reasons: found out with a second, fresh instance (kcov-abi.md 4).

The fresh one is asked for what was asked for, and if it refuses that too, for mode 0, which is PC in every series. No other
number is tried: they mean different things in different series (kcov-abi.md 8.6).
"""

from __future__ import annotations

import errno
import os
from enum import Enum
from typing import Any

from kcovdbg.collect.native import load_native


class Cause(Enum):
    """What KCOV_ENABLE refuses with EINVAL."""

    MODE = "mode"
    """The kernel doesn't know the mode, and knows PC."""
    BITMAP = "bitmap"
    """The bitmap leaves no room for records, or has no word at all."""
    INSTANCE = "instance"
    """A fresh instance takes the mode: the first one was enabled already, by whichever task has its file."""
    FILE = "file"
    """Not even PC can be enabled on a fresh instance."""
    UNKNOWN = "unknown"
    """It couldn't be found out."""


def find_cause(
    path: str, *, request: int, argument: int, size: int, word_size: int, is_unique: bool, device: Any = None
) -> Cause:
    """Find out why a request to enable was refused with EINVAL.

    The calling thread must not be collecting. It is enabled for a moment, and never longer.

    :param path: of KCOV's file.
    :param request: of the ioctl.
    :param argument: its argument.
    :param size: of the buffer, in words of the kernel.
    :param is_unique: whether it is KCOV_UNIQUE_ENABLE, whose argument is the size of the bitmap in words.
    :param device: ``struct kcovdbg_device *`` instead of the kernel.
    """
    if is_unique and not 0 < argument < size - 1:
        return Cause.BITMAP
    ffi, lib = load_native()
    kcov = ffi.new("struct kcovdbg_kcov *")
    if lib.kcovdbg_open(kcov, ffi.NULL if device is None else device, os.fsencode(path), word_size):
        return Cause.UNKNOWN
    try:
        if lib.kcovdbg_init(kcov, size) or lib.kcovdbg_map(kcov, 0):
            return Cause.UNKNOWN
        if _try(ffi, lib, kcov, request, argument) == 0:
            return Cause.INSTANCE
        error = _try(ffi, lib, kcov, lib.kcovdbg_request(b"ENABLE", word_size), 0)
    finally:
        lib.kcovdbg_close(kcov)
    return Cause.MODE if error == 0 else Cause.FILE if error == errno.EINVAL else Cause.UNKNOWN


def _try(ffi: Any, lib: Any, kcov: Any, request: int, argument: int) -> int:
    mode = ffi.new("struct kcovdbg_mode *", {"request": request, "argument": argument, "record_words": 1})
    error = -int(lib.kcovdbg_enable(kcov, mode))
    if not error:
        lib.kcovdbg_disable(kcov)
    return error
