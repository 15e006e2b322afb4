# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a walk couldn't reach or read, in bounded space: damage comes in thousands."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = 40


class Remarks(list[str]):
    """The first remarks of a walk, and how many more there were."""

    def __init__(self) -> None:
        super().__init__()
        self._more = 0

    def note(self, remark: str) -> None:
        """Add a remark."""
        if len(self) < _SHOWN:
            self.append(remark)
            return
        self._more += 1
        if self._more > 1:
            self.pop()
        self.append(f"and {self._more} more that can't be read")
