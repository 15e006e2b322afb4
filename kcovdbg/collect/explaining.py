# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why a call of KCOV's failed: for each errno of each call, what it means and what to do (kcov-abi.md 4)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

from kcovdbg.abi.handle import MAX_HANDLES, decode_handle
from kcovdbg.collect.diagnosing import Cause
from kcovdbg.collect.machine import read_config
from kcovdbg.errors import CollectError

ENOTSUPP: Final = 524
"""The kernel's own errno for "not supported"; libc doesn't know it, EOPNOTSUPP is 95."""


class Step(IntEnum):
    """What was being done: ``enum kcovdbg_step``."""

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


_CALLS: Final = {
    Step.OPEN: "open",
    Step.INIT: "KCOV_INIT_TRACE",
    Step.MAP: "mmap",
    Step.ENABLE: "KCOV_ENABLE",
    Step.REMOTE_ENABLE: "KCOV_REMOTE_ENABLE",
    Step.FORK: "fork",
    Step.SEIZE: "ptrace",
    Step.EXEC: "execve",
    Step.PASS: "handing KCOV to a new task",
    Step.MEMORY: "malloc",
    Step.DISABLE: "KCOV_DISABLE",
    Step.RESET: "KCOV_RESET_TRACE",
}


def name_errno(number: int) -> str:
    """Name an errno: ``EBUSY``, and ``ENOTSUPP`` for the kernel's own."""
    return "ENOTSUPP" if number == ENOTSUPP else errno.errorcode.get(number, str(number))


def explain(
    step: int,
    number: int,
    *,
    path: str = "/sys/kernel/debug/kcov",
    size: int = 0,
    handles: Sequence[int] = (),
    find_holder: Callable[[int], str | None] | None = None,
    command: str = "",
    cause: Cause | None = None,
    mode: str = "",
) -> CollectError:
    """Make an error of what a call returned.

    :param step: which call, a :class:`Step`.
    :param number: errno, positive.
    :param path: of KCOV's file.
    :param size: of the buffer, in words.
    :param handles: that were asked for.
    :param find_holder: says who holds a remote handle; None where the kernel can't be inspected.
    :param command: that was to be run.
    :param cause: of EINVAL from KCOV_ENABLE, where somebody looked for it.
    :param mode: that was to be enabled.
    """
    if step == Step.ENABLE and number == errno.EINVAL and cause in _CAUSES:
        message, hint = _CAUSES[cause]
        return CollectError(message.format(path=path, size=size, mode=mode), hint=hint.format(path=path, size=size, mode=mode))
    found = _TABLE.get((step, number))
    if callable(found):
        return found(path=path, size=size, handles=handles, find_holder=find_holder)
    if found is not None:
        return CollectError(found[0].format(path=path, size=size), hint=found[1].format(path=path, size=size))
    if step == Step.EXEC:
        missing = number == errno.ENOENT
        text = "there is no such command" if missing else os.strerror(number)
        return CollectError(f"{command} can't be run: {text}", status=127 if missing else 126)
    message = f"{_CALLS.get(Step(step), step)}: {name_errno(number)} ({_strerror(number)})"
    return CollectError(message, hint="kcovdbg doctor looks at what collecting needs")


def _strerror(number: int) -> str:
    return "operation not supported by the kernel" if number == ENOTSUPP else os.strerror(number)


_BUILD: Final = "it needs CONFIG_KCOV=y, and CONFIG_KCOV_INSTRUMENT_ALL=y for coverage of everything"


def _no_device(path: str, **_: object) -> CollectError:
    folder = Path(path).parent
    config = read_config()
    if config is not None and config.get("CONFIG_KCOV") != "y":
        return CollectError(f"there is no {path}: this kernel was built without KCOV, by its configuration", hint=_BUILD)
    if not folder.is_dir() or not os.path.ismount(folder):
        return CollectError(f"there is no {path}: debugfs isn't mounted", hint=f"mount -t debugfs none {folder}")
    return CollectError(
        f"there is no {path}, and debugfs is mounted: this kernel was built without KCOV",
        hint=_BUILD,
    )


