# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress of a long job: a line for each tenth of it."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from typing_extensions import Self


class Progress:
    """Counts the steps of a job; their total is an estimate."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._start = time.monotonic()
        self._done = 0

    def __enter__(self) -> Self:
        self._say("0 %")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._say(
            f"{'failed' if kind else 'done'} after {time.monotonic() - self._start:.0f} s "
            f"({self._done} steps)"
        )

    def step(self) -> None:
        """Count a step. The estimate may be too low, so the display stops at 90 % until the end."""
        tenths = self._done * 10 // self._total
        self._done += 1
        if tenths < self._done * 10 // self._total < 10:
            self._say(f"{self._done * 10 // self._total}0 %")

    def _say(self, what: str) -> None:
        print(f"{self._title}: {what}", file=sys.stderr, flush=True)
