# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rules of ``check``: invariants of KCOV's state. A rule is declared on the function that finds
its violations.

::

    @Rule(
        "R2",
        "a handle is in the hash bucket that its value selects",
        guaranteed_by="kcov_remote_add()",
        consequence="Sections under it record nothing, and it can be registered twice.",
        needs=Part.REMOTE,
        features=(Feature.REMOTE,),
    )
    def _check_bucket(state: State) -> Violations: ...
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from types import ModuleType
from typing import Any, Final, TypeAlias

from kcovdbg.abi.generations import Feature, Generation
from kcovdbg.model.finding import Certainty, Severity
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.state import BufferContents, Part, Source, State
from kcovdbg.model.task import Session, TaskFields

# Descriptions of the kernels that have a feature of mainline.
_KERNELS: Final[Mapping[str, str]] = {
    Feature.COMPARISONS: "v4.15 and later",
    Feature.CTXSW_FLAG: "v4.18 and later",
    Feature.REMOTE: "v5.5 and later",
    Feature.SOFTIRQ: "v5.8 and later",
    Feature.SAVED_PER_CPU: "v5.8 to v7.2",
    Feature.IRQ_AREA_PER_CPU: "v5.8 to v7.2",
    Feature.SAVED_IN_TASK: "August 2026 and later",
    Feature.AREA_LISTS: "August 2026 and later",
}


Shown: TypeAlias = tuple[tuple[str, str], ...]
"""The names and values of a finding as text."""


@dataclass(frozen=True, slots=True)
class Violation:
    """The report of a rule's function."""

    object: str
    """The subject: ``kcov 0xffff…``, ``task 41 (syz-executor)``."""
    message: str
    values: Shown = ()
    certainty: Certainty = Certainty.CERTAIN
    reason: str | None = None
    """Reason for the limited certainty."""
    kcovs: tuple[int, ...] = ()
    """Objects whose lock protects the inconsistent data."""
    tasks: tuple[int, ...] = ()
    """Tasks, ``struct task_struct *``, that change the inconsistent data themselves."""
    remote_lock: bool = False
    """Whether ``kcov_remote_lock`` protects the inconsistent data."""
    anybody: bool = False
    """Whether any task inside of KCOV may be about to resolve it."""
    most: int = 1
    """The number of such tasks that are needed to resolve it."""
    severity: Severity | None = None
    """The severity; None for the rule's."""


def kcov_violation(
    address: int,
    message: str,
    shown: Shown,
    certainty: Certainty = Certainty.CERTAIN,
    reason: str | None = None,
    **more: Any,
) -> Violation:
    """Return a violation about an object, whose lock protects the inconsistent data."""
    return Violation(name_kcov(address), message, shown, certainty, reason, (address,), **more)


def area_violation(
    address: int, message: str, shown: Shown = (), *, remote_lock: bool = True, **more: Any
) -> Violation:
    """Return a violation about an area; ``kcov_remote_lock`` protects the lists of areas."""
    shown = (*values(area=Hex(address)), *shown)
    return Violation(f"area {address:#x}", message, shown, remote_lock=remote_lock, **more)


def task_violation(fields: TaskFields, message: str, shown: Shown, **more: Any) -> Violation:
    """Return a violation about a task, which changes the inconsistent data itself."""
    return Violation(name_task(fields), message, shown, tasks=(fields.address,), **more)


def session_violation(state: State, session: Session, message: str, shown: Shown) -> Violation:
    """Return a violation about the task of a session. The message says whether the session is
    saved.
    """
    fields = state.task_by_address.get(session.task or 0)
    about = f"task {session.task or 0:#x}" if fields is None else name_task(fields)
    if session.is_saved:
        message = f"its saved session: {message}"
    kcovs = () if session.kcov is None else (session.kcov,)
    tasks = () if session.task is None else (session.task,)
    return Violation(about, message, shown, kcovs=kcovs, tasks=tasks)


