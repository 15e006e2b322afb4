# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect the words that completion offers: names in KCOV's state and in the kernel's image."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.mode import plain_name
from kcovdbg.console.argument import Value
from kcovdbg.console.context import Workspace
from kcovdbg.console.text import escape
from kcovdbg.elf.symbol_table import demangle
from kcovdbg.errors import KcovdbgError
from kcovdbg.model.kcov import Kcov
from kcovdbg.model.state import Part, State
from kcovdbg.model.task import Task
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.walk.state import StateReader

# A shorter text is a part of too many words.
_PART_LENGTH: Final = 3
# With more tasks, objects are offered only after `objects` has shown them: the search for objects
# takes milliseconds for each process.
_FEW_TASKS: Final = 200
# A running kernel is read again after each command, if reading takes no larger share of the time.
_SHARE: Final = 0.1


class Candidate(NamedTuple):
    """A word with its description."""

    text: str
    meta: str = ""


def _is_part(typed: str) -> bool:
    """Return whether a typed text may also match inside of words: not a number or a short text."""
    return len(typed) >= _PART_LENGTH and not typed.isdecimal()


def find_matching(entries: Iterable[Candidate], typed: str) -> Iterator[Candidate]:
    """Yield the words that begin with a text, then words that have it elsewhere."""
    later: list[Candidate] = []
    for entry in entries:
        if entry.text.startswith(typed):
            yield entry
        elif _is_part(typed) and typed in entry.text:
            later.append(entry)
    yield from later


def _typable(names: Iterable[str]) -> list[str]:
    """Return the names that are printable, sorted: no others can be typed."""
    return sorted(name for name in names if escape(name) == name)


class CodeIndex:
    """The names in a kernel's location table, which is read at the first use.

    :param find_table: returns the table, or None while it is being built; then it is called again.
    """

    def __init__(self, find_table: Callable[[], LocationTable | None] = lambda: None) -> None:
        self._find_table = find_table
        self._functions: Sequence[Candidate] | None = None
        self._files: Sequence[str] = ()

    def matching(self, typed: str) -> Iterator[Candidate]:
        """Yield functions, and files and directories down to the next slash, that begin with a
        text; then files with the text in their name.
        """
        if self._functions is None:
            table = self._find_table()
            if table is None:
                return
            names = {demangle(symbol.name) for symbol in table.functions()}
            self._functions = [Candidate(name, "function") for name in _typable(names)]
            self._files = _typable({file.removeprefix("./") for file in table.files()})
        head = typed[: typed.rfind("/") + 1]
        if not head:
            yield from find_matching(self._functions, typed)
        parts = (file[len(head) :].partition("/") for file in self._files if file.startswith(typed))
        for part, slash in dict.fromkeys((part, slash) for part, slash, _ in parts):
            yield Candidate(f"{head}{part}{slash}", "directory" if slash else "source file")
        if not head and _is_part(typed):
            for file in self._files:
                if typed in file.rpartition("/")[2]:
                    yield Candidate(file, "source file")


@dataclass(frozen=True, slots=True)
class Index:
    """Words that complete values, at one moment."""

    words: Mapping[str, Sequence[Candidate]] = field(default_factory=dict)
    """Type of a value, or prefix of a buffer's name -> the words that can follow. Of equal words,
    the first one counts.
    """
    code: CodeIndex = CodeIndex()  # noqa: RUF009


