# SPDX-License-Identifier: LGPL-2.1-or-later
"""The meaning of each errno of each call to KCOV, and what to do about it (kcov-abi.md 4)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from kcovdbg.abi.handle import MAX_HANDLES, decode_handle
from kcovdbg.abi.mode import ENABLE
from kcovdbg.collect.requests import DEVICE, CollectMode, request_number
from kcovdbg.compiled_module import load_native
from kcovdbg.errors import CollectError
from kcovdbg.target.local_kernel import read_config


class EnableRefusal(Enum):
    """Reasons for EINVAL from KCOV_ENABLE."""

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


FindHolder: TypeAlias = Callable[[int], "str | None"]
"""Says who holds a remote handle; None where nobody is found."""

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


def name_errno(number: int) -> str:
    """Return the name of an errno: ``EBUSY``, or ``ENOTSUPP`` for 524."""
    return "ENOTSUPP" if number == ENOTSUPP else errno.errorcode.get(number, str(number))


class Explanation(NamedTuple):
    """Meaning of an errno; both texts may hold ``{path}``, ``{size}`` and ``{mode}``."""

    message: str
    hint: str


_BUILD: Final = "KCOV needs CONFIG_KCOV=y, and CONFIG_KCOV_INSTRUMENT_ALL=y to cover the whole kernel"
_SMALLER: Final = "ask for a smaller buffer with --buffer-size; each task has one"
_SMALLEST: Final = "ask for a larger buffer with --buffer-size"
_COMPARISONS: Final = "comparisons need CONFIG_KCOV_ENABLE_COMPARISONS=y"
_NO_DEVICE: Final = "{path} not found: this kernel was built without KCOV"

_EXPLANATIONS: Final[dict[tuple[int, int], Explanation]] = {
    (Step.OPEN, errno.EACCES): Explanation("{path}: permission denied", "only root can open it: sudo kcovdbg collect …"),
    (Step.OPEN, errno.EPERM): Explanation(
        "{path}: not permitted, even for root: the kernel is locked down",
        "see /sys/kernel/security/lockdown; boot without Secure Boot, or with lockdown=none",
    ),
    (Step.OPEN, errno.ENOMEM): Explanation("{path}: the kernel has no memory for another object", "free some memory"),
    (Step.OPEN, errno.EMFILE): Explanation("too many open files in this process", "raise the limit: ulimit -n 65536"),
    (Step.OPEN, errno.ENFILE): Explanation("too many open files in the system", "see the limit: sysctl fs.file-max"),
    (Step.INIT, errno.EBUSY): Explanation(
        "KCOV_INIT_TRACE: EBUSY: this descriptor has a buffer already",
        "a buffer cannot be resized; open {path} again for another one",
    ),
    (Step.INIT, errno.EINVAL): Explanation(
        "buffer size {size}: out of range", "2 to 268435455 words (INT_MAX / 8) on a 64-bit kernel"
    ),
    (Step.INIT, errno.ENOMEM): Explanation("the kernel has no memory for a buffer of {size} words", _SMALLER),
    (Step.INIT, errno.ENOTTY): Explanation(
        "KCOV_INIT_TRACE: ENOTTY: unknown to {path}",
        "the request number holds the kernel's word size: is this a 32-bit program on a 64-bit kernel, or another file?",
    ),
    (Step.MAP, errno.EINVAL): Explanation(
        "the buffer of {size} words cannot be mapped",
        "its size must be whole pages: a multiple of 512 words of 8 bytes; before v5.18 it cannot be mapped while enabled",
    ),
    (Step.MAP, errno.ENOMEM): Explanation("no memory to map a buffer of {size} words", _SMALLER),
    (Step.ENABLE, errno.EBUSY): Explanation(
        "KCOV_ENABLE: EBUSY: this task collects already, with another object",
        "a task can use one object; kcovdbg tasks shows whether another tool enabled it",
    ),
    (Step.ENABLE, errno.EINVAL): Explanation(
        "KCOV_ENABLE: EINVAL: unknown mode, or the object is used by another task or has no buffer",
        "kcovdbg objects shows who uses it, kcovdbg info what this kernel supports",
    ),
    (Step.ENABLE, ENOTSUPP): Explanation("KCOV_ENABLE: ENOTSUPP (524): this kernel was built without that mode", _COMPARISONS),
    (Step.ENABLE, errno.EOPNOTSUPP): Explanation(
        "KCOV_ENABLE: EOPNOTSUPP: this kernel was built without that mode", _COMPARISONS
    ),
    (Step.ENABLE, errno.ENOTTY): Explanation(
        "request to enable: ENOTTY: unknown to this kernel", "kcovdbg info shows what this kernel supports"
    ),
    (Step.RESET, errno.ENOTTY): Explanation(
        "reset by the kernel: ENOTTY: this kernel does not have the request",
        "reset() without by_kernel also discards what was collected",
    ),
    (Step.RESET, errno.EINVAL): Explanation(
        "reset by the kernel: EINVAL: this thread does not collect with this object", "reset it in the thread that enabled it"
    ),
    (Step.DISABLE, errno.EINVAL): Explanation(
        "KCOV_DISABLE: EINVAL: this thread does not collect with this object",
        "disable it in the thread that enabled it, or let that thread exit",
    ),
    (Step.REMOTE_ENABLE, errno.EBUSY): Explanation(
        "KCOV_REMOTE_ENABLE: EBUSY: this thread collects already",
        "up to v7.1 a task has either its own coverage or a remote one: use another thread",
    ),
    (Step.REMOTE_ENABLE, errno.ENOTTY): Explanation("this kernel has no remote coverage", "remote coverage needs v5.5"),
    (Step.REMOTE_ENABLE, ENOTSUPP): Explanation(
        "KCOV_REMOTE_ENABLE: ENOTSUPP (524): this kernel was built without comparisons", _COMPARISONS
    ),
    (Step.REMOTE_ENABLE, errno.ENOMEM): Explanation("the kernel has no memory for the handles", "free some memory"),
    (Step.SEIZE, errno.EPERM): Explanation(
        "the command cannot be followed: ptrace is not permitted",
        "see sysctl kernel.yama.ptrace_scope (3 forbids it), and whether a seccomp filter is in force",
    ),
    (Step.FORK, errno.EAGAIN): Explanation(
        "no further process can be created", "limits are ulimit -u and pids.max of the cgroup"
    ),
}

_REFUSALS: Final[dict[EnableRefusal, Explanation]] = {
    EnableRefusal.MODE: Explanation(
        "KCOV_ENABLE: EINVAL: this kernel only knows mode PC, not {mode}",
        "comparisons need v4.15, other modes a posted series; kcovdbg info shows what this kernel supports",
    ),
    EnableRefusal.PREFIX: Explanation("request to enable: EINVAL: a buffer of {size} words has no room for records", _SMALLEST),
    EnableRefusal.OBJECT: Explanation(
        "KCOV_ENABLE: EINVAL: this object collects already, for another task that has its descriptor, such as a child",
        "kcovdbg objects shows which task; each task needs an object of its own",
    ),
    EnableRefusal.FILE: Explanation(
        "KCOV_ENABLE: EINVAL: {path} refuses mode PC on a fresh object as well",
        "kcovdbg info shows which KCOV this kernel has; a posted series may need other calls",
    ),
}
"""For EINVAL from KCOV_ENABLE, where the reason was found out."""

_NOT_FOLLOWED: Final = {
    errno.EOPNOTSUPP: "32-bit code, or a machine other than x86-64 and arm64",
    errno.ENOSYS: "the kernel has no pidfd_getfd(), which needs v5.6",
    errno.EPERM: "forbidden by a security module or a seccomp filter",
    errno.EACCES: "forbidden by a security module or a seccomp filter",
    errno.ESRCH: "it exited before its first instruction",
}
"""Why KCOV could not be passed to a task."""


def explain(
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
    :param find_holder: says who holds a remote handle; None where the kernel cannot be inspected.
    :param command: command that was to be run.
    :param refusal: reason for EINVAL from KCOV_ENABLE, where it was found out.
    :param mode: mode that was to be enabled.
    """
    if (step, number) in ((Step.OPEN, errno.ENOENT), (Step.OPEN, errno.ENOTDIR)):
        return _explain_missing_device(path)
    if (step, number) == (Step.REMOTE_ENABLE, errno.EEXIST):
        return _explain_taken_handle(handles, find_holder)
    if (step, number) == (Step.REMOTE_ENABLE, errno.EINVAL):
        return _explain_bad_handle(handles)
    if step == Step.EXEC:
        is_missing = number == errno.ENOENT
        problem = "command not found" if is_missing else os.strerror(number)
        return CollectError(f"{command}: {problem}", status=127 if is_missing else 126)
    found = None
    if mode is not None:
        found = mode.request.errors.get((Step(step).name, number if refusal is None else refusal.value))
    found = found or (_REFUSALS.get(refusal) if refusal is not None else None) or _EXPLANATIONS.get((step, number))
    if found is None:
        text = "operation not supported by the kernel" if number == ENOTSUPP else os.strerror(number)
        message = f"{_CALL_NAMES.get(Step(step), step)}: {name_errno(number)} ({text})"
        return CollectError(message, hint="kcovdbg doctor checks what collecting needs")
    message, hint = (text.format(path=path, size=size, mode="" if mode is None else mode.name) for text in found)
    return CollectError(message, hint=hint)


