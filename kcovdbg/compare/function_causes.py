# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why one build recorded nothing of a function that the other build executed."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.compare.build_match import BuildComparison, Function
from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.location import Frame
from kcovdbg.symbols.build_option import BuildOptions

_CODE_SUFFIXES: Final = (".c", ".S", ".rs")
# Limit for files that are looked up to see whether a source tree is at hand.
_MOST_LOOKUPS: Final = 8


class Absence(str, Enum):
    """Why a build recorded nothing of a function."""

    NOT_REACHED = "not-reached"
    """It has points of the function, and recorded none of them."""
    RENAMED = "renamed"
    """A function of another name has the text."""
    NOT_INSTRUMENTED = "not-instrumented"
    """It has the function without points."""
    NOT_BUILT = "not-built"
    """Its image has no code of the file."""
    GONE = "gone"
    """Its source has no such function."""
    NEW = "new"
    """The same of the left build: the function came later."""
    NO_POINT = "no-point"
    """It has no point of the function, which may be inlined or left out; or its source is not at
    hand.
    """


class FunctionCause(NamedTuple):
    """A cause, and what it names."""

    cause: Absence
    detail: str | None = None
    """The other name of the function, or the option that builds its file."""

    @property
    def text(self) -> str:
        """The cause in words."""
        words = self.cause.value.replace("-", " ")
        return words if self.detail is None else f"{words}: {self.detail}"


class CauseFinder:
    """Finds why a build recorded nothing of a function.

    :param builds: of the left side and of the right one.
    :param comparison: of the same builds.
    """

    def __init__(self, builds: Sequence[Kernel], comparison: BuildComparison) -> None:
        self._match = comparison.match
        self._builds = [_BuiltCode(build) for build in builds]
        self._paired: frozenset[Function] = frozenset()
        if self._match is not None:
            self._paired = frozenset(self._match.to_left.values())
        self._find: Callable[[Function, int], FunctionCause | None] = cache(self._find_cause)

    def find(self, frame: Frame, side: int) -> FunctionCause | None:
        """Return why the other build recorded nothing of a frame's function; None where it did, or
        both are one build.

        :param side: that executed it, 0 for the left one.
        """
        if self._match is None or not frame.function or not frame.file:
            return None
        function = strip_clone_suffix(frame.function), posixpath.normpath(frame.file)
        return self._find(function, side)

    def _find_cause(self, own: Function, side: int) -> FunctionCause | None:
        assert self._match is not None
        function = self._match.function(own, side)
        if function in self._match.reached[1 - side]:
            return None
        if function in self._paired:
            return FunctionCause(Absence.NOT_REACHED)
        new_name = self._match.renamed[side].get(own)
        if new_name is not None:
            return FunctionCause(Absence.RENAMED, new_name)
        found = self._builds[1 - side].find_cause(own)
        return FunctionCause(Absence.NEW) if side and found.cause is Absence.GONE else found


class _BuiltCode:
    """What a build has of files and functions, whether or not they have points.

    :param build: with a table.
    """

    def __init__(self, build: Kernel) -> None:
        self._build = build
        self._read: Callable[[], tuple[frozenset[str], Mapping[str, set[str]]]] = cache(
            self._read_table
        )

    def _read_table(self) -> tuple[frozenset[str], Mapping[str, set[str]]]:
        """Return the files with code, and the compilation units of functions by name."""
        table = self._build.points.require_table(needs_points=False)
        names = {*table.files(), *table.units()}
        if table.blocks is not None:
            names.update(table.blocks.files)
        units: defaultdict[str, set[str]] = defaultdict(set)
        for symbol in table.functions():
            unit = posixpath.normpath(symbol.unit) if symbol.unit else ""
            for name in (symbol.name, symbol.alias):
                if name:
                    units[strip_clone_suffix(demangle(name))].add(unit)
        return frozenset(map(posixpath.normpath, names)), units

    def find_cause(self, function: Function) -> FunctionCause:
        """Return why the build has no point of a function."""
        name, file = function
        files, units = self._read()
        is_source = file.endswith(_CODE_SUFFIXES)
        its_units = units.get(name, set())
        # The unit of a function that a header defines is any file.
        if its_units and (not is_source or its_units & {"", file}):
            return FunctionCause(Absence.NOT_INSTRUMENTED)
        tree = self._build.sources.tree
        path = tree.find(file)
        if is_source and file not in files:
            if path is None and self._has_tree(files):
                return FunctionCause(Absence.GONE)
            return FunctionCause(Absence.NOT_BUILT, _find_option(path, file))
        text = self._build.sources.read_as_built(file)
        if text and not re.search(rf"\b{re.escape(name)}\b", "\n".join(text)):
            return FunctionCause(Absence.GONE)
        return FunctionCause(Absence.NO_POINT)

    def _has_tree(self, files: frozenset[str]) -> bool:
        tree = self._build.sources.tree
        return any(tree.find(file) is not None for file in islice(sorted(files), _MOST_LOOKUPS))


def _find_option(path: Path | None, file: str) -> str | None:
    """Return the option that builds a file, None where the Makefiles of its tree do not say."""
    options = BuildOptions.around(path, file)
    rule = None if options is None else options.find(file)
    return None if rule is None else rule.option
