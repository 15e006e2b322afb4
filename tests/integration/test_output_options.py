# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every command honors every output option that its help lists, and refuses those that it does not
list.
"""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from kcovdbg.commands import COMMANDS
from kcovdbg.console.command import parse_arguments
from kcovdbg.errors import UsageError
from tests.lab.kcovdbg_run import run_lines

# A line for each command, on the demo.
LINES = {
    "areas": "areas",
    "buffer": "buffer 41",
    "check": "check --list",
    "config": "config",
    "diff": "diff 41 34",
    "doctor": "doctor",
    "help": "help",
    "info": "info",
    "last": "last 41",
    "objects": "objects",
    "saved": "saved",
    "points": "points vfs_read",
    "remote": "remote",
    "sites": "sites",
    "source": "source 41",
    "sym": "sym ffffffff811f3519 ffffffff811f3520",
    "symbols": "symbols info",
    "tasks": "tasks",
    "top": "top 41",
    "trace": "trace 41",
    "view": "view 41 34 --text",
    "why": "why 41",
}
# They act on a machine or on files, or need a buffer that the demo's kernel does not have; tests of
# their own run them.
ELSEWHERE = frozenset(
    "batch catch collect demo export jobs keep log monitor patch report resume slice syzkaller".split()
)


def listed(name: str) -> frozenset[str]:
    return frozenset(
        option
        for argument in COMMANDS.find(name).options
        for option in argument.names
        if argument.is_option
    )


def test_every_command_is_here() -> None:
    without = {command.name for command in COMMANDS if "--json" not in listed(command.name)}
    assert {command.name for command in COMMANDS} == LINES.keys() | ELSEWHERE | without


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_what_is_not_listed_is_refused(name: str) -> None:
    command = COMMANDS.find(name)
    for option in ("--json", "--csv", "--wide", "-n"):
        if option not in listed(name) and not command.takes_rest:
            with pytest.raises(UsageError):
                parse_arguments(command, [option])


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, str], str]:
    """Return what each command writes for each of its options."""
    asked: list[tuple[str, str]] = []
    for name, line in LINES.items():
        options = ("--json", "--jsonl", "--csv", "--wide", "--vertical", "--json -n 1")
        asked += [(name, f"{line} {option}") for option in options]
    return dict(
        zip(asked, run_lines(["--demo"], *(line for _, line in asked), timeout=300), strict=True)
    )


@pytest.mark.parametrize("name", LINES)
def test_every_output_option(name: str, answers: dict[tuple[str, str], str]) -> None:
    found = {line: text for (command, line), text in answers.items() if command == name}
    as_json, as_lines, as_csv, wide, vertical, one = found.values()
    rows = json.loads(as_json)
    assert rows
    assert [json.loads(line).keys() for line in as_lines.splitlines()] == [
        row.keys() for row in rows
    ]
    table = list(csv.DictReader(io.StringIO(as_csv)))
    assert (len(table), list(table[0])) == (len(rows), list(rows[0]))
    assert wide.strip()
    assert vertical.strip()
    assert len(json.loads(one)) == 1


# Commands whose text is drawn: of the rows, or, for many rows at once, of groups of them.
DRAWN = {
    "check": r"(error|warning|transient|racing): \w+ .+: ",
    "diff 41 34": r" +\d+ +\d+  \S",
    "source 41": r" +\d* [+~!?] +\d+",
    "view 41 --text": r" *\d+ [0-9a-f]{16} ",
    "why kc-usb": r"- ",
}


def test_fewer_rows_as_text() -> None:
    """Headings and ends stay, rows are whole, and a note says how many more there are."""
    answers = run_lines(["--demo"], *(line + more for line in DRAWN for more in ("", " -n 1")))
    for (line, pattern), whole, one in zip(DRAWN.items(), answers[::2], answers[1::2], strict=True):
        # The width of a column depends on its rows.
        found, first = (
            [row.split() for row in text.splitlines() if re.match(pattern, row)]
            for text in (whole, one)
        )
        assert len(found) > 1
        assert first == found[:1]
        if line.startswith(("diff", "why")):
            assert one.splitlines()[0] == whole.splitlines()[0]
        assert str(len(found) - 1) in one.splitlines()[-1].split()
