# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the workload says about itself: lines `TRUTH {json}` on the guest's second serial port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = b"TRUTH "


class Truth:
    """Reads a log of truth as it grows."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._position = 0
        self._lines: list[dict[str, Any]] = []
        # Lines that bear the prefix and can't be read. There should be none, and a test says so.
        self.damaged: list[str] = []

    def lines(self) -> list[dict[str, Any]]:
        """All lines so far; what is returned grows with later calls."""
        if self._log is None or not self._log.exists():
            return self._lines
        with self._log.open("rb") as file:
            file.seek(self._position)
            new = file.read()
        # A line without its end is still being written.
        whole = new[: new.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return self._lines

    def _take(self, line: bytes) -> None:
        # Whatever precedes the prefix isn't ours: firmware and boot loaders speak on serial ports as well.
        _, prefix, text = line.partition(PREFIX)
        if not prefix:
            return
        try:
            content = json.loads(text)
        except ValueError:
            content = None
        if isinstance(content, dict):
            self._lines.append(content)
        else:
            self.damaged.append(line.decode(errors="replace"))
