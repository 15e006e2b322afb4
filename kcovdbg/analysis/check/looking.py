# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs the rules: over a kernel that stands still once, over one that runs until what disagrees has been seen to stay."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from kcovdbg.analysis.check import (
    areas,
    bitmaps,
    buffers,
    crossing,
    formats,
    handles,
    maps,
    objects,
    records,
    saved,
    series,
    tasks,
)
from kcovdbg.analysis.check.bugs import find_bugs, find_causes
from kcovdbg.analysis.check.evidence import Evidence, name_task
from kcovdbg.analysis.check.rule import Rule, Violation
from kcovdbg.model.finding import Certainty, Finding, Severity
from kcovdbg.target import Target
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import Layout

RULES: Final = (
    *objects.RULES,
    *tasks.RULES,
    *series.RULES,
    *saved.RULES,
    *handles.RULES,
    *areas.RULES,
    *buffers.RULES,
    *records.RULES,
    *maps.RULES,
    *bitmaps.RULES,
    *formats.RULES,
    *crossing.RULES,
)
"""Every invariant."""
# How often a running kernel is looked at again while something disagrees, and how long to wait before, in seconds: a section
# of a task may last as long as the device that it waits for.
_PAUSES: Final = (0.01, 0.05, 0.2, 0.5)
# One damaged list violates a rule once an element: nobody reads thousands of them, and the first ones tell what is wrong.
_SHOWN: Final = 20
# Of a kernel that runs, where another look has to meet the same ones again.
_COMPARED: Final = 4096
# How far the rest is counted: a hash whose chains have no end has a hundred thousand objects, each of which violates ten rules.
_COUNTED: Final = 1 << 14
_Left: TypeAlias = Counter[tuple[str, Severity]]


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found."""

    findings: tuple[Finding, ...]
    """Of each rule and severity the first ones; one with ``more`` follows and says how many were left out."""
    applied: int
    """How many rules this kernel's generation has."""
    looks: int
    settled: int
    """Disagreements of a running kernel that were gone when they were looked at again."""
    remarks: tuple[str, ...]
    """What couldn't be read, so that nothing is said of it."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks, and what came of looking again."""
        if not self.settled:
            return self.remarks
        gone = (
            "1 disagreement was gone when it was"
            if self.settled == 1
            else f"{self.settled} disagreements were gone when they were"
        )
        return (*self.remarks, f"{gone} looked at again: the kernel runs")

    @property
    def violated(self) -> bool:
        """Whether something is wrong for sure."""
        return self.violations > 0

    @property
    def violations(self) -> int:
        """How many there are, those that are left out too."""
        return sum(finding.more or 1 for finding in self.findings if finding.severity.is_violation)

    @property
    def is_least(self) -> bool:
        """Whether there may be more findings than that."""
        return any(finding.is_least for finding in self.findings)

    @property
    def others(self) -> int:
        """How many findings there are that are no violations."""
        return sum(finding.more or 1 for finding in self.findings if not finding.severity.is_violation)


def find_rule(name: str) -> Rule | None:
    """Return the rule with this name, None where there is none."""
    return next((rule for rule in RULES if rule.name == name.upper()), None)


def check(
    target: Target,
    layout: Layout,
    census: Census,
    *,
    advice: bool = False,
    wanted: Collection[str] = (),
    about: Collection[str] = (),
    pause: Callable[[float], None] = time.sleep,
) -> Report:
    """Check a kernel's KCOV state.

    :param census: a look at it, the first one.
    :param advice: report what is legal, and hardly what anybody wants, too.
    :param wanted: names of rules; all when it is empty.
    :param about: objects; findings about all when it is empty.
    :param pause: waits before a running kernel is looked at again.
    """
    chosen = [
        rule
        for rule in RULES
        if rule.applies(layout.generation)
        and (advice or rule.severity is not Severity.ADVICE)
        and (not wanted or rule.name in wanted)
    ]
    evidence = Evidence(target, layout, census)
    most = _COMPARED if target.live else _SHOWN
    left: _Left = Counter()
    cut: set[str] = set()
    findings = list(_look(chosen, evidence, advice, about, most, left, cut))
    first = len(findings)
    looks = 1
    for seconds in _PAUSES if target.live else ():
        if not findings:
            break
        pause(seconds)
        census = Census(target, layout)
        evidence = Evidence(target, layout, census)
        left, cut = Counter(), set()
        disagreeing = {found.rule for found in findings}
        again = list(_look([rule for rule in chosen if rule.name in disagreeing], evidence, advice, about, most, left, cut))
        findings = list(_compare(findings, again))
        looks += 1
    remarks = tuple(dict.fromkeys((*census.remarks(), *evidence.remarks())))
    return Report(tuple(_shorten(chosen, findings, left, cut)), len(chosen), looks, first - len(findings), remarks)


_DOUBTS: Final = (Certainty.CERTAIN, Certainty.LIKELY, Certainty.UNSURE)


