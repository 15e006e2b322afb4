# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests to KCOV: the modes that kcovdbg can collect in, and the meaning of each errno of each
call (kcov-abi.md 4).

User modes 2, 3 and 4 and ioctl 103 mean different things in different series (kcov-abi.md 8.6). The
kernel's debug info tells which of them it has. Without it only mainline's modes are used: a wrong
guess would give records of another format.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Callable, Collection, Sequence
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from kcovdbg.abi.handle import MAX_HANDLES, decode_handle
from kcovdbg.abi.mode import ENABLE, MODES, EnableRequest, Ioctl, Mode
from kcovdbg.abi.record import Codec, make_encoding
from kcovdbg.compiled_module import load_native
from kcovdbg.errors import CollectError, UsageError
from kcovdbg.model.buffer import Buffer
from kcovdbg.series import table
from kcovdbg.target.local_kernel import read_config
from kcovdbg.walk.record_decoder import decode_buffer


class CollectMode(NamedTuple):
    """A mode that can be collected in."""

    name: str
    """The name in side files of traces: ``TRACE_PC``."""
    codec: Codec
    """Format of the records, from the count word on."""
    request: EnableRequest
    user_name: str
    """The name that users type: ``pc``."""

    def prefix_words(self, size: int) -> int:
        """Return how many words of a buffer come before the count word.

        :param size: size of the buffer in words.
        """
        if self.request.prefix_words is None:
            return 0
        return self.request.prefix_words(size)

    @property
    def second(self) -> CollectMode | None:
        """Mode in which the second buffer is read; None if there is no second buffer."""
        second = self.request.second
        if second is None:
            return None
        return self._replace(name=second.name, codec=second.codec)

    def decode(
        self, name: str, data: bytes, size: int, pid: int | None = None, comm: str | None = None
    ) -> Buffer:
        """Return a buffer.

        :param data: copy of its content, from the count word on.
        :param size: size of the buffer in words.
        """
        word_size = kernel_word_size()
        encoding = make_encoding(self.codec, word_size)
        return decode_buffer(
            name, data, encoding, size=size, word_size=word_size, mode=self.name, pid=pid, comm=comm
        )


def _collectable(modes: Collection[Mode]) -> list[CollectMode]:
    return [
        CollectMode(mode.name, mode.codec, mode.request, mode.user_name)
        for mode in modes
        if mode.request is not None
    ]


def mode_names() -> tuple[str, ...]:
    """Return the names of all modes, as users write them: ``pc``."""
    return tuple(dict.fromkeys(mode.user_name for mode in _collectable(table.modes())))


def plain_mode_name(name: str) -> str:
    """Return a mode's name in capitals, without its prefixes: ``CMP`` for ``trace-cmp``."""
    plain = name.upper().replace("-", "_").replace("|", "_")
    for prefix in ("KCOV_", "MODE_", "TRACE_"):
        plain = plain.removeprefix(prefix)
    return plain


def find_mode(name: str, features: Collection[str] | None = None) -> CollectMode:
    """Return the mode with this name.

    :param name: ``pc``, ``TRACE_PC`` and ``KCOV_TRACE_PC`` are the same.
    :param features: features of the running kernel; None if they are not known.
    :raises UsageError: if there is none, or this kernel does not have it.
    """
    plain = plain_mode_name(name)
    every = _collectable(table.modes())
    found = [mode for mode in every if mode.name.removeprefix("TRACE_") == plain]
    if not found:
        raise UsageError(f"unknown mode '{name}'", hint=f"modes are {', '.join(mode_names())}")
    if features is None:
        # The kernel itself refuses comparisons if they were not compiled in.
        if found[0] in _collectable(MODES):
            return found[0]
        raise UsageError(
            f"cannot collect in mode '{name}': without its debug info it is unknown whether "
            f"the kernel has it",
            hint="the mode's number means something else on other kernels; give the kernel's "
            "vmlinux: -s VMLINUX",
        )
    if any(series.word_size is not None for series in table.series_of(features)):
        raise UsageError(
            "cannot collect: words of this kernel's buffers have another size",
            hint="use a kernel with merged KCOV, v4.6 or later",
        )
    offered = [mode for mode in every if mode.request.feature in (None, *features)]
    for mode in offered:
        if mode in found:
            return mode
    raise UsageError(
        f"this kernel has no mode '{name}', which comes with {found[-1].request.since}",
        hint=f"it has {', '.join(dict.fromkeys(mode.user_name for mode in offered))}",
    )


