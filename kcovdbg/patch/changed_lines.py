# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the state of each line that a change adds, for ``patch``."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import starmap
from typing import Final, NamedTuple

from kcovdbg.patch.change import FileChange, TargetLine
from kcovdbg.patch.line_placement import Damage, find_damage, place_lines
from kcovdbg.records.joined_states import JoinedLine, TraceHits
from kcovdbg.records.line_states import LineState
from kcovdbg.records.located_records import ASSEMBLY
from kcovdbg.symbols.build_option import BuildRule
from kcovdbg.symbols.source_tree import SourceText

_CODE_SUFFIXES: Final = (".c", ASSEMBLY, ".rs")
_HEADER_SUFFIX: Final = ".h"
# A line of assembly without instructions.
_COMMENT: Final = re.compile(r"\s*($|[*#]|/[*/])")
# Reasons for an unknown state, besides the reasons of LineState.
_OTHER_TEXT: Final = "text"
_OTHER_FILE: Final = "file"
_IN_MODULE: Final = "module"
_NO_PATH: Final = "path"
_ASSEMBLY: Final = "assembly"
_ORDER: Final = "order"
REASONS: Final[Mapping[str, str]] = {
    "undecided": "no record names its code, and none follows from the others",
    "moved": "the compiler moved or merged its code",
    "edges": "not all branches of its function are known, or the records contradict them",
    "outside": "functions without coverage points also have code of the line",
    _OTHER_TEXT: "the source that the kernel was built from has another text there",
    Damage.BLANKS.value: "the source has the lines with other blanks, as where mail replaces tabs",
    Damage.WRAPPED.value: "mail wrapped a line of the hunk, which is one in the source",
    _OTHER_FILE: "the kernel was built from another text of the file than the source tree has",
    _IN_MODULE: "its code may be in a module that was not named (-s MODULE.ko)",
    _NO_PATH: "the tree has no such path",
    _ORDER: "several patches change the file, and without its source the lines cannot be placed",
    _ASSEMBLY: "it is assembly outside of functions, which may have code",
}
"""Why the state of a line is unknown, in words."""


class ChangeState(str, Enum):
    """The state of a changed line."""

    EXECUTED = "executed"
    PARTLY = "partly"
    NOT_EXECUTED = "not-executed"
    UNKNOWN = "unknown"
    NO_CODE = "no-code"
    NOT_INSTRUMENTED = "not-instrumented"
    NOT_BUILT = "not-built"


_STATES: Final[Mapping[LineState, ChangeState]] = {
    LineState.EXECUTED: ChangeState.EXECUTED,
    LineState.PARTLY: ChangeState.PARTLY,
    LineState.NOT_EXECUTED: ChangeState.NOT_EXECUTED,
    LineState.NOT_INSTRUMENTED: ChangeState.NOT_INSTRUMENTED,
}
_DECIDED: Final = {LineState.EXECUTED, LineState.PARTLY, LineState.NOT_EXECUTED}


class PatchLine(NamedTuple):
    """A line that a change adds, and its state."""

    file: str
    """Its path in the change."""
    line: int
    """Its number after the change."""
    state: ChangeState
    text: str
    reason: str | None = None
    """Why the state is unknown: a key of :data:`REASONS`."""
    option: str | None = None
    """The option that would build the file."""
    built_line: int | None = None
    """Its number in the source that the kernel was built from; None where it is unknown, or the
    file has no code.
    """
    hits: int = 0
    traces: Sequence[TraceHits] = ()
    """The traces that executed it."""


class PatchFile(NamedTuple):
    """A file of a change, and its lines."""

    file: str
    rows: Sequence[PatchLine]
    is_compared: bool = True
    """Whether the text of lines was compared with the source that the kernel was built from."""


def count_states(rows: Iterable[PatchLine]) -> Counter[ChangeState]:
    """Return how many lines have each state."""
    return Counter(row.state for row in rows)


class BuiltFiles:
    """Find files of a kernel in its debug info, by paths relative to the root of the source tree.

    Debug info has absolute paths, or paths relative to the build directory, which may be outside of
    the source tree.

    :param names: names of files in debug info.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            self._names.setdefault(posixpath.normpath(name), []).append(name)
        self._roots = self._find_roots()

    def _find_roots(self) -> Sequence[str]:
        """Return the directories outside of the build directory that have more than half of the
        files, the outermost first.
        """
        counts: Counter[str] = Counter()
        for name in self._names:
            if not name.startswith(("/", "../")):
                continue
            folder = posixpath.dirname(name)
            while folder not in ("", "/"):
                counts[folder] += 1
                folder = posixpath.dirname(folder)
        roots = [folder for folder, count in counts.items() if 2 * count > len(self._names)]
        return sorted(roots, key=len)

    def find(self, file: str) -> Sequence[str]:
        """Return the names in debug info that a file has, none where it has no code."""
        # The root of the tree is the build directory, or one of the directories with most files.
        for root in ("", *self._roots):
            path = posixpath.normpath(posixpath.join(root, file))
            if path in self._names:
                return self._names[path]
        return ()


class PlacedChange(NamedTuple):
    """A change of a file, and where the kernel has its lines."""

    change: FileChange
    names: Sequence[str]
    """The names of the file in debug info, none where the kernel's image has no code of it."""
    source: SourceText
    """What the kernel was built from."""
    places: Mapping[int, int]
    """Number of an added line in the change -> its number in the source; the same number if the
    source is missing and no other patch changes the file.
    """
    damage: Mapping[int, Damage]
    """Number of an added line without a place -> what a mail program did to it."""


