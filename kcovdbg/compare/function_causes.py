# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find out why one build recorded no point of a function that the other build executed."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.compare.build_match import (
    BuildComparison,
    Function,
    FunctionSpan,
    find_function,
    normalize_file,
)
from kcovdbg.elf.symbol_table import demangle, strip_clone_suffix
from kcovdbg.input_file import is_file
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.location import Frame
from kcovdbg.records.line_states import CodeLine, LineState, TraceRecords, make_finder
from kcovdbg.symbols.build_option import BuildOptions

_CODE_SUFFIXES: Final = (".c", ".S", ".rs")
# Limit for the files that are looked up to see whether there is a whole source tree.
_MOST_LOOKUPS: Final = 8


class Absence(str, Enum):
    """Why a build recorded no point of a function."""

    NOT_REACHED = "not-reached"
    """The function has points, and was not executed."""
    UNRECORDED = "unrecorded"
    """Other records show that code of the function without points was executed."""
    UNKNOWN = "unknown"
    """The function has points, and other records do not show whether other code of it was executed.
    """
    RENAMED = "renamed"
    """A function with another name has the function's text."""
    NOT_INSTRUMENTED = "not-instrumented"
    """The function has no points."""
    NOT_BUILT = "not-built"
    """The image has no code of the file."""
    GONE = "gone"
    """The source has no such function."""
    NEW = "new"
    """The left build's source has no such function yet."""
    NO_POINT = "no-point"
    """The build has no point of the function: it may be inlined or left out, or the source is
    missing.
    """


class FunctionCause(NamedTuple):
    """A cause, and the detail that it names."""

    cause: Absence
    detail: str | None = None
    """The other name of the function, or the option that builds its file."""

    @property
    def text(self) -> str:
        """The cause in words."""
        words = self.cause.value.replace("-", " ")
        if self.detail is not None:
            words += f": {self.detail}"
        return words


class CauseFinder:
    """Find out why a build recorded no point of a function.

    :param builds: the left build and the right build.
    :param comparison: the comparison of these builds.
    :param traces: the records of each side, of all its traces together.
    """

    def __init__(
        self,
        builds: Sequence[Kernel],
        comparison: BuildComparison,
        traces: Sequence[TraceRecords],
    ) -> None:
        self._match = comparison.match
        self._builds = list(map(_BuiltCode, builds, traces))
        self._find: Callable[[Function, int], FunctionCause | None] = cache(self._find_cause)

    def find(self, frame: Frame, side: int) -> FunctionCause | None:
        """Return why the other build recorded no point of a frame's function; None if it recorded
        one, or both sides are one build.

        :param side: the side that executed the function, 0 for the left one.
        """
        if self._match is None or not frame.function or not frame.file:
            return None
        return self._find(find_function(frame), side)

    def _find_cause(self, own: Function, side: int) -> FunctionCause | None:
        assert self._match is not None
        here, there = self._match.sides[side], self._match.sides[1 - side]
        own = here.homes.get(own, own)
        function = self._match.pairs.name(own, side)
        if function in there.reached:
            return None
        span = there.unrecorded.get(function)
        if span is not None:
            return FunctionCause(self._builds[1 - side].judge(span))
        new_name = here.renamed.get(own)
        if new_name is not None:
            return FunctionCause(Absence.RENAMED, new_name)
        found = self._builds[1 - side].find_cause(own)
        if found.cause is not Absence.GONE:
            return found
        if not self._builds[side].has_name(own):
            # A macro made the name.
            return FunctionCause(Absence.NO_POINT)
        return FunctionCause(Absence.NEW) if side else found


