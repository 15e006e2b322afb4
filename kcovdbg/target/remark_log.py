# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remarks of a walk on what it could not reach or read, a bounded number of them."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = 40


class Remarks(list[str]):
    """The first remarks of a walk, and the number of further ones."""

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def note(self, remark: str) -> None:
        """Add a remark, or count it when there are many."""
        if len(self) < _SHOWN:
            self.append(remark)
            return
        self._more += 1
        if self._more > 1:
            self.pop()
        self.append(f"{self._more} more unreadable")