def find_remote_mode(mode: CollectMode) -> CollectMode:
    """Return the mode of a task's remote sections, which have mainline's modes only."""
    if mode.request.device is not None:
        return mode
    mainline = {known.name: known for known in _collectable(MODES)}
    return mainline.get(mode.name) or find_mode("pc")


DEVICE: Final = "/sys/kernel/debug/kcov"
"""KCOV's file, where debugfs is usually mounted."""


def device_path(mode: CollectMode) -> str:
    """Return the path of the device's file for a mode."""
    device = mode.request.device
    if device is None:
        return DEVICE
    return str(Path(DEVICE).with_name(device.file))


DEFAULT_SIZE: Final = 1 << 19
"""Default size of a buffer in words; syzkaller's for a thread (its kCoverSize)."""

# KCOV's buffers hold words of the kernel. On these machines a 32-bit program may run on a 64-bit
# kernel.
_MACHINES_64: Final = frozenset(
    {
        "x86_64",
        "aarch64",
        "aarch64_be",
        "riscv64",
        "s390x",
        "ppc64",
        "ppc64le",
        "loongarch64",
        "mips64",
    }
)


def kernel_word_size() -> int:
    """Return the size of the running kernel's ``unsigned long`` in bytes."""
    machine = platform.machine()
    if machine not in _MACHINES_64 and os.sysconf("SC_LONG_BIT") == 32:
        return 4
    return 8


def request_number(ioctl: Ioctl) -> int:
    """Return the number of a request on this architecture."""
    _, lib = load_native()
    direction = ioctl.direction.encode() or b"\0"
    return int(lib.kcovdbg_request(ioctl.letter.encode(), direction, ioctl.number, ioctl.size))


def make_native_mode(mode: CollectMode, size: int) -> Any:
    """Return a new ``struct kcovdbg_mode *`` for a mode and a buffer size in words of the
    kernel.
    """
    ffi, _ = load_native()
    native = ffi.new("struct kcovdbg_mode *")
    native.request = request_number(mode.request.ioctl)
    native.count_at = mode.prefix_words(size)
    native.argument = native.count_at or mode.request.argument
    native.record_words = mode.codec.record_words
    native.second = mode.second is not None
    device = mode.request.device
    if device is not None:
        for name in ("init", "disable", "remote_enable", "remote_disable"):
            setattr(native.requests, name, request_number(getattr(device, name)))
    return native


class EnableRefusal(Enum):
    """Reasons for EINVAL from KCOV_ENABLE."""

    MODE = "mode"
    """The kernel only knows the mode PC."""
    PREFIX = "prefix"
    """The buffer's prefix leaves no room for records, or is empty."""
    OBJECT = "object"
    """A fresh object accepts the mode: this one was already enabled, by a task that has its file.
    """
    FILE = "file"
    """Not even PC can be enabled on a fresh object."""
    UNKNOWN = "unknown"


def find_refusal(path: str, mode: Any, size: int, device: Any) -> EnableRefusal:
    """Return why a request to enable was refused with EINVAL.

    The calling thread must not be collecting. It may be enabled for a moment.

    :param path: path of KCOV's file.
    :param mode: ``struct kcovdbg_mode *``.
    :param size: size of the buffer in words of the kernel.
    :param device: ``struct kcovdbg_device *`` to use instead of the kernel, or NULL.
    """
    # In such a mode, the argument is the number of words before the count word.
    if mode.count_at and not 0 < mode.argument < size - 1:
        return EnableRefusal.PREFIX
    ffi, lib = load_native()
    kcov = ffi.new("struct kcovdbg_kcov *")
    if lib.kcovdbg_open(kcov, device, os.fsencode(path), kernel_word_size()):
        return EnableRefusal.UNKNOWN
    try:
        if lib.kcovdbg_init(kcov, size) or lib.kcovdbg_map(kcov, 0):
            return EnableRefusal.UNKNOWN
        if _try_enable(ffi, lib, kcov, mode.request, mode.argument) == 0:
            return EnableRefusal.OBJECT
        error = _try_enable(ffi, lib, kcov, request_number(ENABLE), 0)
    finally:
        lib.kcovdbg_close(kcov)
    if error == 0:
        return EnableRefusal.MODE
    if error == errno.EINVAL:
        return EnableRefusal.FILE
    return EnableRefusal.UNKNOWN


