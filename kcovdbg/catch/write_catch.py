# SPDX-License-Identifier: LGPL-2.1-or-later
"""Catch the write that breaks a rule: find the memory of a field, run the kernel under watchpoints,
and judge each write where it happened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from kcovdbg.abi.generations import AREA, KCOV, TASK
from kcovdbg.check.kcov_functions import (
    find_kcov_function,
    find_kcov_writer,
    is_context_switch,
    is_innocent,
)
from kcovdbg.check.runner import check, find_violations, list_rules
from kcovdbg.errors import CapabilityError, KcovdbgError, MissingSymbolError, UsageError
from kcovdbg.limits import renew_time_for_replies
from kcovdbg.model.finding import Finding
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.state import Part, State
from kcovdbg.target.connection import time_left
from kcovdbg.target.target import Member, Target
from kcovdbg.target.watchpoints import MemorySpan, RunEnd, Watchpoints
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.remote import read_area_lists
from kcovdbg.walk.state import StateReader

# Sizes that hardware watches.
_SIZES: Final = (1, 2, 4, 8)
_TASK_PREFIXES: Final = ("kcov", "saved_")
_UNWATCHED: Final = frozenset({"lock"})
# The groups of rules that a write to a structure may break, by their letters.
_GROUPS: Final[Mapping[str, str]] = {TASK: "TA", KCOV: "KT", AREA: "A"}
_MODE: Final = "kcov_mode"
_REFCOUNT: Final = "refcount"


class WatchedField(NamedTuple):
    """A field of one structure."""

    type_name: str
    address: int
    """Address of the structure."""
    field: str
    pid: int | None = None
    """Thread id of a task, which distinguishes it from a later task at the same address."""
    comm: str | None = None

    @property
    def structure(self) -> str:
        """The structure's name in messages."""
        if self.type_name == TASK:
            return name_task(self)
        if self.type_name == KCOV:
            return name_kcov(self.address)
        return f"area {self.address:#x}"

    @property
    def name(self) -> str:
        """The field's name in messages."""
        return f"{self.field} of {self.structure}"


def _find_spans(layout: Layout, watched: WatchedField) -> tuple[MemorySpan, ...]:
    """Return the memory of a field.

    :raises CapabilityError: when the debug info lacks the structure.
    :raises UsageError: when this kernel lacks the field, or the field cannot be watched.
    """
    type_name = watched.type_name
    block = {TASK: layout.task, KCOV: layout.kcov, AREA: layout.area}[type_name]
    if block is None:
        raise CapabilityError(f"the debug info has no {type_name}")
    fields: dict[str, tuple[Member, ...]] = {}
    for name, member in block.members.items():
        if member is None:
            continue
        is_kcovs = type_name != TASK or name.startswith(_TASK_PREFIXES)
        if type_name == AREA:
            # The list entry at the start of a free area is watched as a whole.
            fields["header"] = (*fields.get("header", ()), member)
        elif is_kcovs and member.size in _SIZES and name not in _UNWATCHED:
            fields[name] = (member,)
    if watched.field not in fields:
        raise UsageError(
            f"{type_name} has no field '{watched.field}' that can be watched",
            hint=f"one of {', '.join(fields)}",
        )
    members = fields[watched.field]
    return tuple(MemorySpan(watched.address + member.offset, member.size) for member in members)


class CaughtWrite(NamedTuple):
    """A write that broke a rule."""

    memory: int
    """The address that was written."""
    old: int
    new: int
    findings: Sequence[Finding]
    """The findings about it, at least one."""
    cpu: int | None
    pid: int | None
    """The CPU's task."""
    comm: str | None
    stack: Sequence[StackFrame]
    """The CPU's stack, innermost frame first."""
    reason: str | None = None
    """Why another CPU may have written; None if it is certain that this one did."""
    stack_problem: str | None = None
    """Why the stack lacks callers; None if it is complete."""


def catch_write(
    target: Target, layout: Layout, watched: WatchedField, seconds: float | None
) -> Catch:
    """Let the kernel run until a write breaks a rule.

    :param seconds: the time after which to give up; None for no limit.
    :raises CapabilityError: when the target has no hardware watchpoints.
    :raises KcovdbgError: when the field does not exist, or the machine ends.
    """
    if target.watchpoints is None:
        raise CapabilityError(
            f"{target.name} has no hardware watchpoints",
            hint="--gdb-remote ADDRESS, or kcov-show catch in GDB, has them",
        )
    catch = Catch(target, layout, target.watchpoints, watched)
    catch.run(seconds)
    return catch


