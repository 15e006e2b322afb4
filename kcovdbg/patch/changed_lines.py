# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of each line that a change adds: what ``patch`` answers."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from kcovdbg.patch.change import FileChange, TargetLine
from kcovdbg.patch.line_placement import place_lines
from kcovdbg.records.joined_states import JoinedLine, TraceHits
from kcovdbg.records.line_states import LineState
from kcovdbg.symbols.build_option import BuildRule
from kcovdbg.symbols.source_tree import SourceText

_CODE_SUFFIXES: Final = (".c", ".S", ".rs")
# Why nothing is judged, beside the reasons of states.
_OTHER_TEXT: Final = "text"
_OTHER_FILE: Final = "file"
_IN_MODULE: Final = "module"
_NO_PATH: Final = "path"
_INLINED: Final = "inlined"
REASONS: Final[Mapping[str, str]] = {
    "undecided": "no record names its code, and none follows from the others",
    "moved": "the compiler moved or merged its code",
    "edges": "not all branches of its function are known, or the records contradict them",
    "outside": "functions without coverage points have code of it as well",
    _INLINED: "all of its code is inlined, and no point of that was recorded",
    _OTHER_TEXT: "the source that the kernel was built from has another text there",
    _OTHER_FILE: "the kernel was built from another text of the file than the source tree has",
    _IN_MODULE: "its code is in a module, whose blocks are unknown",
    _NO_PATH: "its path is outside of the tree",
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


class PatchLine(NamedTuple):
    """A line that a change adds, and what is known of it."""

    file: str
    """As in the change."""
    line: int
    """Its number after the change."""
    state: ChangeState
    hits: int
    text: str
    reason: str | None
    """Why the state is unknown: of :data:`REASONS`."""
    option: str | None
    """The option that would build the file."""
    built_line: int | None
    """Its number in the source that the kernel was built from; None where it is unknown, or the
    file has no code.
    """
    traces: Sequence[TraceHits]
    """Those that executed it."""


class PatchFile(NamedTuple):
    """A file of a change, and its lines."""

    file: str
    rows: Sequence[PatchLine]
    change: FileChange
    is_compared: bool
    """Whether the text of lines was compared with the source that the kernel was built from."""

    @property
    def counts(self) -> Counter[ChangeState]:
        """How many lines have each state."""
        return Counter(row.state for row in self.rows)


class BuiltFiles:
    """Finds the files of a kernel by paths relative to the root of its source tree.

    Debug info names them relative to the build directory, which may be another one, or by absolute
    paths.

    :param names: as in debug info.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, list[str]] = {}
        for name in dict.fromkeys(names):
            self._names.setdefault(posixpath.normpath(name), []).append(name)
        self._roots = self._find_roots()

    def _find_roots(self) -> Sequence[str]:
        """Return the directories that more than half of the files are in, if these are outside of
        the build directory.
        """
        elsewhere = [name for name in self._names if name.startswith(("/", "../"))]
        counts: Counter[str] = Counter()
        for name in elsewhere:
            folder = posixpath.dirname(name)
            while folder not in ("", "/"):
                counts[folder] += 1
                folder = posixpath.dirname(folder)
        return sorted(
            (folder for folder, count in counts.items() if 2 * count > len(self._names)), key=len
        )

    def find(self, file: str) -> Sequence[str]:
        """Return the names in debug info that a file has, none where it has no code."""
        normal = posixpath.normpath(file)
        places = (
            normal,
            *(posixpath.normpath(posixpath.join(root, normal)) for root in self._roots),
        )
        # The root of the tree is one of these directories, or the only one that has most files is
        # below it.
        return next((self._names[place] for place in places if place in self._names), ())


def judge_file(
    change: FileChange,
    names: Sequence[str],
    states: Mapping[str, Mapping[int, JoinedLine]],
    source: SourceText,
    *,
    is_in_module: bool = False,
    rule: BuildRule | None = None,
) -> PatchFile:
    """Return the lines that a change adds to a file, with their states.

    :param names: of the file in debug info, none where the kernel's image has no code of it.
    :param states: by these names, of lines with code.
    :param source: what the kernel was built from.
    :param is_in_module: whether a module of the kernel has code of it.
    :param rule: what builds it, for a file without code.
    """
    added = [line for hunk in change.hunks for line in hunk if line.is_added]
    if not change.is_inside:
        return _same_for_all(change, added, ChangeState.UNKNOWN, _NO_PATH)
    if is_in_module:
        return _same_for_all(change, added, ChangeState.UNKNOWN, _IN_MODULE)
    if not names:
        # A header, or a file that is always built, may have no code of its own.
        is_code = change.file.endswith(_CODE_SUFFIXES) and not (
            rule is not None and rule.option is None
        )
        state = ChangeState.NOT_BUILT if is_code else ChangeState.NO_CODE
        return _same_for_all(
            change, added, state, None, rule.option if rule is not None and is_code else None
        )
    own: dict[int, JoinedLine] = {}
    for name in names:
        for number, found in states.get(name, {}).items():
            own[number] = found if number not in own else _merge(own[number], found)
    has_text = bool(source.lines)
    if has_text and not fits_text(own, source.lines):
        return _same_for_all(change, added, ChangeState.UNKNOWN, _OTHER_FILE)
    placed = place_change(change, source)
    rows = [_judge_line(change.file, line, placed.get(line.number), own) for line in added]
    return PatchFile(change.file, rows, change, has_text)


def place_change(change: FileChange, source: SourceText) -> Mapping[int, int]:
    """Return where added lines are: number in the change -> number in the source, the same where
    that is not at hand.
    """
    if source.lines:
        return place_lines(change.hunks, source.lines)
    return {line.number: line.number for hunk in change.hunks for line in hunk if line.is_added}


def fits_text(numbers: Collection[int], lines: Sequence[str]) -> bool:
    """Return whether code may be of a text: no line with code is empty, or behind the end."""
    return all(
        number <= len(lines) and lines[number - 1].strip() for number in numbers if number > 0
    )


def _merge(one: JoinedLine, other: JoinedLine) -> JoinedLine:
    """Return what two names of a file say of a line, as a header that two compilers named
    differently.
    """
    if one.state is other.state:
        state = one.state
    elif one.state.was_executed or other.state.was_executed:
        known = (LineState.EXECUTED, LineState.PARTLY, LineState.NOT_EXECUTED)
        state = LineState.PARTLY if {one.state, other.state} <= set(known) else LineState.EXECUTED
    else:
        state = max(one.state, other.state)
    hits: Counter[str] = Counter()
    for found in (*one.traces, *other.traces):
        hits[found.trace] = max(hits[found.trace], found.hits)
    traces = [TraceHits(*item) for item in hits.items()]
    return JoinedLine(
        state, max(one.hits, other.hits), traces, is_call=one.is_call and other.is_call
    )


def _same_for_all(
    change: FileChange,
    added: Sequence[TargetLine],
    state: ChangeState,
    reason: str | None,
    option: str | None = None,
) -> PatchFile:
    rows = [
        PatchLine(change.file, line.number, state, 0, line.text, reason, option, None, ())
        for line in added
    ]
    return PatchFile(change.file, rows, change, is_compared=True)


def _judge_line(
    file: str, line: TargetLine, built: int | None, own: Mapping[int, JoinedLine]
) -> PatchLine:
    if built is None:
        return PatchLine(
            file, line.number, ChangeState.UNKNOWN, 0, line.text, _OTHER_TEXT, None, None, ()
        )
    found = own.get(built)
    if found is None:
        return PatchLine(
            file, line.number, ChangeState.NO_CODE, 0, line.text, None, None, built, ()
        )
    reason = None
    if found.state.is_unknown:
        reason = _INLINED if found.is_call else found.state.name.lower()
    state = ChangeState.UNKNOWN if found.state.is_unknown else _STATES[found.state]
    return PatchLine(
        file, line.number, state, found.hits, line.text, reason, None, built, found.traces
    )