def _shorten(rules: Iterable[Rule], findings: Iterable[Finding], left: _Left, cut: Collection[str]) -> Iterator[Finding]:
    """Leave out what is one too many of a kind, and say how much that is.

    :param cut: the rules whose findings weren't counted to the end.
    """
    of_rules: dict[str, list[Finding]] = {}
    for finding in findings:
        of_rules.setdefault(finding.rule, []).append(finding)
    for rule in rules:
        shown: Counter[Severity] = Counter()
        more: Counter[Severity] = Counter({severity: count for (name, severity), count in left.items() if name == rule.name})
        doubts: dict[Severity, Finding] = {}
        for finding in of_rules.get(rule.name, ()):
            # What is left out is no surer than the least sure of those that are shown.
            doubt = doubts.setdefault(finding.severity, finding)
            if _DOUBTS.index(finding.certainty) > _DOUBTS.index(doubt.certainty):
                doubts[finding.severity] = finding
            if shown[finding.severity] < _SHOWN:
                shown[finding.severity] += 1
                yield finding
            else:
                more[finding.severity] += 1
        for severity, count in more.items():
            yield Finding(
                rule.name,
                severity,
                f"{'at least ' if rule.name in cut else ''}{count} more",
                "they are of the same kind, and left out",
                (("more", str(count)),),
                doubts[severity].certainty if severity in doubts else Certainty.CERTAIN,
                doubts[severity].reason if severity in doubts else None,
                more=count,
                is_least=rule.name in cut,
            )


def _compare(before: Iterable[Finding], after: Iterable[Finding]) -> Iterator[Finding]:
    """Keep what is still there; where its values aren't the same any more, the kernel was changing it."""
    left = {(finding.rule, finding.object): finding for finding in before}
    for finding in after:
        known = left.get((finding.rule, finding.object))
        if known is None:
            continue
        if known.severity is Severity.RACING or (known.message, known.values) != (finding.message, finding.values):
            yield finding._replace(
                severity=Severity.RACING, reason="the kernel runs, and it changed while it was looked at", causes=()
            )
        else:
            yield finding


def _look(
    rules: Iterable[Rule], evidence: Evidence, advice: bool, about: Collection[str], most: int, left: _Left, cut: set[str]
) -> Iterator[Finding]:
    """Yield what rules find, of each rule and severity the first ones.

    :param left: takes how many more there are.
    :param cut: takes the rules that are left before their end, as there are too many.
    """
    generation = evidence.layout.generation
    for rule in rules:
        found: Counter[Severity] = Counter()
        for violation in rule.check(evidence):
            if about and violation.object not in about:
                continue
            severity = violation.severity or rule.severity
            if severity is Severity.ADVICE and not advice:
                continue
            reason, certainty = violation.reason, violation.certainty
            if severity.is_violation:
                excuse = _excuse(violation, evidence) or _find_doubtful_object(rule, violation, evidence)
                if excuse is not None:
                    severity, reason = Severity.TRANSIENT, excuse
                    certainty = Certainty.UNSURE
                elif certainty is Certainty.CERTAIN and generation.missing:
                    # What a rule compares may be what couldn't be read.
                    certainty, reason = Certainty.UNSURE, f"the debug info lacks {', '.join(generation.missing)}"
            found[severity] += 1
            if found[severity] > most:
                left[rule.name, severity] += 1
                if found.total() >= _COUNTED:
                    cut.add(rule.name)
                    break
                continue
            bugs = find_bugs(rule.name, generation, is_rt=evidence.is_rt) if severity.is_violation else ()
            causes = find_causes(bugs, rule.name, certainty)
            yield Finding(rule.name, severity, violation.object, violation.message, violation.values, certainty, reason, causes)


# By these an object is found that no task, table, mapping or handle leads to.
_SLAB_ROADS: Final = frozenset(("file", "vmalloc"))


def _find_doubtful_object(rule: Rule, violation: Violation, evidence: Evidence) -> str | None:
    """Say which object may have been freed: on a running kernel free slab objects can't be told from others for sure."""
    if not evidence.target.live or rule.about_leaks:
        return None
    for address in violation.kcovs:
        kcov = evidence.objects.get(address)
        if kcov is not None and kcov.found_by and _SLAB_ROADS.issuperset(kcov.found_by):
            return f"kcov {address:#x} was found in slab memory alone, and may have been freed"
    return None


def _excuse(violation: Violation, evidence: Evidence) -> str | None:
    """Say why somebody may be about to put it right, None where nobody is."""
    for kcov in violation.kcovs:
        if evidence.lock_held(kcov):
            return f"the lock of kcov {kcov:#x} is held: somebody is changing it"
    if violation.remote_lock and evidence.remote_lock_held:
        return "kcov_remote_lock is held: somebody is changing handles or areas"
    for address in violation.tasks:
        function = evidence.kcov_function(address) if address in evidence.running else None
        if function is not None:
            task = evidence.task_by_address.get(address)
            return f"{name_task(task.fields) if task else hex(address)} is inside {function}(), which is changing it"
    if violation.anybody and len(evidence.busy) >= violation.most:
        address, function = evidence.busy[0]
        task = evidence.task_by_address.get(address)
        named = name_task(task.fields) if task is not None else hex(address)
        return f"{named} is inside {function}(), which may hold what isn't linked yet, or not any more"
    return None
