# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rules that ``check`` applies: invariants of KCOV's state, declared on the functions that look
for violations.

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

# The kernels that have a feature of mainline, for readers.
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
"""Names and values that a finding rests on, as text."""


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
    """Objects whose lock protects what disagrees."""
    tasks: tuple[int, ...] = ()
    """Tasks, ``struct task_struct *``, that change it themselves."""
    remote_lock: bool = False
    """Whether ``kcov_remote_lock`` protects it."""
    anybody: bool = False
    """Whether a KCOV call in flight, in any task, may still resolve it."""
    most: int = 1
    """How many such tasks are needed to resolve it."""
    severity: Severity | None = None
    """The severity, where it differs from the rule's."""


def kcov_violation(
    address: int,
    message: str,
    shown: Shown,
    certainty: Certainty = Certainty.CERTAIN,
    reason: str | None = None,
    **more: Any,
) -> Violation:
    """Return a violation about an object, whose lock protects what disagrees."""
    return Violation(name_kcov(address), message, shown, certainty, reason, (address,), **more)


def area_violation(
    address: int, message: str, shown: Shown = (), *, remote_lock: bool = True, **more: Any
) -> Violation:
    """Return a violation about an area; ``kcov_remote_lock`` protects the lists of areas."""
    shown = (*values(area=Hex(address)), *shown)
    return Violation(f"area {address:#x}", message, shown, remote_lock=remote_lock, **more)


def task_violation(fields: TaskFields, message: str, shown: Shown, **more: Any) -> Violation:
    """Return a violation about a task, which itself changes what disagrees."""
    return Violation(name_task(fields), message, shown, tasks=(fields.address,), **more)


def session_violation(state: State, session: Session, message: str, shown: Shown) -> Violation:
    """Return a violation about a session: its task is the object, and the message says whether the
    session is saved.
    """
    fields = state.task_by_address.get(session.task or 0)
    about = f"task {session.task or 0:#x}" if fields is None else name_task(fields)
    where = "its saved session: " if session.is_saved else ""
    kcovs = () if session.kcov is None else (session.kcov,)
    return Violation(
        about,
        where + message,
        shown,
        kcovs=kcovs,
        tasks=() if session.task is None else (session.task,),
    )


def contents_violation(contents: BufferContents, message: str, shown: Shown) -> Violation:
    """Return a violation about the contents of a buffer: certain only where user space cannot write
    it.
    """
    kcovs = (contents.kcov,)
    if contents.section is not None:
        return Violation(
            contents.about, message, shown, kcovs=kcovs, tasks=(contents.section.address,)
        )
    reason = "user space can write its buffer"
    return Violation(
        contents.about, message, shown, Certainty.UNSURE, reason, kcovs, severity=Severity.WARNING
    )


Violations: TypeAlias = Iterator[Violation]
RuleFunction: TypeAlias = Callable[[State], Iterable[Violation]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One invariant: a decorator of the function that looks for violations, which becomes the
    rule.
    """

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
    """The kernels that keep it, for readers, where these are not all that have the first of
    ``features``.
    """
    features: Collection[str] = ()
    rests_on: Collection[Source] = ()
    """Sources that it rests on besides those of the parts that it needs."""
    stacks: Callable[[State], Iterable[int]] | None = None
    """Returns the tasks, ``struct task_struct *``, whose stacks ``check`` reads."""
    obstacle: Callable[[State], str | None] | None = None
    """Returns why the rule cannot, or need not, be applied to a State; None where it is applied."""
    about_leaks: bool = False
    """Whether it detects leaks; then objects found only in slab memory count."""
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
        """Return what could not be read of all that the rule rests on."""
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
    """A bug of KCOV, or of one of its callers, that leaves a state which violates rules
    (kcov-abi.md 12).
    """

    title: str
    fixed: str
    """The first release without it."""
    rules: Collection[str]
    """The rules that it violates."""
    eras: Collection[str]
    """The generations that may have it."""
    marks: Collection[str] = ()
    """The rules that no other known bug violates on such a kernel."""
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
