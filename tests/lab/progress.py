# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress of a long job: one line that is updated on a terminal, a few plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

from typing_extensions import Self


class Progress:
    """Counts the steps of a job; their total is an estimate."""

    def __init__(self, title: str, total: int, stream: TextIO | None = None) -> None:
        self._title = title
        self._total = max(total, 1)
        self._stream = stream or sys.stderr
        self._moving = self._stream.isatty()
        self._start = time.monotonic()
        self._done = 0
        self._shown = -1

    def __enter__(self) -> Self:
        self._show(0, "")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end = "failed" if kind else "done"
        before = "\r\x1b[K" if self._moving else ""
        elapsed = time.monotonic() - self._start
        print(f"{before}{self._title}: {end} after {elapsed:.0f} s ({self._done} steps)", file=self._stream, flush=True)

    def step(self, what: str = "") -> None:
        """Count a step. The estimate may be too low, so the display stops at 99 % until the end."""
        self._done += 1
        self._show(min(99, self._done * 100 // self._total), what)

    def _show(self, percent: int, what: str) -> None:
        if self._moving:
            line = f"{self._title}: {percent:3d} %  {what}"[:100]
            print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)
        elif percent // 10 > self._shown // 10 or self._shown < 0:
            print(f"{self._title}: {percent} %", file=self._stream, flush=True)
        else:
            return
        self._shown = percent