def contents_violation(contents: BufferContents, message: str, shown: Shown) -> Violation:
    """Return a violation about the contents of a buffer. It is certain only if user space cannot
    write the buffer.
    """
    kcovs = (contents.kcov,)
    if contents.section is not None:
        tasks = (contents.section.address,)
        return Violation(contents.about, message, shown, kcovs=kcovs, tasks=tasks)
    reason = "user space can write its buffer"
    return Violation(
        contents.about, message, shown, Certainty.UNSURE, reason, kcovs, severity=Severity.WARNING
    )


Violations: TypeAlias = Iterator[Violation]
RuleFunction: TypeAlias = Callable[[State], Iterable[Violation]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One invariant. It decorates the function that finds violations, and takes its place."""

    name: str
    """``K1``; the letter stands for the group."""
    sentence: str
    """The invariant."""
    _: KW_ONLY
    severity: Severity = Severity.ERROR
    guaranteed_by: str
    """The kernel functions that maintain it."""
    needs: Part
    """The parts of the State that ``check`` reads."""
    consequence: str = ""
    """The consequence of a violation."""
    since: str = ""
    """Description of the kernels that keep it; empty for all kernels with the first feature."""
    features: Collection[str] = ()
    rests_on: Collection[Source] = ()
    """Further sources that must be whole, besides those of the parts that it needs."""
    stacks: Callable[[State], Iterable[int]] | None = None
    """Returns the tasks, ``struct task_struct *``, whose stacks ``check`` reads."""
    obstacle: Callable[[State], str | None] | None = None
    """Returns why the rule is not applied to a State, None if it is."""
    about_leaks: bool = False
    """Whether it detects leaks; then objects that were found only in slab memory are not doubted.
    """
    detail: str = ""
    """Legal states that look like a violation, and why they are legal."""
    check: RuleFunction = lambda _: ()

    def __call__(self, check: RuleFunction) -> Rule:
        """Return the rule with its function."""
        return replace(self, check=check)

    @property
    def kernels(self) -> str:
        """The kernels that keep it, in words."""
        return self.since or next((_KERNELS[feature] for feature in self.features), "all")

    def applies(self, generation: Generation) -> bool:
        """Return whether kernels of this generation keep the rule."""
        return all(map(generation.has, self.features))

    def unread(self, state: State) -> tuple[str, ...]:
        """Return a line for each structure that the rule needs and that could not be read."""
        unwound = () if self.stacks is None else self.stacks(state)
        stacks = (
            f"the stack of task {task:#x} could not be unwound"
            for task in unwound
            if state.stacks[task] is None
        )
        return (*state.unread(self.needs), *state.lacks(*self.rests_on), *stacks)


def rules_of(module: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that a module declares, in the order of their declaration."""
    return tuple(value for value in vars(module).values() if isinstance(value, Rule))


@dataclass(frozen=True, slots=True)
class KnownBug:
    """A bug of KCOV or of its callers that leaves a violation of rules (kcov-abi.md 12)."""

    title: str
    fixed: str
    """The first release without it."""
    rules: Collection[str]
    """The rules that it violates."""
    eras: Collection[str]
    """The generations that may have it."""
    marks: Collection[str] = ()
    """The rules that no other known bug violates in these generations."""
    needs_rt: bool = False
    needs: str | None = None
    """The feature of the posted series that has the bug; None for mainline."""

    def __str__(self) -> str:
        return f"{self.title} (fixed: {self.fixed})"


class Hex(int):
    """A number that is written in hexadecimal."""

    def __str__(self) -> str:
        return hex(self)


def values(**named: object) -> Shown:
    """Return the values of a finding as text; wrap addresses in :class:`Hex`.

    A trailing underscore of a name is dropped, and a double one becomes a dot.
    """
    return tuple((name.rstrip("_").replace("__", "."), str(value)) for name, value in named.items())