def _try_enable(ffi: Any, lib: Any, kcov: Any, request: int, argument: int) -> int:
    mode = ffi.new(
        "struct kcovdbg_mode *", {"request": request, "argument": argument, "record_words": 1}
    )
    error = -int(lib.kcovdbg_enable(kcov, mode))
    if not error:
        lib.kcovdbg_disable(kcov)
    return error


FindHolder: TypeAlias = Callable[[int], "str | None"]
"""Returns who holds a remote handle; None if nobody is found."""

ENOTSUPP: Final = 524
"""The kernel's internal errno for "not supported", which libc does not know; EOPNOTSUPP is 95."""


class Step(IntEnum):
    """The call that failed. Up to MEMORY, ``enum kcovdbg_step``."""

    OPEN = 0
    INIT = 1
    MAP = 2
    ENABLE = 3
    REMOTE_ENABLE = 4
    FORK = 5
    SEIZE = 6
    EXEC = 7
    PASS = 8
    MEMORY = 9
    DISABLE = 100
    RESET = 101


_CALL_NAMES: Final = {
    Step.OPEN: "open",
    Step.INIT: "KCOV_INIT_TRACE",
    Step.MAP: "mmap",
    Step.ENABLE: "KCOV_ENABLE",
    Step.REMOTE_ENABLE: "KCOV_REMOTE_ENABLE",
    Step.FORK: "fork",
    Step.SEIZE: "ptrace",
    Step.EXEC: "execve",
    Step.PASS: "passing KCOV to a new task",
    Step.MEMORY: "malloc",
    Step.DISABLE: "KCOV_DISABLE",
    Step.RESET: "reset by the kernel",
}


_BUILD: Final = (
    "KCOV needs CONFIG_KCOV=y, and CONFIG_KCOV_INSTRUMENT_ALL=y to cover the whole kernel"
)
_SMALLER: Final = "ask for a smaller buffer with --buffer-size; each task has one"
_SMALLEST: Final = "ask for a larger buffer with --buffer-size"
_COMPARISONS: Final = "comparisons need CONFIG_KCOV_ENABLE_COMPARISONS=y"
_NO_DEVICE: Final = "{path} not found: this kernel was built without KCOV"

