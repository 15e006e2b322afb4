# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the workload prints about itself: lines `TRUTH {json}` on the guest's second serial port."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PREFIX = b"TRUTH "


class Truth:
    """Reads a log of truth as it grows."""

    def __init__(self, log: Path | None = None) -> None:
        self._log = log
        self._position = 0
        self._lines: list[dict[str, Any]] = []
        # Lines with the prefix that cannot be parsed. A test asserts that there are none.
        self.damaged: list[str] = []

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines so far; later calls extend the same list."""
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
        # Text before the prefix is from firmware and boot loaders, which also print to serial
        # ports.
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
