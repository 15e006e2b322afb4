# SPDX-License-Identifier: LGPL-2.1-or-later
"""Areas of memory, stacks and links of lists."""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class VmallocArea(NamedTuple):
    """One area of the kernel's vmalloc space."""

    start: int
    size: int
    """Size in bytes, without the guard page where the kernel stores the requested size."""
    caller: str
    """The function that allocated it, with the suffix of a compiler's clone."""
    has_user_pages: bool
    """Whether it was allocated for user space: ``VM_USERMAP``."""
    is_page_array: bool = False
    """Whether it is the page array of another area; both have the same caller."""

    @property
    def allocator(self) -> str:
        """The function that allocated it, without a clone's suffix."""
        return self.caller.split(".", 1)[0]


class StackFrame(NamedTuple):
    """One frame of a kernel stack, innermost first."""

    pc: int
    function: str | None
    file: str | None
    line: int | None
    column: int | None
    is_inline: bool
    is_interrupted: bool = False
    """Whether ``pc`` is the next instruction of a CPU or of interrupted code, and not a return
    address.
    """

    @property
    def is_entry(self) -> bool:
        """Whether it is the task's outermost frame: an entry of the kernel, or the start of a new
        task.
        """
        return _ENTRY.fullmatch(self.function or "") is not None


_ENTRY: Final = re.compile(
    r"entry_(SYSCALL|SYSENTER|INT80)\w*|ret_from_\w+|el0t?_\w+|handle_exception|system_call"
    r"|__do_syscall|asm_\w+"
)


class ListLink(NamedTuple):
    """One element of a list, or the reason why the list could not be followed further."""

    list: str
    """``bucket 3``, ``task``, ``irq``."""
    address: int
    """Address of the element, or with a ``problem`` the address at which it was expected."""
    back: int | None
    """The element's link back."""
    expected: int
    """The expected link back."""
    problem: str | None = None
    is_missing: bool = False
    """Whether the problem is unreadable memory at an address that may be right."""
