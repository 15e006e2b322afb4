# SPDX-License-Identifier: LGPL-2.1-or-later
"""Patterns for the kernel's messages about crashes: registers, banners, and the roles of functions
in a crash.

The patterns are in ``crash_reports.ini``, with the first release that has each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Final

from kcovdbg.package_tables import read_tables


class CrashRole(Enum):
    """The role of a function in a crash."""

    CRASH = "runs only in a crash"
    REPORT = "reports what its caller did"
    INTERRUPT_REPORT = "runs in an interrupt and reports what that interrupted"
    REMOTE_REPORT = "reports what another task or CPU did"
    EXCEPTION = "handles an exception"
    ENTRY = "entry point of an exception or interrupt"
    OUTERMOST = "entry point of a system call or of a new task"
    INSTRUMENTATION = "called by code that the compiler or a macro adds"
    HELPER = "works for any caller"
    ALLOCATOR = "allocates or frees for its caller, and is passed over behind a report"
    WAIT = "puts the task to sleep"
    INTERRUPTED = "is passed over where an interrupt found the CPU in it"


_TABLES: Final = read_tables(__package__, "crash_reports.ini")


def _entries(key: str) -> Iterator[str]:
    """Yield the patterns of all sections, a line each."""
    for name in _TABLES.sections():
        for line in _TABLES[name].get(key, "").splitlines():
            if line.strip():
                yield line.strip()


def _names(key: str) -> str:
    """Return the names of registers of all sections as one pattern; a point stands for a space."""
    return "|".join(dict.fromkeys(name for line in _entries(key) for name in line.split()))


def _lines(key: str) -> re.Pattern[str]:
    """Return the pattern of lines that begin with any of the entries."""
    return re.compile(rf"\s{{0,16}}(?:{'|'.join(_entries(key))})")


def _read_roles() -> Iterator[tuple[re.Pattern[str], CrashRole]]:
    """Yield the groups of functions: regular expressions of whole names without a clone's
    suffix.
    """
    for name in _TABLES.sections():
        if "role" in _TABLES[name]:
            functions = "|".join(_TABLES[name]["functions"].split())
            yield re.compile(f"(?:{functions})$"), CrashRole[_TABLES[name]["role"].upper()]


# The longest name of a symbol (include/linux/kallsyms.h); one of an image may be longer.
KSYM_NAME_LEN: Final = 512
# A function has the role of the first group that names it.
_ROLES: Final = tuple(_read_roles())


@cache
def role_of(function: str) -> CrashRole | None:
    """Return the role of a function in a crash, None for an ordinary function.

    :param function: its name, without the suffix of a compiler's clone.
    """
    if len(function) > KSYM_NAME_LEN:
        return None
    return next((role for pattern, role in _ROLES if pattern.match(function)), None)


# Between the name of a register and its place: a sign, x86's segment of the kernel, the value.
_SIGN: Final = r"(?:\s{0,8}(?:==|[:=])|\s{0,4}\]\s?:| is at)?\s{0,8}(?:(?!00[23]3:)[0-9a-f]{4}:)?"
_VALUES: Final = r"(?:\[?<?(?:0x)?[0-9a-f]{8,16}>?\]?:?\s{0,4}){0,3}[(<\[]?"
_EXACT: Final = _names("exact")
EXACT_BEFORE: Final = re.compile(
    rf"(?:(?<![\w.])(?:{_EXACT}){_SIGN}{_VALUES}|{'|'.join(_entries('before'))})$"
)
"""The text before a place that is the address of an instruction."""
REGISTER_ADDRESS: Final = re.compile(
    rf"(?<![\w.])(?:(?:{_EXACT}){_SIGN}(?:\[<)?(?P<exact>(?:0x)?[0-9a-f]{{8,16}})|"
    rf"(?:{_names('link')}){_SIGN}(?:\[<)?"
    r"(?P<link>(?:0x)?[0-9a-f]{8,16}))(?![\w])"
)
"""A register with the address of an instruction, or with a return address."""
COUNTER: Final = re.compile(
    rf"\s{{0,8}}(?:Krnl )?(?:(?:{_EXACT}){_SIGN}{_VALUES}|--- (?:interrupt"
    rf"|Exception): [0-9a-f]{{1,4}} at )(?=[A-Za-z_.$])"
)
"""The start of a line that says which instruction was interrupted."""
EXACT_FOLLOWS: Final = _lines("follows")
"""A line before one with the address of an instruction."""
CALL_MACHINES: Final = re.compile("|".join(_entries("machines")))
"""Machines whose stacks hold addresses of calls, by their names as of uname -m."""
TITLE: Final = _lines("titles")
"""The first line of a report."""
HEADLINE: Final = re.compile(rf"\s{{0,16}}(?:{'|'.join(_entries('headlines'))})(?P<place>.*)")
"""A line that names a place before the stack."""
TRACE: Final = _lines("traces")
"""The line before a stack."""
END: Final = _lines("ends")
"""A line after a stack.

A stack may have other lines among its own: registers of an interrupt, messages of other CPUs.
"""
ASIDE: Final = _lines("asides")
"""The line before a stack of something else than the crash."""
DOUBTFUL: Final = _lines("doubtful")
"""The line before a stack that need not be the crash's."""
HARMLESS: Final = _lines("harmless")
"""The line before a stack that is no crash's."""
_LEAK: Final = re.compile(rf"(?:{'|'.join(_entries('leaks'))})$")


def is_allocator(function: str) -> bool:
    """Return whether a function is passed over in the stack of an allocation.

    :param function: as of :func:`role_of`.
    """
    return len(function) <= KSYM_NAME_LEN and _LEAK.match(function) is not None
