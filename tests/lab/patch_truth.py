# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compares the answers of ``patch`` with what a guest executed, by QEMU's log."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.frontends.cli import main
from tests.lab.execution_truth import Call
from tests.lab.test_executed_lines import Truth

DECIDED: Final = ("executed", "partly", "not-executed")
UNDECIDED: Final = ("undecided", "moved", "edges", "outside")
"""The reasons of lines with code whose state is unknown."""

_Line = tuple[str, int]


class JudgedPatch(NamedTuple):
    """What ``patch`` says of a diff."""

    rows: Sequence[dict[str, Any]]
    wrong: Sequence[tuple[str, int, str]]
    """File, line and state of those that the log contradicts."""
    seconds: float
    status: int

    @property
    def states(self) -> list[str]:
        """The state of each line, or the reason that it is unknown."""
        return [row["reason"] or row["state"] for row in self.rows]


class PatchTruth:
    """Compares what ``patch`` says with what was executed.

    :param tree: the source that the kernel was built from.
    """

    def __init__(self, truth: Truth, vmlinux: Path, tree: Path) -> None:
        self._truth = truth
        self._vmlinux = vmlinux
        self._tree = tree

    def find_functions(self, executed: Iterable[int]) -> list[int]:
        """Return the functions that addresses are in."""
        found = {self._truth.finder.find_function(address) for address in executed}
        return sorted(function for function in found if function is not None)

    def find_lines(self, functions: Sequence[int], executed: set[int]) -> dict[_Line, bool]:
        """Return the lines of functions, and whether an instruction of each was executed."""
        lines = self._truth.lines_of(functions, executed)
        return {(file.removeprefix("./"), line): was for (file, line), was in lines.items()}

    def judge(
        self, diff: Path, calls: Sequence[tuple[Call, Collection[int]]], folder: Path
    ) -> JudgedPatch:
        """Run ``patch`` on a diff, with each call as a trace.

        :param calls: with the addresses that each executed.
        :param folder: where the traces are written.
        """
        words = ["-s", str(self._vmlinux), "--source-dir", str(self._tree), "patch", str(diff)]
        for index, (call, _) in enumerate(calls):
            trace = folder / f"{diff.stem}-{index}.txt"
            trace.write_text("".join(f"{pc:#x}\n" for pc in call.records))
            words.append(f"file:{trace}")
        output = io.StringIO()
        start = time.monotonic()
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            status = main([*words, "--pc", "raw", "--json"])
        seconds = time.monotonic() - start
        rows = json.loads(output.getvalue())
        executed = {address for _, own in calls for address in own}
        return JudgedPatch(rows, self._find_wrong(rows, executed), seconds, status)

    def _find_wrong(
        self, rows: Sequence[dict[str, Any]], executed: set[int]
    ) -> list[tuple[str, int, str]]:
        lines = self.find_lines(self.find_functions(executed), executed)
        wrong = []
        for row in rows:
            place, state = (row["file"], row["built_line"] or row["line"]), row["state"]
            # Of lines of all other functions, not executed is right.
            ran = lines.get(place, False)
            is_wrong = False
            if state in ("executed", "partly"):
                is_wrong = not ran
            elif state in ("not-executed", "no-code"):
                is_wrong = ran
            if is_wrong:
                wrong.append((*place, state))
        return wrong
