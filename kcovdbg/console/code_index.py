# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions and source files of the kernel, for completion."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import takewhile

from kcovdbg.console.choices import Candidate, Choices
from kcovdbg.console.escape import escape
from kcovdbg.symbols.location_table import LocationTable


class CodeIndex:
    """The names in the table of a kernel's coverage points; read when they are first asked for.

    :param find_table: returns the table, None while there is none. It is called again then.
    """

    def __init__(self, find_table: Callable[[], LocationTable | None] = lambda: None) -> None:
        self._find_table = find_table
        self._table: LocationTable | None = None

    def _has_table(self) -> bool:
        if self._table is None:
            self._table = self._find_table()
        return self._table is not None

    def functions(self, prefix: str) -> list[Candidate]:
        """Return the functions with a prefix."""
        return self._functions.matching(prefix) if self._has_table() else []

    def files(self, prefix: str) -> Iterator[Candidate]:
        """Iterate over the source files and directories with a prefix, down to the next slash."""
        if not self._has_table():
            return
        head = prefix[: prefix.rfind("/") + 1]
        previous = ""
        start = bisect_left(self._files, prefix)
        for file in takewhile(lambda file: file.startswith(prefix), self._files[start:]):
            part, slash, _ = file[len(head) :].partition("/")
            name = f"{head}{part}{slash}"
            if name != previous:
                yield Candidate(name, "directory" if slash else "source file")
            previous = name

    def named_files(self, prefix: str) -> Iterator[Candidate]:
        """Iterate over the source files in any directory whose own names have a prefix."""
        if not self._has_table():
            return
        start = bisect_left(self._base_names, (prefix, ""))
        for _, file in takewhile(lambda pair: pair[0].startswith(prefix), self._base_names[start:]):
            yield Candidate(file, "source file")

    @cached_property
    def _functions(self) -> Choices:
        assert self._table is not None
        names = sorted({symbol.name for symbol in self._table.functions()})
        return Choices(Candidate(name, "function") for name in names if escape(name) == name)

    @cached_property
    def _files(self) -> list[str]:
        assert self._table is not None
        files = {file.removeprefix("./") for file in self._table.files()}
        return sorted(file for file in files if escape(file) == file)

    @cached_property
    def _base_names(self) -> list[tuple[str, str]]:
        return sorted((file.rpartition("/")[2], file) for file in self._files)