def _handle_taken(handles: Sequence[int], find_holder: Callable[[int], str | None] | None = None, **_: object) -> CollectError:
    if len(set(handles)) < len(handles):
        twice = next(handle for handle in handles if list(handles).count(handle) > 1)
        return CollectError(f"the handle {decode_handle(twice)} is given twice", hint="give each once")
    for handle in handles:
        holder = find_holder(handle) if find_holder is not None else None
        if holder is not None:
            return CollectError(f"the handle {decode_handle(handle)} is taken: {holder}", hint="see: kcovdbg remote")
    names = ", ".join(str(decode_handle(handle)) for handle in handles)
    which = "the handle" if len(handles) == 1 else "one of the handles"
    return CollectError(
        f"{which} {names} is taken: EEXIST", hint="kcovdbg remote tells who holds it, on a kernel with debug info"
    )


def _bad_remote(handles: Sequence[int], **_: object) -> CollectError:
    if len(handles) > MAX_HANDLES:
        return CollectError(f"{len(handles)} handles are too many", hint=f"the kernel takes {MAX_HANDLES}")
    for handle in handles:
        decoded = decode_handle(handle)
        if decoded.reserved:
            return CollectError(f"{handle:#x} is no handle: bits 32 to 55 must be zero", hint="usb:1, common:0x42")
        if not handle:
            return CollectError("common:0 is no handle: its instance must not be zero", hint="common:auto finds a free one")
    names = ", ".join(str(decode_handle(handle)) for handle in handles)
    return CollectError(
        f"KCOV_REMOTE_ENABLE: EINVAL: the kernel doesn't know such handles: {names}",
        hint="beside one common handle it takes handles of USB buses only",
    )


