# SPDX-License-Identifier: LGPL-2.1-or-later
"""``check``: which invariants of KCOV's state are violated."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Final

from kcovdbg.analysis.check.bugs import describe, find_bugs
from kcovdbg.analysis.check.looking import RULES, Report, check, find_rule
from kcovdbg.analysis.check.rule import Rule
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.command import Answer, Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.commands.suggest import suggest
from kcovdbg.model.finding import Finding, Severity
from kcovdbg.render.column import Column
from kcovdbg.render.kind import ANY, LIST, TEXT
from kcovdbg.render.renderable import Line, Lines, Record, Renderable, Table

_STYLES: Final = {Severity.ERROR: "error", Severity.WARNING: "warning"}

_VALUE_COLUMNS: Final = (Column("name"), Column("value"))
_CAUSE_COLUMNS: Final = (Column("bug"), Column("fixed"), Column("certainty"), Column("reason"))
_COLUMNS: Final = (
    Column("rule"),
    Column("severity", TEXT, style=lambda finding: _STYLES.get(finding.severity, "")),
    Column("object"),
    Column("message"),
    Column("certainty"),
    Column("reason"),
    Column(
        "values",
        ANY,
        value=lambda finding: [{"name": name, "value": value} for name, value in finding.values],
        items=_VALUE_COLUMNS,
    ),
    Column("cause"),
    Column("causes", ANY, items=_CAUSE_COLUMNS),
    Column("sentence", value=lambda finding: _rule(finding).sentence),
    Column("guarantee", value=lambda finding: _rule(finding).guarantee),
)
_RULE_COLUMNS: Final = (
    Column("rule", value=lambda rule: rule.name),
    Column("severity", TEXT),
    Column("sentence", elastic=40),
    Column("eras", elastic=12, priority=1),
    Column("guarantee", title="BY", elastic=16, priority=2),
    Column("detail", value=lambda rule: rule.detail or None, json_only=True),
    Column("bugs", LIST, value=lambda rule: [describe(bug) for bug in find_bugs(rule.name)], json_only=True),
)
_EXPLAIN_COLUMNS: Final = (
    Column("rule", value=lambda rule: rule.name, title="rule"),
    Column("severity", TEXT, title="severity"),
    Column("sentence", title="what holds"),
    Column("eras", title="kernels"),
    Column("guarantee", title="by"),
    Column("detail", value=lambda rule: rule.detail or None, title="legal"),
    Column(
        "bugs",
        LIST,
        value=lambda rule: [describe(bug) for bug in find_bugs(rule.name)],
        text=lambda rule: "; ".join(describe(bug) for bug in find_bugs(rule.name)) or None,
        title="known bugs",
    ),
)


def _rule(finding: Finding) -> Rule:
    rule = find_rule(finding.rule)
    assert rule is not None
    return rule


def _find(name: str) -> Rule:
    rule = find_rule(name)
    if rule is None:
        known = [rule.name for rule in RULES]
        raise WordError(f"no rule is called {name}", name, hint=suggest(name.upper(), known) or "check --list shows them")
    return rule


def _run(context: Context, args: Namespace) -> Answer:
    wanted = [_find(name) for name in args.rules]
    if args.explain is not None:
        return Record(_EXPLAIN_COLUMNS, _find(args.explain))
    if args.list:
        return Table(_RULE_COLUMNS, wanted or RULES)
    return _check(context, args, [rule.name for rule in wanted])


def _check(context: Context, args: Namespace, wanted: list[str]) -> Iterator[Renderable]:
    report = check(context.target, context.layout, context.census, advice=args.all or bool(wanted), wanted=wanted)
    context.status = 1 if report.violated else 0
    data = Table(_COLUMNS, report.findings)
    yield Lines(_lines(report), data=data, remarks=report.notes)


def _lines(report: Report) -> Iterator[Line]:
    for finding in report.findings:
        if finding.more:
            style = _STYLES.get(finding.severity, "remark")
            yield ((style, f"{finding.severity.value}: "), ("key", f"{finding.rule} "), ("", f"and {finding.object}"))
            continue
        yield (
            (_STYLES.get(finding.severity, "remark"), f"{finding.severity.value}: "),
            ("key", f"{finding.rule} "),
            ("header", f"{finding.object}: "),
            ("", finding.message),
        )
        yield (("remark", f"  {finding.rule}: {_rule(finding).sentence}"),)
        if finding.values:
            yield (("", "  " + "  ".join(f"{name}={value}" for name, value in finding.values)),)
        sure = finding.certainty.value + (f": {finding.reason}" if finding.reason else "")
        yield (("", f"  {sure}"),)
        for cause in finding.causes:
            yield (("", f"  known bug, {cause.certainty.value} ({cause.reason}): {cause}"),)
    violations, others = report.violations, report.others
    said = f"{violations} violations" if violations != 1 else "1 violation"
    said = f"at least {said}" if report.is_least else said
    tail = f", {others} other findings" if others > 1 else ", 1 other finding" if others else ""
    yield (("header" if violations else "remark", f"{report.applied} rules: {said if violations else 'none violated'}{tail}"),)


CHECK: Final = Command(
    name="check",
    summary="which invariants of KCOV's state are violated",
    run=_run,
    description=(
        "Compares all that KCOV keeps in tasks, objects, handles, areas, saved state and buffers with what the kernel's code "
        "guarantees in this generation. The exit status is 1 when something is violated.\n\n"
        "An error is what the kernel can't bring about by itself; a warning is what user space can, too. What may be about to "
        "be put right, as a lock is held or a task is inside KCOV, is transient. On a running kernel what disagrees is read "
        "again, a few times: what is gone then is no finding, what goes on changing is racing."
    ),
    arguments=(
        Argument(("rules",), Value.TEXT, "only these rules", count=Count.ANY, metavar="RULE"),
        Argument(("-a", "--all"), Value.FLAG, "what is legal, and hardly what anybody wants, too"),
        Argument(("--list",), Value.FLAG, "the rules"),
        Argument(("--explain",), Value.TEXT, "what a rule says, and which bugs violate it", metavar="RULE"),
    ),
    examples=(
        Example("check", "is KCOV's state what it should be?"),
        Example("check --json K1 X2", "is anything leaked? For a script"),
        Example("check --explain T4", "what does that rule say?"),
    ),
    needs=frozenset(),
)
