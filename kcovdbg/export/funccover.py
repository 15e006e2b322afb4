# SPDX-License-Identifier: LGPL-2.1-or-later
"""syzkaller's CSV of functions: ``/funccover``, and ``syz-cover -exports funccover`` (pkg/cover/html.go)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from kcovdbg.records.coverage import FunctionCoverage
from kcovdbg.console.escape import escape
from kcovdbg.export.rawcoverfiles import csv_line

HEADER: Final = ("Module", "Filename", "Function", "Covered PCs", "Total PCs")


def funccover_lines(functions: Iterable[FunctionCoverage]) -> Iterator[str]:
    """Iterate over the table's lines, by file and function; the kernel image's module name is empty."""
    yield csv_line(HEADER)
    for function in sorted(functions):
        yield csv_line(("", escape(function.file), escape(function.function), function.covered, function.points))