# The message and the hint for an errno of a call.
_EXPLANATIONS: Final[dict[tuple[int, int], tuple[str, str]]] = {
    (Step.OPEN, errno.EACCES): (
        "{path}: permission denied",
        "only root can open it: sudo kcovdbg collect …",
    ),
    (Step.OPEN, errno.EPERM): (
        "{path}: not permitted, even for root: the kernel is locked down",
        "see /sys/kernel/security/lockdown; boot without Secure Boot, or with lockdown=none",
    ),
    (Step.OPEN, errno.EMFILE): (
        "too many open files in this process",
        "raise the limit: ulimit -n 65536",
    ),
    (Step.INIT, errno.EINVAL): (
        "buffer size {size}: out of range",
        "2 to 268435455 words (INT_MAX / 8) on a 64-bit kernel",
    ),
    (Step.INIT, errno.ENOMEM): ("the kernel has no memory for a buffer of {size} words", _SMALLER),
    (Step.INIT, errno.ENOTTY): (
        "KCOV_INIT_TRACE: ENOTTY: unknown to {path}",
        "the request number holds the kernel's word size: is this a 32-bit program on a 64-bit "
        "kernel, or another file?",
    ),
    (Step.MAP, errno.EINVAL): (
        "the buffer of {size} words cannot be mapped",
        "its size must be whole pages: a multiple of 512 words of 8 bytes; before v5.18 it "
        "cannot be mapped while enabled",
    ),
    (Step.MAP, errno.ENOMEM): ("no memory to map a buffer of {size} words", _SMALLER),
    (Step.ENABLE, errno.EBUSY): (
        "KCOV_ENABLE: EBUSY: this task collects already, with another object",
        "a task can use one object; kcovdbg tasks shows whether another tool enabled it",
    ),
    (Step.ENABLE, errno.EINVAL): (
        "KCOV_ENABLE: EINVAL: unknown mode, or the object is used by another task or has no buffer",
        "kcovdbg objects shows who uses it, kcovdbg info what this kernel supports",
    ),
    (Step.ENABLE, ENOTSUPP): (
        "KCOV_ENABLE: ENOTSUPP (524): this kernel was built without that mode",
        _COMPARISONS,
    ),
    (Step.ENABLE, errno.ENOTTY): (
        "request to enable: ENOTTY: unknown to this kernel",
        "kcovdbg info shows what this kernel supports",
    ),
    (Step.RESET, errno.ENOTTY): (
        "reset by the kernel: ENOTTY: this kernel does not have the request",
        "reset() without by_kernel also discards what was collected",
    ),
    (Step.RESET, errno.EINVAL): (
        "reset by the kernel: EINVAL: this thread does not collect with this object",
        "reset it in the thread that enabled it",
    ),
    (Step.DISABLE, errno.EINVAL): (
        "KCOV_DISABLE: EINVAL: this thread does not collect with this object",
        "disable it in the thread that enabled it, or let that thread exit",
    ),
    (Step.REMOTE_ENABLE, errno.EBUSY): (
        "KCOV_REMOTE_ENABLE: EBUSY: this thread collects already",
        "up to v7.1 a task has either its own coverage or a remote one: use another thread",
    ),
    (Step.REMOTE_ENABLE, errno.ENOTTY): (
        "this kernel has no remote coverage",
        "remote coverage needs v5.5",
    ),
    (Step.REMOTE_ENABLE, ENOTSUPP): (
        "KCOV_REMOTE_ENABLE: ENOTSUPP (524): this kernel was built without comparisons",
        _COMPARISONS,
    ),
    (Step.SEIZE, errno.EPERM): (
        "the command cannot be followed: ptrace is not permitted",
        "see sysctl kernel.yama.ptrace_scope (3 forbids it), and whether a seccomp filter is "
        "in force",
    ),
    (Step.FORK, errno.EAGAIN): (
        "no further process can be created",
        "limits are ulimit -u and pids.max of the cgroup",
    ),
}

_REFUSALS: Final[dict[EnableRefusal, tuple[str, str]]] = {
    EnableRefusal.MODE: (
        "KCOV_ENABLE: EINVAL: this kernel only knows mode PC, not {mode}",
        "comparisons need v4.15, other modes a posted series; kcovdbg info shows what this "
        "kernel supports",
    ),
    EnableRefusal.PREFIX: (
        "request to enable: EINVAL: a buffer of {size} words has no room for records",
        _SMALLEST,
    ),
    EnableRefusal.OBJECT: (
        "KCOV_ENABLE: EINVAL: this object collects already, for another task that has its "
        "descriptor, such as a child",
        "kcovdbg objects shows which task; each task needs an object of its own",
    ),
    EnableRefusal.FILE: (
        "KCOV_ENABLE: EINVAL: {path} refuses mode PC on a fresh object as well",
        "kcovdbg info shows which KCOV this kernel has; a posted series may need other calls",
    ),
}
"""The texts for an EINVAL from KCOV_ENABLE whose reason is known."""

_NOT_FOLLOWED: Final = {
    errno.EOPNOTSUPP: "32-bit code, or a machine other than x86-64 and arm64",
    errno.ENOSYS: "the kernel has no pidfd_getfd(), which needs v5.6",
    errno.EPERM: "forbidden by a security module or a seccomp filter",
    errno.EACCES: "forbidden by a security module or a seccomp filter",
    errno.ESRCH: "it exited before its first instruction",
}
"""Why KCOV could not be passed to a task."""


