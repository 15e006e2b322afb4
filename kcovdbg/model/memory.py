# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel memory and stacks as a target describes them."""

from __future__ import annotations

from typing import NamedTuple


class VmallocArea(NamedTuple):
    """One area of the kernel's vmalloc space."""

    start: int
    size: int
    """In bytes, without the guard page where the kernel stores the requested size."""
    caller: str
    """The function that allocated it, with the suffix of a compiler's clone."""
    has_user_pages: bool
    """``VM_USERMAP``: allocated for mapping into user space."""
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