def explain_not_followed(step: int, number: int) -> str:
    """Return in a few words why a task's coverage was not collected.

    :param number: errno, positive.
    """
    if step == Step.PASS and number in _NOT_FOLLOWED:
        return _NOT_FOLLOWED[number]
    return str(explain(step, number))


def _explain_missing_device(path: str) -> CollectError:
    folder = Path(path).parent
    missing = _NO_DEVICE.format(path=path)
    config = read_config()
    if config is not None and config.get("CONFIG_KCOV") != "y":
        return CollectError(f"{missing} (CONFIG_KCOV is not set)", hint=_BUILD)
    if not folder.is_dir() or not os.path.ismount(folder):
        return CollectError(f"{path} not found: debugfs is not mounted", hint=f"mount -t debugfs none {folder}")
    return CollectError(missing, hint=_BUILD)


def _explain_taken_handle(handles: Sequence[int], find_holder: FindHolder | None) -> CollectError:
    twice = next((handle for handle in handles if list(handles).count(handle) > 1), None)
    if twice is not None:
        return CollectError(f"handle {decode_handle(twice)}: given twice", hint="give each handle once")
    for handle in handles:
        holder = find_holder(handle) if find_holder is not None else None
        if holder is not None:
            return CollectError(f"handle {decode_handle(handle)}: {holder}", hint="kcovdbg remote lists all handles")
    which = "handle" if len(handles) == 1 else "one of the handles"
    return CollectError(
        f"{which} {_name_handles(handles)}: already registered (EEXIST)",
        hint="kcovdbg remote shows who holds it, on a kernel with debug info",
    )


def _explain_bad_handle(handles: Sequence[int]) -> CollectError:
    if len(handles) > MAX_HANDLES:
        return CollectError(f"{len(handles)} handles: too many", hint=f"the kernel accepts {MAX_HANDLES}")
    for handle in handles:
        if decode_handle(handle).reserved:
            return CollectError(f"handle {handle:#x}: bits 32 to 55 must be zero", hint="usb:1, common:0x42")
        if not handle:
            return CollectError("handle common:0: the instance must not be zero", hint="common:auto finds a free one")
    return CollectError(
        f"KCOV_REMOTE_ENABLE: EINVAL: unknown to this kernel: {_name_handles(handles)}",
        hint="it accepts one common handle and handles of USB buses",
    )


def _name_handles(handles: Sequence[int]) -> str:
    return ", ".join(str(decode_handle(handle)) for handle in handles)