_EXPLANATION = tuple[str, str]
_CAUSES: Final[dict[Cause | None, _EXPLANATION]] = {
    Cause.MODE: (
        "KCOV_ENABLE: EINVAL: this kernel doesn't know the mode {mode}, only PC",
        "comparisons came with v4.15, other modes are in kernels with posted series: kcovdbg info tells what this one has",
    ),
    Cause.BITMAP: (
        "KCOV_UNIQUE_ENABLE: EINVAL: a buffer of {size} words has no room for a bitmap and records",
        "ask for a larger one: --buffer-size",
    ),
    Cause.INSTANCE: (
        "KCOV_ENABLE: EINVAL: this instance collects already, for another task that has its descriptor, such as a child",
        "kcovdbg objects tells for which; each task needs an instance of its own",
    ),
    Cause.FILE: (
        "KCOV_ENABLE: EINVAL: {path} refuses to collect PCs too, on an instance of its own",
        "kcovdbg info tells which KCOV this kernel has: one with KCOV_INIT_UNIQUE knows other calls",
    ),
}
_TABLE: Final[dict[tuple[int, int], _EXPLANATION | Callable[..., CollectError]]] = {
    (Step.OPEN, errno.ENOENT): _no_device,
    (Step.OPEN, errno.ENOTDIR): _no_device,
    (Step.OPEN, errno.EACCES): ("{path} may not be opened", "only root may: sudo kcovdbg collect …"),
    (Step.OPEN, errno.EPERM): (
        "{path} may not be opened, not even by root: the kernel is locked down",
        "cat /sys/kernel/security/lockdown; boot without Secure Boot, or with lockdown=none",
    ),
    (Step.OPEN, errno.ENOMEM): ("{path}: the kernel has no memory for another KCOV instance", "free some memory"),
    (Step.OPEN, errno.EMFILE): ("no descriptor is left", "raise the limit: ulimit -n 65536"),
    (Step.OPEN, errno.ENFILE): ("the system has no descriptor left", "sysctl fs.file-max tells the limit"),
    (Step.INIT, errno.EBUSY): (
        "KCOV_INIT_TRACE: EBUSY: this descriptor has a buffer already",
        "a buffer can't be resized: open {path} again for another one",
    ),
    (Step.INIT, errno.EINVAL): (
        "a buffer of {size} words isn't possible",
        "at least 2 words, at most 268435455 (INT_MAX / 8) of a 64-bit kernel's",
    ),
    (Step.INIT, errno.ENOMEM): (
        "the kernel has no memory for a buffer of {size} words",
        "ask for a smaller one: --buffer-size, and remember that each task has one",
    ),
    (Step.INIT, errno.ENOTTY): (
        "KCOV_INIT_TRACE: ENOTTY: {path} doesn't know this request",
        "the number holds the size of the kernel's words: is this a 32-bit program on a 64-bit kernel, or another file?",
    ),
    (Step.MAP, errno.EINVAL): (
        "the buffer of {size} words can't be mapped",
        "its size must be a whole number of pages: a multiple of 512 words of 8 bytes; and before 5.18 it can be mapped only "
        "while it isn't enabled",
    ),
    (Step.MAP, errno.ENOMEM): (
        "there is no memory to map a buffer of {size} words",
        "ask for a smaller one: --buffer-size",
    ),
    (Step.ENABLE, errno.EBUSY): (
        "KCOV_ENABLE: EBUSY: this task collects already, with another instance",
        "a task can have one: is it collecting under another tool? kcovdbg tasks tells",
    ),
    (Step.ENABLE, errno.EINVAL): (
        "KCOV_ENABLE: EINVAL: the kernel doesn't know this mode, the instance is in use by another task, or it has no buffer",
        "kcovdbg objects tells who uses it; kcovdbg info tells what this kernel has",
    ),
    (Step.ENABLE, ENOTSUPP): (
        "this kernel was built without that mode (ENOTSUPP, 524)",
        "comparisons need CONFIG_KCOV_ENABLE_COMPARISONS=y",
    ),
    (Step.ENABLE, errno.EOPNOTSUPP): (
        "this kernel was built without that mode (EOPNOTSUPP)",
        "comparisons need CONFIG_KCOV_ENABLE_COMPARISONS=y",
    ),
    (Step.ENABLE, errno.ENOTTY): (
        "the kernel doesn't know this request: ENOTTY",
        "KCOV_UNIQUE_ENABLE is in kernels with the deduplication series only",
    ),
    (Step.RESET, errno.ENOTTY): (
        "this kernel has no KCOV_RESET_TRACE",
        "reset() without by_kernel forgets what was collected as well",
    ),
    (Step.RESET, errno.EINVAL): (
        "KCOV_RESET_TRACE: EINVAL: this thread isn't the one that collects with this instance",
        "reset it in the thread that enabled it",
    ),
    (Step.DISABLE, errno.EINVAL): (
        "KCOV_DISABLE: EINVAL: this thread isn't the one that collects with this instance",
        "disable it in the thread that enabled it; the end of that thread does it as well",
    ),
    (Step.REMOTE_ENABLE, errno.EEXIST): _handle_taken,
    (Step.REMOTE_ENABLE, errno.EINVAL): _bad_remote,
    (Step.REMOTE_ENABLE, errno.EBUSY): (
        "KCOV_REMOTE_ENABLE: EBUSY: this thread collects already",
        "up to 7.1 a task has either its own coverage or a remote one: use another thread",
    ),
    (Step.REMOTE_ENABLE, errno.ENOTTY): ("this kernel has no remote coverage", "it came with v5.5"),
    (Step.REMOTE_ENABLE, ENOTSUPP): (
        "this kernel was built without comparisons (ENOTSUPP, 524)",
        "it needs CONFIG_KCOV_ENABLE_COMPARISONS=y",
    ),
    (Step.REMOTE_ENABLE, errno.ENOMEM): ("the kernel has no memory for the handles", "free some memory"),
    (Step.SEIZE, errno.EPERM): (
        "the command can't be followed: ptrace is forbidden",
        "is the security module Yama at 3 (sysctl kernel.yama.ptrace_scope), or a seccomp filter in force?",
    ),
    (Step.FORK, errno.EAGAIN): ("no further process can be created", "ulimit -u and the cgroup's pids.max limit them"),
}

_NOT_FOLLOWED: Final = {
    errno.EOPNOTSUPP: "kcovdbg can't work with it: it runs 32-bit code, or this isn't x86-64",
    errno.ENOSYS: "the kernel has no pidfd_getfd(): it needs 5.6",
    errno.EPERM: "a security module or a seccomp filter forbids it",
    errno.EACCES: "a security module or a seccomp filter forbids it",
    errno.ESRCH: "it ended before its first instruction",
}


def explain_not_followed(step: int, number: int) -> str:
    """Say in a few words why a task's coverage wasn't collected.

    :param number: errno, positive.
    """
    if step == Step.PASS and number in _NOT_FOLLOWED:
        return _NOT_FOLLOWED[number]
    error = explain(step, number)
    return str(error)
