# SPDX-License-Identifier: LGPL-2.1-or-later
"""The README's session has the demo's real answers."""

import re

from tests.lab.kcovdbg_run import ROOT, run_kcovdbg

SESSION = re.compile(r"```console\n\$ (?P<start>.*?)\n(?P<session>.*?)```", re.DOTALL)


def read_session():
    match = SESSION.search((ROOT / "README.md").read_text())
    assert match is not None
    exchanges = match["session"].split("kcovdbg> ")[1:]
    return match["start"].split()[1:], [exchange.partition("\n")[::2] for exchange in exchanges]


def test_the_session_is_real(monkeypatch):
    start, exchanges = read_session()
    assert len(exchanges) >= 3
    words = [word for command, _ in exchanges for word in ("-e", command, "-e", "! echo @@@")]
    monkeypatch.delenv("COLUMNS", raising=False)
    done = run_kcovdbg(*start, *words)
    assert done.returncode == 0, done.stderr
    for (command, shown), answer in zip(exchanges, done.stdout.split("@@@\n")[:-1], strict=True):
        assert [line.rstrip() for line in answer.splitlines()] == [line.rstrip() for line in shown.splitlines()], command


def test_the_commands_are_the_makefiles():
    readme = (ROOT / "README.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    for goal in ("demo", "test"):
        assert re.search(rf"^make {goal}\b", readme, re.MULTILINE)
        assert re.search(rf"^{goal}:", makefile, re.MULTILINE)