def index_state(
    state: State, modes: Iterable[str], objects: Iterable[Kcov]
) -> dict[str, Sequence[Candidate]]:
    """Return the words of a kernel, without kept buffers.

    :param state: with TASKS and REMOTE.
    :param objects: the objects that are known; some may lack their address.
    """
    known = [kcov for kcov in objects if kcov.address]
    counter = Counter(fields.comm for fields in state.task_fields if fields.comm)
    # A task whose name cannot be typed has a thread id.
    comms = [Candidate(comm, f"{counter[comm]} with this name") for comm in _typable(counter)]
    # Tasks with KCOV state come first.
    tids = [Candidate(str(task.fields.pid), _task_meta(task)) for task in state.tasks]
    tids += [Candidate(str(fields.pid), escape(fields.comm or "")) for fields in state.task_fields]
    collecting: list[Candidate] = []
    addresses = [Candidate(f"{kcov.address:#x}", _object_meta(kcov)) for kcov in known]
    for task in state.tasks:
        if task.count is not None:
            collecting.append(Candidate(str(task.fields.pid), _task_meta(task)))
        if task.fields.kcov:
            addresses.append(Candidate(f"{task.fields.kcov:#x}", _task_meta(task)))
    handles = []
    for entry in state.handles:
        if entry.handle is not None:
            meta = f"{entry.pid or ''} {escape(entry.comm or '')}".strip()
            handles.append(Candidate(str(decode_handle(entry.handle)), meta))
    return {
        Value.TASK: (*tids, *comms),
        Value.OBJECT: (*addresses, *collecting, *comms),
        Value.REGISTERED: (*handles, *collecting, *comms),
        Value.SUBJECT: (*collecting, *handles, *addresses, *tids),
        Value.MODE: [
            Candidate(plain_name(mode).lower().replace("_", "-"), escape(mode)) for mode in modes
        ],
        Value.BUFFER: collecting,
        "kcov:": addresses,
        "fd:": list(_index_descriptors(known)),
    }


def _index_descriptors(objects: Iterable[Kcov]) -> Iterator[Candidate]:
    for kcov in objects:
        meta = f"{kcov.mode or '?'}  kcov {kcov.address:#x}"
        for reference in kcov.references:
            if reference.kind == "fd" and reference.fd is not None:
                yield Candidate(f"{reference.pid}/{reference.fd}", meta)


def _task_meta(task: Task) -> str:
    mode = "" if task.mode in ("DISABLED", None) else f"  {task.mode}"
    return f"{escape(task.fields.comm or '')}{mode}{_count_meta(task)}"


def _object_meta(kcov: Kcov) -> str:
    owner = ""
    if kcov.pid is not None:
        owner = f"  {kcov.pid} {escape(kcov.comm or '')}"
    return f"{kcov.mode or '?'}{_count_meta(kcov)}{owner}"


def _count_meta(counted: Task | Kcov) -> str:
    if counted.count is None:
        return ""
    full = " FULL" if counted.full else ""
    return f"  {counted.count}{full}"


class Harvest:
    """The words of a workspace's kernel and kept buffers, kept up to date.

    :param clock: returns the time in seconds.
    """

    def __init__(self, workspace: Workspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._workspace = workspace
        self._clock = clock
        self._reader: StateReader | None = None
        self._not_before = 0.0
        self._seen: StateReader | None = None
        self.index = Index(code=CodeIndex(self._find_table))
        """The current index."""

    def refresh(self) -> None:
        """Update the index after a command.

        The index lacks state that cannot be read; commands report why. After an interrupt, the old
        index stays.
        """
        kept = [
            Candidate(name, escape(f"kept from {buffer.source}"))
            for name, buffer in self._workspace.inputs.kept.items()
        ]
        names: dict[str, Sequence[Candidate]] = {Value.BUFFER_NAME: kept}
        self.index = replace(self.index, words={**self.index.words, **names})
        kernel, latest = self._workspace.inputs.kernel, self._workspace.inputs.latest
        if kernel.target.memory_problem is not None:
            return
        stale = self._reader is None or (kernel.target.live and self._clock() >= self._not_before)
        if not stale and latest is self._seen:
            return
        started = self._clock()
        # Commands and options still complete if, for instance, the tasks cannot be walked.
        with contextlib.suppress(KcovdbgError):
            if stale or self._reader is None:
                self._reader = StateReader(kernel.target, kernel.memory.layout)
            state = self._reader.read(Part.TASKS | Part.REMOTE)
            found = index_state(
                state, kernel.memory.layout.mode_names, self._find_objects(self._reader, state)
            )
            self.index = replace(self.index, words={**found, **names})
        self._seen = latest
        if stale:
            self._not_before = self._clock() + (self._clock() - started) / _SHARE

    def _find_table(self) -> LocationTable | None:
        with contextlib.suppress(KcovdbgError):
            return self._workspace.inputs.kernel.names.table
        return None

    def _find_objects(self, reader: StateReader, state: State) -> Iterator[Kcov]:
        latest = self._workspace.inputs.latest
        if latest is not None and "objects" in latest.recall().read:
            # The next command is often about objects in the last answer.
            yield from latest.recall().objects.values()
        if len(state.task_fields) <= _FEW_TASKS:
            yield from reader.read(Part.OBJECTS).objects.values()
