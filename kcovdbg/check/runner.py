# SPDX-License-Identifier: LGPL-2.1-or-later
"""Apply the rules: to a dump once, and to a live kernel several times, so that only violations that
persist are reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import groupby, islice
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple

from kcovdbg.check import areas, buffers, cross_object, handles, objects, saved, tasks
from kcovdbg.check.kcov_functions import find_kcov_function
from kcovdbg.check.known_bugs import find_causes
from kcovdbg.model.finding import Certainty, Finding, Severity
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.memory import StackFrame
from kcovdbg.model.rule import Rule, Violation, rules_of
from kcovdbg.model.state import KernelFacts, Part, StateSource
from kcovdbg.series import table

UNJUDGED: Final = 3
"""The exit status if no rule was violated, but some rule could not be judged."""
# Limit for the tasks whose stacks are searched for a function of KCOV, as unwinding is slow.
_MAX_STACKS: Final = 2000
_TASKS: Final = Part.TASKS | Part.CURRENT
# The references that the search of slab memory finds.
_FOUND_IN_SLABS: Final = frozenset(("file", "vmalloc"))


class TransienceSearch:
    """Finds the reason why a violation is transient. It reads only the parts that it needs.

    :param source: one look at a kernel.
    """

    def __init__(self, source: StateSource) -> None:
        self._read = cache(source.read)

    def find(self, violation: Violation) -> str | None:
        """Return why a violation may be resolved soon, None if nothing suggests that."""
        for kcov in violation.kcovs:
            if self._read(Part.OBJECTS).is_locked(kcov):
                return f"the lock of {name_kcov(kcov)} is held"
        if violation.remote_lock and self._read(Part.LOCKS).remote_lock_held is not False:
            unread = self._read(Part.LOCKS).unread(Part.LOCKS)
            if unread:
                return f"whether kcov_remote_lock is held is unknown: {unread[0]}"
            return "kcov_remote_lock is held"
        for address in violation.tasks:
            if address not in self._read(_TASKS).running:
                continue
            function = find_kcov_function(self._stack(address))
            if function is not None:
                return f"{self._name(address)} is inside {function}(), which may be changing it"
        if violation.anybody and len(self._busy) >= violation.most:
            address, function = self._busy[0]
            return f"{self._name(address)} is inside {function}(), which may not have linked it yet"
        return None

    def find_doubtful_object(self, violation: Violation) -> str | None:
        """Return why an object may have been freed, None if nothing suggests that. A free slab
        object of a live kernel may look allocated.
        """
        for address in violation.kcovs:
            kcov = self._read(Part.OBJECTS).objects.get(address)
            if kcov is None or kcov.fields is None or not kcov.found_by:
                continue
            if _FOUND_IN_SLABS.issuperset(kcov.found_by):
                return (
                    f"{name_kcov(address)} was found only in slab memory, and may have been freed"
                )
        return None

    def _name(self, address: int) -> str:
        fields = self._read(_TASKS).task_by_address.get(address)
        return f"task {address:#x}" if fields is None else name_task(fields)

    def _stack(self, address: int) -> Sequence[StackFrame] | None:
        return self._read(Part.NOTHING, stacks=(address,)).stacks[address]

    @cached_property
    def _busy(self) -> tuple[tuple[int, str], ...]:
        """The tasks inside a function of KCOV that may not have linked a reference or an area yet,
        each with the function.
        """
        state = self._read(_TASKS)
        every = (fields.address for fields in state.task_fields)
        running_first = dict.fromkeys((*state.running, *every))
        found: list[tuple[int, str]] = []
        for address in islice(running_first, _MAX_STACKS):
            stack = self._stack(address) or ()
            function = find_kcov_function(stack)
            if function is not None and not self._shows_reference(address, stack, function):
                found.append((address, function))
        return tuple(found)

    def _shows_reference(self, address: int, stack: Sequence[StackFrame], function: str) -> bool:
        """Return whether a task ends a section and still refers to its object: then it hides no
        reference.
        """
        task = self._read(_TASKS).tasks_with_state.get(address)
        if task is None or not function.startswith("kcov_remote_stop"):
            return False
        if task.fields.kcov_softirq:
            return True
        # A softirq section drops its reference after the interrupted session is restored.
        in_softirq = any("softirq" in (frame.function or "") for frame in stack)
        return not in_softirq and task.session.is_section


# The groups of rules in the order of their list; groups of posted series come before the last one.
_GROUPS: Final = (objects, tasks, saved, handles, areas, buffers, cross_object)
_LAST_GROUP: Final = "X"
# Pauses in seconds before an inconsistent live kernel is read again: a task's section lasts as long
# as it waits for a device.
_PAUSES: Final = (0.01, 0.05, 0.2, 0.5)
# Limit for the findings of a rule that are shown: a damaged list may violate a rule once per
# element.
_SHOWN: Final = 20
# Limit for the findings of a rule that are kept of a live kernel, to compare two looks.
_COMPARED: Final = 4096
# Limit for the findings of a rule that are counted: a looped hash has a hundred thousand objects,
# each of which violates ten rules.
_COUNTED: Final = 1 << 14
# The most certain first.
_CERTAINTIES: Final = list(Certainty)


@dataclass(slots=True)
class _Look:
    """The results of rules in one look at a kernel."""

    findings: list[Finding] = field(default_factory=list)
    """The first findings of each rule and severity."""
    left: Counter[tuple[str, Severity]] = field(default_factory=Counter)
    """The number of further findings of each rule and severity."""
    cut: set[str] = field(default_factory=set)
    """The rules whose findings were not all counted."""
    obstacles: Counter[str] = field(default_factory=Counter)
    """The number of rules that were not applied, by the reason."""
    unjudged: dict[str, str] = field(default_factory=dict)
    """For each rule that found no violation in incomplete data, what could not be read."""


class Report(NamedTuple):
    """The result of a check."""

    findings: tuple[Finding, ...]
    """The first findings of each rule and severity, then one finding that stands for the rest."""
    applied: int
    """How many rules were applied."""
    skipped: tuple[tuple[int, str], ...]
    """How many rules were not applied, by the reason."""
    remarks: tuple[str, ...]
    """Lines on unreadable data, which was not checked, and on violations in a live kernel that were
    gone in a later look.
    """
    unjudged: Mapping[str, str] = MappingProxyType({})
    """As :attr:`_Look.unjudged`."""

    @property
    def violations(self) -> int:
        """How many violations there are, with those that are left out."""
        return sum(finding.more or 1 for finding in self.findings if finding.severity.is_violation)

    @property
    def status(self) -> int:
        """The exit status: 1 for a violation, otherwise 3 if a rule could not be judged."""
        if self.violations:
            return 1
        if self.unjudged:
            return UNJUDGED
        return 0

    @property
    def unjudged_text(self) -> str:
        """How many rules could not be judged, and which ones for each reason."""
        of_reason: dict[str, list[str]] = {}
        for rule, reason in self.unjudged.items():
            of_reason.setdefault(reason, []).append(rule)
        named = "; ".join(f"{', '.join(rules)} ({reason})" for reason, rules in of_reason.items())
        return f"{len(self.unjudged)} could not be judged: {named}"


def list_rules() -> tuple[Rule, ...]:
    """Return every rule, also the rules of posted series, by group and number."""
    rules: list[Rule] = []
    for module in _GROUPS:
        rules += rules_of(module)
    for series in table.SERIES:
        rules += series.rules
    groups = list(dict.fromkeys(rule.name[0] for rule in rules))

    def order(rule: Rule) -> tuple[bool, int, int]:
        group, number = rule.name[0], int(rule.name[1:])
        return group == _LAST_GROUP, groups.index(group), number

    return tuple(sorted(rules, key=order))


def find_rule(name: str) -> Rule | None:
    """Return the rule with a name, None where there is none."""
    return next((rule for rule in list_rules() if rule.name == name.upper()), None)


def check(
    source: StateSource,
    *,
    advice: bool = False,
    wanted: Collection[str] = (),
    about: Collection[str] = (),
    pause: Callable[[float], None] = time.sleep,
) -> Report:
    """Check a kernel's KCOV state.

    :param source: the first look at the kernel.
    :param advice: whether to report legal but probably unintended state as well.
    :param wanted: names of rules; empty for all.
    :param about: objects, by their names in findings; empty for all.
    :param pause: waits before a live kernel is read again.
    """
    kernel = source.read(Part.NOTHING).kernel
    rules = [rule for rule in list_rules() if not wanted or rule.name in wanted]
    of_kernel = [rule for rule in rules if rule.applies(kernel.generation)]
    chosen = [rule for rule in of_kernel if advice or rule.severity is not Severity.ADVICE]
    skipped: tuple[tuple[int, str], ...] = (
        (len(rules) - len(of_kernel), "other kernels"),
        (len(of_kernel) - len(chosen), "advice, shown with -a"),
    )
    most = _COMPARED if kernel.live else _SHOWN
    look = _look(chosen, source, advice, about, most)
    unjudged = look.unjudged
    applied = len(chosen) - look.obstacles.total()
    skipped += tuple((count, obstacle) for obstacle, count in look.obstacles.items())
    findings = look.findings
    first = _count_known(findings)
    for seconds in _PAUSES:
        if not findings or not kernel.live:
            break
        pause(seconds)
        source = source.renew()
        names = {finding.rule for finding in findings}
        disagreeing = [rule for rule in chosen if rule.name in names]
        look = _look(disagreeing, source, advice, about, most)
        findings = list(_compare(findings, look.findings))
        unjudged = {rule: why for rule, why in unjudged.items() if rule not in names}
        unjudged |= look.unjudged
    remarks = dict.fromkeys(source.read(Part.NOTHING).notes)
    if settled := first - _count_known(findings):
        gone = "1 disagreement was" if settled == 1 else f"{settled} disagreements were"
        remarks[f"{gone} transient: gone when the kernel was read again"] = None
    return Report(
        tuple(_shorten(look, findings)), applied - len(unjudged), skipped, tuple(remarks), unjudged
    )


def _count_known(findings: Iterable[Finding]) -> int:
    return sum(finding.severity is not Severity.UNKNOWN for finding in findings)


def find_violations(source: StateSource, groups: Collection[str]) -> tuple[Finding, ...]:
    """Return the violations in one look at a kernel that was stopped at a write. Transient ones are
    not recognized.

    :param groups: the letters of the groups of rules to apply.
    """
    kernel = source.read(Part.NOTHING).kernel
    rules = [
        rule for rule in list_rules() if rule.name[0] in groups and rule.applies(kernel.generation)
    ]
    look = _look(rules, source, False, (), _SHOWN, finds_transient=False)
    return tuple(finding for finding in look.findings if finding.severity.is_violation)


def _shorten(look: _Look, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the first findings of each rule and severity, and a finding that stands for the rest.

    :param findings: the findings that persisted.
    """
    for name, of_rule in groupby(findings, key=attrgetter("rule")):
        # There may be further findings of a severity of which none of the first ones persisted.
        found: dict[Severity, list[Finding]] = {
            severity: [] for rule, severity in look.left if rule == name
        }
        for finding in of_rule:
            alike = found.setdefault(finding.severity, [])
            alike.append(finding)
            if len(alike) <= _SHOWN:
                yield finding
        for severity, alike in found.items():
            count = max(len(alike) - _SHOWN, 0) + look.left[name, severity]
            if not count:
                continue
            more = f"{count} more"
            rest = Finding(name, severity, more, "similar findings are left out", more=count)
            if name in look.cut:
                rest = rest._replace(object=f"at least {more}", is_least=True)
            if alike:
                # The rest is as certain as the least certain finding that is shown.
                least = max(alike, key=lambda finding: _CERTAINTIES.index(finding.certainty))
                rest = rest._replace(certainty=least.certainty, reason=least.reason)
            yield rest._replace(values=(("more", str(count)),))


