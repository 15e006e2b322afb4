# SPDX-License-Identifier: LGPL-2.1-or-later
"""``check``: violated invariants of KCOV's state."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from kcovdbg.check.finding_text import count_findings, rule_of, word_finding
from kcovdbg.check.known_bugs import find_bugs
from kcovdbg.check.runner import Report, check, find_rule, list_rules
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.column import ANY, DETAIL, LIST, TEXT, Column, RowType
from kcovdbg.console.command import Command, CommandResult, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Drawing, Line, Lines, Renderable, Table
from kcovdbg.errors import WordError, suggest
from kcovdbg.model.finding import Severity
from kcovdbg.model.kcov import amount_text
from kcovdbg.model.rule import Rule

_STYLES: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNKNOWN: "warning"}

_SEVERITY: Final = (
    "`error`, `warning`, `advice` or `info`; of a finding also `transient`, `racing` or `unknown`"
)
_GUARANTEE: Final = "the kernel function that maintains it"
_VALUE_COLUMNS: Final = (
    Column("name", meaning="name of the value"),
    Column("value", meaning="the value as text"),
)
_CAUSE_COLUMNS: Final = (
    Column("bug", meaning="the bug"),
    Column("fixed", meaning="the commit that fixes it, or `not yet`"),
    Column("certainty", meaning="`likely` or `unsure`: how probable it is"),
    Column("reason", meaning="why it is considered", null="no reason is needed"),
)
_COLUMNS: Final = (
    Column("rule", meaning="name of the rule"),
    Column(
        "severity",
        TEXT,
        style=lambda finding: _STYLES.get(finding.severity, ""),
        meaning=_SEVERITY,
    ),
    Column("object", meaning="what the finding is about"),
    Column("message", meaning="what is wrong with it"),
    Column(
        "certainty",
        meaning="how certain the finding is: `certain`, `likely`, `unsure` or `unknown`",
    ),
    Column("reason", meaning="why it is not certain", null="it is certain"),
    Column(
        "values",
        ANY,
        value=lambda finding: [{"name": name, "value": value} for name, value in finding.values],
        items=_VALUE_COLUMNS,
        meaning="the values that the finding rests on",
    ),
    Column("cause", meaning="the most probable cause", null="none is known"),
    Column("causes", ANY, items=_CAUSE_COLUMNS, meaning="known bugs that can be the cause"),
    Column(
        "sentence", value=lambda finding: rule_of(finding).sentence, meaning="what the rule says"
    ),
    Column("guarantee", value=lambda finding: rule_of(finding).guaranteed_by, meaning=_GUARANTEE),
)
_RULE_COLUMNS: Final = (
    Column("rule", value=lambda rule: rule.name, meaning="name of the rule"),
    Column("severity", TEXT, meaning=_SEVERITY),
    Column("sentence", elastic=40, wraps=True, meaning="what the rule says"),
    Column(
        "consequence",
        value=lambda rule: rule.consequence or None,
        json_only=True,
        meaning="what a violation leads to",
    ),
    Column(
        "eras",
        value=lambda rule: rule.kernels,
        elastic=12,
        priority=DETAIL,
        meaning="kernels that the rule applies to",
    ),
    Column(
        "guarantee",
        value=lambda rule: rule.guaranteed_by,
        title="BY",
        elastic=16,
        priority=DETAIL + 1,
        meaning=_GUARANTEE,
    ),
    Column(
        "detail",
        value=lambda rule: rule.detail or None,
        json_only=True,
        meaning="legal state that looks like a violation, and what is not checked",
        null="there is none",
    ),
    Column(
        "bugs",
        LIST,
        value=lambda rule: [*map(str, find_bugs(rule.name))],
        text=lambda rule: "; ".join(map(str, find_bugs(rule.name))) or None,
        json_only=True,
        meaning="known bugs that violate the rule",
    ),
)
_EXPLAIN_TITLES: Final = {
    "eras": "kernels",
    "guarantee": "by",
    "detail": "note",
    "bugs": "known bugs",
}
_EXPLAIN_COLUMNS: Final = tuple(
    replace(column, title=_EXPLAIN_TITLES.get(column.key, column.key), json_only=False)
    for column in _RULE_COLUMNS
)


def _find(name: str) -> Rule:
    rule = find_rule(name)
    if rule is None:
        known = [rule.name for rule in list_rules()]
        raise WordError(
            f"unknown rule '{name}'",
            name,
            hint=suggest(name.upper(), known) or "check --list shows the rules",
        )
    return rule


def _run(context: Context, args: Namespace) -> CommandResult:
    wanted = [_find(name) for name in args.rules]
    if args.explain is not None:
        return Table(_EXPLAIN_COLUMNS, [_find(args.explain)], is_record=True)
    if args.list:
        return Table(
            _RULE_COLUMNS,
            wanted or list_rules(),
            show=("rule", "severity", "eras", "guarantee", "sentence"),
        )
    return _check(context, args, [rule.name for rule in wanted])


def _check(context: Context, args: Namespace, wanted: list[str]) -> Iterator[Renderable]:
    report = check(context.reader, advice=args.all or bool(wanted), wanted=wanted)
    context.status = report.status
    data = Table(_COLUMNS, report.findings)
    drawing = Drawing(len(report.findings), partial(_lines, report))
    yield Lines(drawing, data=data, remarks=report.remarks, is_prose=True)


def _lines(report: Report, most: int) -> Iterator[Line]:
    for finding in report.findings[:most]:
        if finding.severity is Severity.UNKNOWN and not finding.values:
            # The summary names the rule.
            continue
        head = (
            (_STYLES.get(finding.severity, "remark"), f"{finding.severity.value}: "),
            ("key", f"{finding.rule} "),
        )
        if finding.more:
            yield (*head, ("", f"and {finding.object}"))
            continue
        yield (*head, ("header", f"{finding.object}: "), ("", finding.message))
        words = word_finding(finding)
        yield (("remark", f"  {words.rule}"),)
        for text in filter(None, (words.values, words.certainty, *words.causes)):
            yield (("", f"  {text}"),)
    rules = amount_text(report.applied + len(report.unjudged), "rule")
    applied = f"{report.applied} of {rules}" if report.unjudged else rules
    style = "header" if report.status else "remark"
    yield ((style, f"{applied} applied: {count_findings(report)}"),)
    skipped = 0
    reasons: list[str] = []
    for count, reason in report.skipped:
        if count:
            skipped += count
            reasons.append(f"{count} ({reason})")
    if skipped:
        rules = amount_text(skipped, "rule")
        yield (("remark", f"{rules} not applied: {', '.join(reasons)}"),)


def _name_rules() -> Iterable[tuple[str, str]]:
    return ((rule.name, rule.sentence) for rule in list_rules())


COMMAND: Final = Command(
    name="check",
    summary="check the invariants of KCOV's state",
    topic=Topic.STATE,
    run=_run,
    row_types=(
        RowType(_COLUMNS, when="without `--list` and `--explain`"),
        RowType(_RULE_COLUMNS, when="with `--list`"),
        RowType(_EXPLAIN_COLUMNS, when="with `--explain`"),
    ),
    description=(
        "Compares KCOV's state in tasks, objects, handles, areas, saved state and buffers with "
        "what the kernel's code guarantees in this generation. The exit status is 1 if a rule is "
        "violated, and 3 if none is, but some could not be judged, because their data could not "
        "be read.\n\n"
        "An error cannot happen in a correct kernel; user space can cause a warning. A finding is "
        "transient if a lock is held, or a task is inside KCOV: the state may be about to become "
        "consistent. kcovdbg reads inconsistent state of a running kernel again a few times: a "
        "finding that disappears is dropped, one that keeps changing is racing. A finding is "
        "unknown if unread data may explain it; a rule is unknown if it could not be judged."
    ),
    arguments=(
        Argument(
            "rules [RULE…]", Value.TEXT, "check only these rules", find_candidates=_name_rules
        ),
        Argument("-a, --all", Value.FLAG, "also report legal but probably unintended state"),
        Argument("--list", Value.FLAG, "list the rules"),
        Argument(
            "--explain RULE",
            Value.TEXT,
            "show a rule and the known bugs that violate it",
            find_candidates=_name_rules,
        ),
    ),
    examples=(
        Example("check", "is KCOV's state consistent?"),
        Example("check --json K1 X2", "is anything leaked? as JSON"),
        Example("check --explain T4", "what does this rule say?"),
    ),
    needs=frozenset(),
)
