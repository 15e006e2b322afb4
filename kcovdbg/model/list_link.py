# SPDX-License-Identifier: LGPL-2.1-or-later
"""Links of the kernel's lists, for checking them rather than following them."""

from __future__ import annotations

from typing import NamedTuple


class ListLink(NamedTuple):
    """One element of a list, or the reason why the list could not be followed further."""

    list: str
    """``bucket 3``, ``task``, ``irq``."""
    address: int
    """Of the element; where ``problem`` is set, the address at which an element was expected."""
    back: int | None
    """The element's link back."""
    expected: int
    """What the link back should be."""
    problem: str | None = None
    is_missing: bool = False
    """Whether the problem is unreadable memory at an address that may be right."""
