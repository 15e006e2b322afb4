# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits of memory, disk and time for one input or one command, by names with which the user can
raise them.

``--limit NAME=VALUE`` and ``[limits]`` of config.toml set a limit in the environment, from where
the processes that kcovdbg starts take it.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import KcovdbgError, LimitError

VARIABLE: Final = "KCOVDBG_LIMITS"
"""The environment variable: ``NAME=VALUE`` pairs with blanks between them."""
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_VALUE: Final = re.compile(r"(\d{1,15})([KMGT]?)", re.ASCII)


class Limit(NamedTuple):
    """One limit."""

    default: int
    """Default value, in bytes or seconds."""
    meaning: str
    is_time: bool = False
    default_text: str | None = None
    """How the default is computed, if it depends on the machine."""

    def format(self, value: int) -> str:
        """Return a value as the user would type it."""
        if self.is_time:
            return str(value)
        for unit, size in reversed(_UNITS.items()):
            if value and value % size == 0:
                return f"{value // size}{unit}"
        return "0"

    def format_default(self) -> str:
        """Return the default as text: a value, or how it is computed."""
        return self.default_text or self.format(self.default)


def _half_of_memory() -> int:
    """Return half of the machine's memory, in whole MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_LEAST_MEMORY, memory // 2 >> 20 << 20)


_LEAST_MEMORY: Final = 2 << 30

UNPACKED_SIZE: Final = "unpacked-size"
TRACE_SIZE: Final = "trace-size"
TEXT_SIZE: Final = "text-size"
REPLY_SIZE: Final = "reply-size"
REPLY_TIME: Final = "reply-time"
UNPACKED_CACHE: Final = "unpacked-cache"
MEMORY: Final = "memory"
WORK: Final = "work"
CALL_TIME: Final = "call-time"
LIMITS: Final[Mapping[str, Limit]] = {
    UNPACKED_SIZE: Limit(
        2 << 30,
        "contents of a compressed file, or of a file's compressed sections; 100 times the file's "
        "size is always allowed",
    ),
    UNPACKED_CACHE: Limit(4 << 30, "all copies of compressed images in the cache; 0 keeps none"),
    TRACE_SIZE: Limit(512 << 20, "all traces of a command, unpacked"),
    TEXT_SIZE: Limit(64 << 20, "a source file, a side file, or a row of a recording"),
    REPLY_SIZE: Limit(16 << 20, "one reply of QEMU or a GDB stub"),
    REPLY_TIME: Limit(
        60, "seconds that a command waits for replies of QEMU or a GDB stub", is_time=True
    ),
    MEMORY: Limit(
        _half_of_memory(),
        "memory that a command may take",
        default_text="half of the machine's memory, but at least 2G",
    ),
    CALL_TIME: Limit(120, "seconds that a call of a tool of mcp may take", is_time=True),
    WORK: Limit(300, "processor seconds that reading one input may take", is_time=True),
}


def parse_limit(name: str, text: str) -> int:
    """Return the value of a limit from text such as ``8G``, in bytes or seconds.

    :raises KcovdbgError: when there is no such limit, or it is not a value.
    """
    if name not in LIMITS:
        raise KcovdbgError(f"unknown limit '{name}'", hint=f"one of {', '.join(LIMITS)}")
    match = _VALUE.fullmatch(text)
    if match is None or (LIMITS[name].is_time and match[2]):
        example = "a size, such as 512M or 8G"
        if LIMITS[name].is_time:
            example = "a number of seconds, such as 60"
        raise KcovdbgError(f"limit {name}: '{text}' is not a value", hint=f"give {example}")
    return int(match[1]) * _UNITS[match[2]]


def set_limits(values: Mapping[str, int]) -> None:
    """Set limits for this process and its children. Limits without a new value stay as they are."""
    if values:
        os.environ[VARIABLE] = " ".join(
            f"{name}={value}" for name, value in {**_read_environment(), **values}.items()
        )


def find_limit(name: str) -> int:
    """Return the value of a limit that is in force, in bytes or seconds.

    :raises KcovdbgError: when the environment variable is malformed.
    """
    return _read_environment().get(name, LIMITS[name].default)


def _read_environment() -> dict[str, int]:
    pairs = (word.partition("=") for word in os.environ.get(VARIABLE, "").split())
    return {name: parse_limit(name, text) for name, _, text in pairs}


def over_limit(name: str, subject: str, value: int | None = None) -> LimitError:
    """Return the error of an input that exceeds a limit.

    :param subject: the input, for the message.
    :param value: value of the limit for this input; None for the value in force.
    """
    limit = LIMITS[name]
    if value is None:
        value = find_limit(name)
    unit = "s" if limit.is_time else "bytes"
    shown = f"{limit.format(value)} {unit}"
    more = limit.format(max(2 * value, 1))
    return LimitError(
        f"{subject}: more than {shown}, the limit {name}",
        hint=f"if you trust it: kcovdbg --limit {name}={more}, or {name} in [limits] of "
        f"config.toml",
    )


class _Account:
    """The resources that one command has used."""

    def __init__(self) -> None:
        self.traces: dict[str, int] = {}
        """Sizes by path: a trace that is read twice counts once."""
        self.waited = 0.0
        """Seconds for replies of a machine."""


_ACCOUNT: Final[ContextVar[_Account | None]] = ContextVar("account", default=None)


def room_for_trace(path: str) -> int:
    """Return how large a trace may be beside the others that the running command has read."""
    account = _ACCOUNT.get()
    room = find_limit(TRACE_SIZE)
    if account is not None:
        room -= sum(account.traces.values()) - account.traces.get(path, 0)
    return max(room, 0)


def count_trace(path: str, size: int) -> None:
    """Count a trace that was read.

    :raises LimitError: when the traces of the command are too large together.
    """
    if size > room_for_trace(path):
        is_large = size > find_limit(TRACE_SIZE)
        subject = path if is_large else f"{path} and the traces before it"
        raise over_limit(TRACE_SIZE, subject)
    account = _ACCOUNT.get()
    if account is not None:
        account.traces[path] = size


def time_for_replies() -> float:
    """Return how many seconds the running command may still wait for replies of a machine."""
    account = _ACCOUNT.get()
    return find_limit(REPLY_TIME) - (0 if account is None else account.waited)


def count_wait(seconds: float) -> None:
    """Count a wait for a reply."""
    account = _ACCOUNT.get()
    if account is not None:
        account.waited += seconds


def renew_time_for_replies() -> None:
    """Restart the running command's time. A command that runs until the user ends it does so at
    each look.
    """
    account = _ACCOUNT.get()
    if account is not None:
        account.waited = 0.0


@contextmanager
def one_command(*, holds_memory: bool = True, is_part: bool = False) -> Iterator[None]:
    """Hold the limits of a whole command in a block.

    :param holds_memory: False for a command that starts other programs: they would inherit the
        limit.
    :param is_part: whether the block is a part of the running command, if there is one.
    :raises LimitError: when the block takes more memory.
    """
    account = _ACCOUNT.get() if is_part else None
    token = _ACCOUNT.set(account or _Account())
    try:
        if not holds_memory:
            yield
            return
        with hold_memory("what it reads"):
            yield
    finally:
        _ACCOUNT.reset(token)


@contextmanager
def hold_memory(subject: str) -> Iterator[None]:
    """Let the kernel hold the limit of memory in a block, for what this process allocates in
    addition.

    :raises LimitError: when the block takes more.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # Unlike RLIMIT_AS, it does not count files that are mapped.
    wanted = allocated_memory() + find_limit(MEMORY)
    is_held = soft == resource.RLIM_INFINITY or soft > wanted
    if is_held:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    except MemoryError:
        raise over_limit(MEMORY, subject) from None
    finally:
        if is_held:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def allocated_memory() -> int:
    """Return the bytes of this process that RLIMIT_DATA counts."""
    # Documentation/filesystems/proc.rst: the sixth number includes the stack.
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def need_memory(size: int, subject: str) -> None:
    """Make sure that a command may use so much memory for an input.

    :param size: the memory, in bytes.
    :raises LimitError: when it is more than the limit.
    """
    if size > find_limit(MEMORY):
        raise over_limit(MEMORY, subject)


def hold_work_of_process() -> None:
    """Let the kernel end this process with SIGXCPU after the processor time of one reader."""
    seconds = find_limit(WORK)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard == resource.RLIM_INFINITY or hard > seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, hard))