class Catch:
    """An attempt to catch a write. It judges the writes to one field."""

    def __init__(
        self, target: Target, layout: Layout, watchpoints: Watchpoints, watched: WatchedField
    ) -> None:
        self._target = target
        self._layout = layout
        self._watchpoints = watchpoints
        self._watched = watched
        self._field_spans = _find_spans(layout, watched)
        self._groups = _GROUPS[watched.type_name]
        self._values: dict[MemorySpan, bytes] = {}
        self._is_free = True
        self.end = RunEnd.OTHER
        self.writes = 0
        """Number of writes that were judged."""
        self.caught: CaughtWrite | None = None
        self.reason: str | None = None
        """Why no write can be caught any more; None if one can be."""
        self.broken_before: Sequence[Finding] = ()
        """Findings at the start."""
        self.broken_after: Sequence[Finding] = ()
        """Findings at the end, if no write was caught."""

    def run(self, seconds: float | None) -> None:
        """Let the kernel run until a write breaks a rule, or the field is gone."""
        self.broken_before = self._find_violations(self._target)
        start = time.monotonic()
        self._is_free = self._watched.type_name != AREA or self._is_listed()
        while True:
            renew_time_for_replies()
            # A section may write to the area that it uses. Until the area is free again, the heads
            # of the lists are watched instead.
            is_free = self._is_free
            spans, judge = self._field_spans, self._judge
            if not is_free:
                spans, judge = self._find_heads(), self._is_listed_again
            self._values = self._read(spans)
            self.end = self._watchpoints.run(spans, judge, time_left(start, seconds))
            if self.end is not RunEnd.WRITE or self._is_free is is_free:
                if self.caught is None and self.reason is None:
                    self.broken_after = self._find_missed()
                return

    def _find_missed(self) -> tuple[Finding, ...]:
        """Return violations that are not transient, which a missed write has left: the writes of
        two CPUs at once are seen as one write.
        """
        rules = [
            rule.name
            for rule in list_rules()
            if rule.name[0] in self._groups and rule.severity.is_violation
        ]
        report = check(StateReader(self._target, self._layout), wanted=rules)
        found = _without(report.findings, self.broken_before)
        return tuple(one for one in found if one.severity.is_violation and not one.more)

    def _read(self, spans: Iterable[MemorySpan]) -> dict[MemorySpan, bytes]:
        return {span: self._target.read(span.address, span.size) for span in spans}

    def _is_listed(self) -> bool:
        areas = read_area_lists(self._target, self._layout).found.areas
        return any(area.address == self._watched.address for area in areas)

    def _is_listed_again(self) -> bool:
        self._is_free = self._is_listed()
        return self._is_free

    def _find_heads(self) -> tuple[MemorySpan, ...]:
        """Return the links to the first free areas, which change when an area is freed."""
        try:
            heads = self._target.symbol("kcov_remote_areas")
        except MissingSymbolError as error:
            raise KcovdbgError(f"cannot see when the area is free: {error}") from None
        size = self._target.word_size
        count = max(heads.size // (2 * size), 1)
        return tuple(MemorySpan(heads.address + index * 2 * size, size) for index in range(count))

    def _judge(self) -> bool:
        """Judge the last write; return whether to stop there."""
        before, self._values = self._values, self._read(self._values)
        self.writes += 1
        for span, old in before.items():
            if old != self._values[span]:
                return self._judge_change(span, old, self._values[span])
        return False

    def _judge_change(self, span: MemorySpan, old: bytes, new: bytes) -> bool:
        """Return whether to stop at a write that changed some memory.

        The scheduler may change its flag, and KCOV its fields. If the CPU that stopped cannot have
        made the change, another CPU wrote at the same moment.
        """
        function = self._target.symbol_name(self._watchpoints.pc - 1)
        if is_context_switch(function):
            if self._changes_only_flags(old, new):
                return False
            return self._breaks(span, old, is_other=True)
        is_own = find_kcov_function([StackFrame(0, function, None, None, None, False)]) is not None
        if not is_own and find_kcov_writer(self._watchpoints.stack()) is None:
            return self._breaks(span, old)
        if not self._is_plausible(self._number(old), self._number(new)):
            return self._breaks(span, old, is_other=True)
        return self._is_end_of_life()

    def _is_plausible(self, old: int, new: int) -> bool:
        """Return whether a write by KCOV itself may have made this change of the field."""
        if self._watched.field == _REFCOUNT:
            return abs(new - old) == 1
        if self._watched.field == _MODE:
            numbers = self._layout.mode_numbers
            mode, _ = numbers.split(new & ~self._layout.mode_flags)
            return not numbers.values or mode in numbers.values
        return True

    def _changes_only_flags(self, before: bytes, after: bytes) -> bool:
        if self._watched.field != _MODE:
            return False
        return not (self._number(before) ^ self._number(after)) & ~self._layout.mode_flags

    def _number(self, data: bytes) -> int:
        return int.from_bytes(data, self._target.byte_order)

    def _is_end_of_life(self) -> bool:
        """Return whether the field cannot be watched any more after KCOV's own write."""
        if self._watched.type_name == AREA:
            self._is_free = self._is_listed()
            return not self._is_free
        is_zero = not any(any(value) for value in self._values.values())
        if self._watched.field == _REFCOUNT and is_zero:
            self.reason = f"{self._watched.structure} was freed"
        return self.reason is not None

    def _breaks(self, span: MemorySpan, before: bytes, *, is_other: bool = False) -> bool:
        """Return whether a write that is not KCOV's own breaks a rule, or the structure is gone.

        :param is_other: whether another CPU wrote, and not the one that stopped.
        """
        reader = StateReader(self._target, self._layout)
        self.reason = self._find_end(reader.read(Part.TASKS | Part.OBJECTS))
        if self.reason is not None:
            return True
        broken = find_violations(reader, self._groups)
        if not broken:
            return False
        # Rules that the old value breaks as well were broken before.
        as_before = cast("Target", _Overlaid(self._target, span.address, before))
        broken = _without(broken, self._find_violations(as_before))
        if not broken:
            return False
        state = reader.read(Part.CURRENT | Part.TASKS)
        cpu, stack, reason = self._find_writer(is_other=is_other)
        pid = comm = None
        if cpu is not None:
            task = state.task_by_address.get(state.current.get(cpu, 0))
            if task is not None:
                pid, comm = task.pid, task.comm
        self.caught = CaughtWrite(
            span.address,
            self._number(before),
            self._number(self._values[span]),
            broken,
            cpu,
            pid,
            comm,
            stack,
            reason,
            self._watchpoints.stack_problem(),
        )
        return True

    def _find_writer(
        self, *, is_other: bool
    ) -> tuple[int | None, Sequence[StackFrame], str | None]:
        """Return the CPU that wrote, its stack, and the reason if that is not certain."""
        if not is_other:
            return self._watchpoints.cpu, self._watchpoints.stack(), None
        others: list[tuple[int, Sequence[StackFrame]]] = []
        for cpu, stack in self._watchpoints.other_stacks():
            if stack and not is_innocent(stack):
                others.append((cpu, stack))
        if len(others) == 1:
            reason = "two CPUs wrote at once; the other one is KCOV's own or the scheduler's"
            return *others[0], reason
        reason = (
            "the write of this CPU is legal, and another one was not reported, as when two CPUs "
            "write at once"
        )
        return self._watchpoints.cpu, self._watchpoints.stack(), reason

    def _find_end(self, state: State) -> str | None:
        """Return why the structure is gone, None while it exists."""
        watched = self._watched
        if watched.type_name == TASK:
            task = state.task_by_address.get(watched.address)
            if task is None or task.pid != watched.pid:
                return f"{watched.structure} has ended"
        elif watched.type_name == KCOV and watched.address not in state.objects:
            return f"{watched.structure} was freed"
        return None

    def _find_violations(self, target: Target) -> tuple[Finding, ...]:
        return find_violations(StateReader(target, self._layout), self._groups)


def _without(findings: Iterable[Finding], known: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that have another rule or object than each known finding."""
    pairs = {(finding.rule, finding.object) for finding in known}
    return tuple(finding for finding in findings if (finding.rule, finding.object) not in pairs)


class _Overlaid:
    """A target with some bytes of its memory replaced."""

    def __init__(self, target: Target, address: int, data: bytes) -> None:
        self._target = target
        self._address = address
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def read(self, address: int, size: int) -> bytes:
        data = bytearray(self._target.read(address, size))
        for offset, byte in enumerate(self._data, self._address - address):
            if 0 <= offset < size:
                data[offset] = byte
        return bytes(data)