def place_change(
    change: FileChange,
    built: BuiltFiles,
    read: Callable[[str], SourceText],
    *,
    is_only: bool = True,
) -> PlacedChange:
    """Return where the kernel has the lines that a change adds.

    :param read: returns the source of a file, by its name in debug info.
    :param is_only: whether no other patch changes the file: it would move the lines.
    """
    names = built.find(change.file) if change.is_inside else ()
    if not names:
        return PlacedChange(change, (), SourceText(None, ()), {}, {})
    source = read(names[0])
    damage: Mapping[int, Damage] = {}
    if source.lines:
        places = place_lines(change.hunks, source.lines)
        damage = find_damage(change.hunks, source.lines, places)
    elif is_only:
        places = {line.number: line.number for line in change.added_lines}
    else:
        places = {}
    return PlacedChange(change, names, source, places, damage)


def judge_change(
    placed: PlacedChange,
    states: Mapping[str, Mapping[int, JoinedLine]],
    *,
    lacks_modules: bool = False,
    rule: BuildRule | None = None,
    is_in_tree: bool = True,
) -> PatchFile:
    """Return the lines that a change adds to a file, with their states.

    :param states: of lines with code, by file as in debug info.
    :param lacks_modules: whether the code of some loaded module is unknown.
    :param rule: what builds a file without code.
    :param is_in_tree: whether the source tree has a file without code, or is unknown.
    """
    change = placed.change
    if not change.is_inside or not is_in_tree:
        return _judge_alike(change, ChangeState.UNKNOWN, _NO_PATH)
    if not placed.names:
        if lacks_modules and change.file.endswith((*_CODE_SUFFIXES, _HEADER_SUFFIX)):
            return _judge_alike(change, ChangeState.UNKNOWN, _IN_MODULE)
        # A header, or a file that is always built, may have no code of its own.
        is_always_built = rule is not None and rule.option is None
        if is_always_built or not change.file.endswith(_CODE_SUFFIXES):
            return _judge_alike(change, ChangeState.NO_CODE)
        option = None if rule is None else rule.option
        return _judge_alike(change, ChangeState.NOT_BUILT, option=option)
    file_states: dict[int, JoinedLine] = {}
    for name in placed.names:
        for number, state in states.get(name, {}).items():
            if number in file_states:
                state = _merge(file_states[number], state)
            file_states[number] = state
    has_text = bool(placed.source.lines)
    if has_text and not fits_text(file_states, placed.source.lines):
        return _judge_alike(change, ChangeState.UNKNOWN, _OTHER_FILE)
    rows: list[PatchLine] = []
    for line in change.added_lines:
        row = _judge_line(change.file, line, placed.places.get(line.number), file_states)
        if row.built_line is None:
            damage = placed.damage.get(line.number)
            reason = _ORDER if not has_text else _OTHER_TEXT
            row = row._replace(reason=reason if damage is None else damage.value)
        rows.append(row)
    return PatchFile(change.file, rows, has_text)


def fits_text(numbers: Iterable[int], lines: Sequence[str]) -> bool:
    """Return whether code can be compiled from a text: no line with code is empty, or beyond the
    end.
    """
    for number in numbers:
        if number > len(lines) or (number > 0 and not lines[number - 1].strip()):
            return False
    return True


def _merge(one: JoinedLine, other: JoinedLine) -> JoinedLine:
    """Return the state of a line whose file has two names in debug info: two
    compilers may have named a header differently.
    """
    states = {one.state, other.state}
    if len(states) == 1:
        state = one.state
    elif one.state.was_executed or other.state.was_executed:
        state = LineState.PARTLY if states <= _DECIDED else LineState.EXECUTED
    else:
        state = max(states)
    hits: Counter[str] = Counter()
    for found in (*one.traces, *other.traces):
        hits[found.trace] = max(hits[found.trace], found.hits)
    traces = list(starmap(TraceHits, hits.items()))
    return JoinedLine(state, max(one.hits, other.hits), traces)


def _judge_alike(
    change: FileChange, state: ChangeState, reason: str | None = None, option: str | None = None
) -> PatchFile:
    """Return all lines that a change adds with one state."""
    rows = [
        PatchLine(change.file, line.number, state, line.text, reason, option)
        for line in change.added_lines
    ]
    return PatchFile(change.file, rows)


def _judge_line(
    file: str, line: TargetLine, built: int | None, states: Mapping[int, JoinedLine]
) -> PatchLine:
    row = PatchLine(file, line.number, ChangeState.NO_CODE, line.text, built_line=built)
    if built is None:
        return row._replace(state=ChangeState.UNKNOWN)
    found = states.get(built)
    if found is None and file.endswith(ASSEMBLY) and not _COMMENT.match(line.text):
        # The symbol of such code, for instance after SYM_CODE_START(), is no function's.
        return row._replace(state=ChangeState.UNKNOWN, reason=_ASSEMBLY)
    if found is None:
        return row
    row = row._replace(hits=found.hits, traces=found.traces)
    if found.state.is_unknown:
        return row._replace(state=ChangeState.UNKNOWN, reason=found.state.name.lower())
    return row._replace(state=_STATES[found.state])
