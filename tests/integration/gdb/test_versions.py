# SPDX-License-Identifier: LGPL-2.1-or-later
"""The newest GDB: what it answers is what the system's GDB answers."""

from __future__ import annotations

import pytest

from tests.support.gdb_run import NEWEST_GDB, have_gdb, run_gdb

pytestmark = pytest.mark.skipif(
    not (have_gdb() and NEWEST_GDB.exists()), reason="needs gdb and the package gdb-for-pwndbg"
)
ASK = [
    "kcov-show tasks",
    "kcov-show buffer 34",
    "kcov-show check --json",
    "kcov-show bogus",
    "help kcov-show tasks",
    "complete kcov-show ta",
    "print $kcov_count(34)",
    "print *$kcov(34)",
    "print $kcov_task(34)->kcov_mode",
    "show kcov kaslr-offset",
]


def test_the_newest_gdb_answers_the_same(demo):
    newest, usual = (
        run_gdb(demo.vmlinux, demo.core, ask=ASK, program=program)
        for program in (str(NEWEST_GDB), "gdb")
    )
    assert newest.answers == usual.answers
    assert newest.stderr == usual.stderr
    assert newest.json(2)
