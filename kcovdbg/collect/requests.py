# SPDX-License-Identifier: LGPL-2.1-or-later
"""Modes that kcovdbg can collect in.

User modes 2, 3 and 4 and ioctl 103 mean different things in different series (kcov-abi.md 8.6). The kernel's debug info tells
which of them it has. Without it only mainline's modes are used: a wrong guess would give records of another format.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.abi.mode import MODES, EnableRequest, Ioctl, Mode
from kcovdbg.abi.record import Codec
from kcovdbg.compiled_module import load_native
from kcovdbg.errors import UsageError
from kcovdbg.series import table


class CollectMode(NamedTuple):
    """A mode that can be collected in."""

    name: str
    """As side files of traces have it: ``TRACE_PC``."""
    codec: Codec
    """Format of the records, from the count word on."""
    request: EnableRequest

    def prefix_words(self, size: int) -> int:
        """Return how many words of a buffer come before the count word.

        :param size: of the buffer, in words.
        """
        return 0 if self.request.prefix_words is None else self.request.prefix_words(size)

    def argument(self, size: int) -> int:
        """Return the argument of the request that enables it.

        :param size: of the buffer, in words.
        """
        return self.prefix_words(size) or self.request.argument

    @property
    def second(self) -> CollectMode | None:
        """Mode in which the second buffer is read, None if there is none."""
        return (
            None
            if self.request.second is None
            else self._replace(name=self.request.second.name, codec=self.request.second.codec)
        )


def _collectable(modes: Collection[Mode]) -> list[tuple[Mode, EnableRequest]]:
    return [(mode, mode.request) for mode in modes if mode.request is not None]


def mode_names() -> tuple[str, ...]:
    """Return the names of all modes, as users write them: ``pc``."""
    return tuple(dict.fromkeys(mode.user_name for mode, _ in _collectable(table.modes())))


def find_mode(name: str, features: Collection[str] | None = None) -> CollectMode:
    """Return the mode with this name.

    :param name: ``pc``, ``TRACE_PC`` and ``KCOV_TRACE_PC`` are the same.
    :param features: features of the running kernel; None if they are not known.
    :raises UsageError: if there is none, or this kernel does not have it.
    """
    plain = name.upper().replace("-", "_").replace("|", "_").removeprefix("KCOV_").removeprefix("MODE_").removeprefix("TRACE_")
    found = [(mode, request) for mode, request in _collectable(table.modes()) if mode.name.removeprefix("TRACE_") == plain]
    if not found:
        raise UsageError(f"unknown mode '{name}'", hint=f"modes are {', '.join(mode_names())}")
    if features is None:
        # Whether comparisons were compiled in, the kernel says itself.
        if found[0][0] in MODES:
            return _collect(*found[0])
        raise UsageError(
            f"cannot collect in mode '{name}': without its debug info it is unknown whether the kernel has it",
            hint="the mode's number means something else on other kernels; give the kernel's vmlinux: -s VMLINUX",
        )
    if table.traits_of(features).has_own_words:
        raise UsageError(
            "cannot collect: words of this kernel's buffers have another size",
            hint="use a kernel with merged KCOV, v4.6 or later",
        )
    for mode, request in found:
        if request.feature is None or request.feature in features:
            return _collect(mode, request)
    has = dict.fromkeys(
        mode.user_name
        for mode, request in _collectable(table.modes())
        if request.feature is None or request.feature in features
    )
    raise UsageError(
        f"this kernel has no mode '{name}', which comes with {found[-1][1].since}", hint=f"it has {', '.join(has)}"
    )


def find_remote_mode(mode: CollectMode) -> CollectMode:
    """Return the mode in which remote sections collect for a task in some mode: KCOV's only know mainline's."""
    if mode.request.device is not None:
        return mode
    known = next(((known, request) for known, request in _collectable(MODES) if known.name == mode.name), None)
    return find_mode("pc") if known is None else _collect(*known)


def _collect(mode: Mode, request: EnableRequest) -> CollectMode:
    return CollectMode(mode.name, mode.codec, request)


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