def explain_errno(
    step: int,
    number: int,
    *,
    path: str = DEVICE,
    size: int = 0,
    handles: Sequence[int] = (),
    find_holder: FindHolder | None = None,
    command: str = "",
    refusal: EnableRefusal | None = None,
    mode: CollectMode | None = None,
) -> CollectError:
    """Return the error for a failed call.

    :param step: the call, a :class:`Step`.
    :param number: errno, positive.
    :param path: path of KCOV's file.
    :param size: size of the buffer in words.
    :param handles: remote handles that were requested.
    :param find_holder: returns who holds a remote handle; None if the kernel cannot be inspected.
    :param command: command that was to be run.
    :param refusal: reason for EINVAL from KCOV_ENABLE; None if unknown.
    :param mode: mode that was to be enabled.
    """
    if (step, number) in ((Step.OPEN, errno.ENOENT), (Step.OPEN, errno.ENOTDIR)):
        return _explain_missing_device(path)
    if (step, number) == (Step.REMOTE_ENABLE, errno.EEXIST):
        return _explain_taken_handle(handles, find_holder)
    if (step, number) == (Step.REMOTE_ENABLE, errno.EINVAL):
        return _explain_bad_handle(handles)
    if step == Step.EXEC:
        if number == errno.ENOENT:
            return CollectError(f"{command}: command not found", status=127)
        return CollectError(f"{command}: {os.strerror(number)}", status=126)
    found = _EXPLANATIONS.get((step, number))
    reason: int | str = number
    if refusal is not None:
        found = _REFUSALS.get(refusal, found)
        reason = refusal.value
    mode_name = ""
    if mode is not None:
        found = mode.request.errors.get((Step(step).name, reason), found)
        mode_name = mode.name
    if found is None:
        text = f"{errno.errorcode.get(number, number)} ({os.strerror(number)})"
        if number == ENOTSUPP:
            text = "ENOTSUPP (operation not supported by the kernel)"
        return CollectError(
            f"{_CALL_NAMES[Step(step)]}: {text}", hint="kcovdbg doctor checks what collecting needs"
        )
    named = {"path": path, "size": size, "mode": mode_name}
    message, hint = (text.format_map(named) for text in found)
    return CollectError(message, hint=hint)


def explain_not_followed(step: int, number: int) -> str:
    """Return in a few words why a task's coverage was not collected.

    :param number: errno, positive.
    """
    if step == Step.PASS and number in _NOT_FOLLOWED:
        return _NOT_FOLLOWED[number]
    return str(explain_errno(step, number))


def _explain_missing_device(path: str) -> CollectError:
    folder = Path(path).parent
    missing = _NO_DEVICE.format(path=path)
    config = read_config()
    if config is not None and config.get("CONFIG_KCOV") != "y":
        return CollectError(f"{missing} (CONFIG_KCOV is not set)", hint=_BUILD)
    if not folder.is_dir() or not os.path.ismount(folder):
        return CollectError(
            f"{path} not found: debugfs is not mounted", hint=f"mount -t debugfs none {folder}"
        )
    return CollectError(missing, hint=_BUILD)


def _explain_taken_handle(handles: Sequence[int], find_holder: FindHolder | None) -> CollectError:
    for handle in handles:
        name = f"handle {decode_handle(handle)}"
        if list(handles).count(handle) > 1:
            return CollectError(f"{name}: given twice", hint="give each handle once")
        holder = find_holder and find_holder(handle)
        if holder is not None:
            return CollectError(f"{name}: {holder}", hint="kcovdbg remote lists all handles")
    which = "handle"
    if len(handles) > 1:
        which = "one of the handles"
    return CollectError(
        f"{which} {_name_handles(handles)}: already registered (EEXIST)",
        hint="kcovdbg remote shows who holds it, on a kernel with debug info",
    )


def _explain_bad_handle(handles: Sequence[int]) -> CollectError:
    if len(handles) > MAX_HANDLES:
        return CollectError(
            f"{len(handles)} handles: too many", hint=f"the kernel accepts {MAX_HANDLES}"
        )
    for handle in handles:
        if decode_handle(handle).reserved:
            return CollectError(
                f"handle {handle:#x}: bits 32 to 55 must be zero", hint="usb:1, common:0x42"
            )
        if not handle:
            return CollectError(
                "handle common:0: the instance must not be zero",
                hint="common:auto finds a free one",
            )
    return CollectError(
        f"KCOV_REMOTE_ENABLE: EINVAL: unknown to this kernel: {_name_handles(handles)}",
        hint="it accepts one common handle and handles of USB buses",
    )


def _name_handles(handles: Sequence[int]) -> str:
    return ", ".join(str(decode_handle(handle)) for handle in handles)