def _compare(before: Iterable[Finding], after: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings that persist; those whose values changed become racing."""
    known_before = {(finding.rule, finding.object): finding for finding in before}
    for finding in after:
        known = known_before.get((finding.rule, finding.object))
        if known is None:
            continue
        has_changed = (known.message, known.values) != (finding.message, finding.values)
        is_racing = has_changed or known.severity is Severity.RACING
        if is_racing and Severity.UNKNOWN not in (finding.severity, known.severity):
            reason = "the kernel is live, and its state changed during the check"
            yield finding._replace(severity=Severity.RACING, reason=reason, causes=())
        else:
            yield finding


def _look(
    rules: Sequence[Rule],
    source: StateSource,
    advice: bool,
    about: Collection[str],
    most: int,
    *,
    finds_transient: bool = True,
) -> _Look:
    """Apply rules to one look at the kernel.

    :param most: limit for the findings of a rule and severity that are kept.
    :param finds_transient: whether to recognize transient violations.
    """
    parts = Part.NOTHING
    for rule in rules:
        parts |= rule.needs
    state = source.read(parts, about=about)
    stacks = [task for rule in rules if rule.stacks is not None for task in rule.stacks(state)]
    if stacks:
        state = source.read(parts, stacks=stacks, about=about)
    search = TransienceSearch(source) if finds_transient else None

    look = _Look()
    for rule in rules:
        obstacle = None if rule.obstacle is None else rule.obstacle(state)
        if obstacle is not None:
            look.obstacles[obstacle] += 1
            continue
        unread = rule.unread(state)
        found: Counter[Severity] = Counter()
        for violation in rule.check(state):
            severity = violation.severity or rule.severity
            if about and violation.object not in about:
                continue
            if severity is Severity.ADVICE and not advice:
                continue
            finding = _judge(rule, violation, severity, state.kernel, search)
            found[finding.severity] += 1
            if found[finding.severity] <= most:
                look.findings.append(finding)
                continue
            look.left[rule.name, finding.severity] += 1
            if found.total() >= _COUNTED:
                look.cut.add(rule.name)
                break
        if any(severity.is_violation for severity in found):
            continue
        if found[Severity.UNKNOWN]:
            look.unjudged[rule.name] = unread[0] if unread else _find_reason(look.findings, rule)
        elif unread:
            look.unjudged[rule.name] = unread[0]
            if not about:
                look.findings.append(_report_unjudged(rule, unread))
    return look


def _find_reason(findings: Iterable[Finding], rule: Rule) -> str:
    for finding in findings:
        is_unknown = finding.rule == rule.name and finding.severity is Severity.UNKNOWN
        if is_unknown and finding.reason:
            return finding.reason
    return "what it rests on could not be read"


def _report_unjudged(rule: Rule, unread: Sequence[str]) -> Finding:
    """Return the finding for a rule that could not be judged."""
    message = f"it could not be judged: {unread[0]}"
    if len(unread) > 1:
        message += f", and {len(unread) - 1} more"
    return Finding(
        rule.name, Severity.UNKNOWN, f"rule {rule.name}", message, (), Certainty.UNKNOWN, unread[0]
    )


def _judge(
    rule: Rule,
    violation: Violation,
    severity: Severity,
    kernel: KernelFacts,
    search: TransienceSearch | None,
) -> Finding:
    """Return a violation as a finding, with the known bugs that can cause it."""
    certainty, reason = violation.certainty, violation.reason
    message = violation.message
    if severity.is_violation and certainty is Certainty.UNKNOWN:
        severity = Severity.UNKNOWN
        message += " (unless what could not be read explains it)"
    if severity.is_violation:
        why_transient = None if search is None else search.find(violation)
        if search is not None and why_transient is None and kernel.live and not rule.about_leaks:
            why_transient = search.find_doubtful_object(violation)
        if why_transient is not None:
            severity, certainty, reason = Severity.TRANSIENT, Certainty.UNSURE, why_transient
        elif certainty is Certainty.CERTAIN and kernel.generation.missing:
            # The rule may compare members that the debug info lacks.
            certainty = Certainty.UNSURE
            reason = f"the debug info lacks {', '.join(kernel.generation.missing)}"
    causes = find_causes(rule.name, kernel, certainty) if severity.is_violation else ()
    return Finding(
        rule.name, severity, violation.object, message, violation.values, certainty, reason, causes
    )