class _BuiltCode:
    """The files and functions of a build, with or without points.

    :param build: a kernel with a location table.
    :param trace: records of this build.
    """

    def __init__(self, build: Kernel, trace: TraceRecords) -> None:
        self._build = build
        self._trace = trace

    @cached_property
    def _code(self) -> tuple[frozenset[str], Mapping[str, set[str]]]:
        """Return the files with code, and the compilation units of functions by name."""
        table = self._build.points.require_table(needs_points=False)
        names = {*table.files(), *table.units()}
        if table.blocks is not None:
            names.update(table.blocks.files)
        units: defaultdict[str, set[str]] = defaultdict(set)
        for symbol in table.functions():
            unit = normalize_file(symbol.unit)
            for name in (symbol.name, symbol.alias):
                if name:
                    units[strip_clone_suffix(demangle(name))].add(unit)
        return frozenset(map(posixpath.normpath, names)), units

    @cached_property
    def _states(self) -> Mapping[str, Sequence[CodeLine]]:
        """The states of lines, by file; empty if the table has no blocks."""
        table = self._build.points.require_table(needs_points=False)
        if table.blocks is None:
            return {}
        return make_finder(table).find_lines(self._trace)

    def judge(self, span: FunctionSpan) -> Absence:
        """Return why no point of a function was recorded."""
        lines = self._find_lines(span)
        states = set()
        for line in self._states.get(span.file, ()):
            if line.line in lines:
                states.add(line.state)
        if any(state.was_executed for state in states):
            return Absence.UNRECORDED
        # Copies of an inlined function may have no points.
        if states == {LineState.NOT_EXECUTED} and not span.is_inlined:
            return Absence.NOT_REACHED
        return Absence.UNKNOWN

    def _find_lines(self, span: FunctionSpan) -> range:
        """Return all lines of a function, not only lines with points. Empty if the source is
        missing, or does not show where the function begins and ends.
        """
        text = self._build.sources.read_as_built(span.file)
        # Only the head of the function is not indented; indented code may also have the name.
        head = re.compile(rf"([^\s#/*].*?\b)?{re.escape(span.name)}\s*\(")
        first = min(span.lines.start, len(text))
        while first > 0 and not head.match(text[first - 1]):
            first -= 1
        opened = closed = 0
        if not first:
            return range(0)
        for number in range(first, len(text) + 1):
            opened += text[number - 1].count("{")
            closed += text[number - 1].count("}")
            if number >= span.lines.stop - 1 and opened and closed >= opened:
                return range(first, number + 1)
        return range(0)

    def find_cause(self, function: Function) -> FunctionCause:
        """Return why the build has no point of a function."""
        name, file = function
        files, units = self._code
        is_source = file.endswith(_CODE_SUFFIXES)
        its_units = units.get(name, set())
        # The unit of a function that a header defines is any file.
        if its_units and (not is_source or its_units & {"", file}) and not self._has_points(name):
            return FunctionCause(Absence.NOT_INSTRUMENTED)
        tree = self._build.sources.tree
        path = tree.find(file)
        if is_source and file not in files:
            if path is None and self._has_tree(files):
                return FunctionCause(Absence.GONE)
            return FunctionCause(Absence.NOT_BUILT, _find_option(path, file))
        if self._build.sources.read_as_built(file) and not self.has_name(function):
            return FunctionCause(Absence.GONE)
        return FunctionCause(Absence.NO_POINT)

    def has_name(self, function: Function) -> bool:
        """Return whether the source of a function has its name."""
        name, file = function
        text = "\n".join(self._build.sources.read_as_built(file))
        return re.search(rf"\b{re.escape(name)}\b", text) is not None

    def _has_points(self, name: str) -> bool:
        table = self._build.points.require_table(needs_points=False)
        for symbol in table.functions_named(name):
            if table.find_in(range(symbol.address, symbol.address + symbol.size)):
                return True
        return False

    def _has_tree(self, files: frozenset[str]) -> bool:
        """Return whether a whole source tree is at hand, not only the files that were compiled."""
        sources = sorted(file for file in files if file.endswith(".c"))
        for file in sources[:_MOST_LOOKUPS]:
            path = self._build.sources.tree.find(file)
            if path is not None and is_file(path.parent / "Makefile"):
                return True
        return False


def _find_option(path: Path | None, file: str) -> str | None:
    """Return the option that builds a file; None if the Makefiles of its tree do not say."""
    options = BuildOptions.around(path, file)
    if options is None:
        return None
    rule = options.find(file)
    return None if rule is None else rule.option
