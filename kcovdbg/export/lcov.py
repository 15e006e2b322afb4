# SPDX-License-Identifier: LGPL-2.1-or-later
"""lcov's tracefile (geninfo(1)): line coverage by source file. Read by genhtml, and by CI services that show coverage.

Functions and branches aren't in it: a point doesn't know the line of its function's head, and is no branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kcovdbg.records.coverage import FileCoverage
from kcovdbg.console.escape import escape

_NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def lcov_lines(name: str, coverage: Iterable[FileCoverage], path_of: Callable[[str], str]) -> Iterator[str]:
    """Iterate over the tracefile's lines.

    :param name: of the test; genhtml takes letters, digits and underscores, anything else becomes an underscore.
    :param coverage: ordered by file and line.
    :param path_of: from a file's name in debug info to where its text is.
    """
    test = "".join(character if character in _NAME else "_" for character in name)
    for file in coverage:
        yield f"TN:{test}"
        yield f"SF:{escape(path_of(file.file))}"
        for line, hits in zip(file.lines, file.hits, strict=True):
            yield f"DA:{line},{hits}"
        yield f"LF:{len(file.lines)}"
        yield f"LH:{file.covered_lines}"
        yield "end_of_record"
