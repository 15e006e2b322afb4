# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read a work directory in a process of its own, which its parent ends when that takes too long:
``python -m kcovdbg.farm.workdir_worker``.

Each line of standard input is a JSON array: the name of a function and its arguments. Each line of
standard output is its result, or an error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

from kcovdbg.crash.crash_summary import CrashSummary
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.farm.syzkaller_workdir import find_manager, find_program, names_another_task, read_log
from kcovdbg.limits import hold_memory
from kcovdbg.records.crash_report import summarize_report
from kcovdbg.records.log_text import decode_log
from kcovdbg.target.end_signals import reading


def _find(name: str, named: list[str]) -> dict[str, object]:
    """Return a manager's files and its crashes.

    :param name: the working directory or the configuration.
    :param named: files and directories of images that the user named.
    """
    manager = find_manager(name, named)
    return {"manager": manager, "crashes": manager.crashes()}


def _read_texts(
    report: str | None, log: str | None, located: str | None, pid: int | None, comm: str | None
) -> dict[str, object]:
    """Return what the report and the log of a crash say.

    :param located: the report with source lines, which was written about it.
    :param pid: thread id of the task that crashed, if a dump shows it; with ``comm``, its name.
    """
    summary = CrashSummary()
    if report is not None:
        summary = _summarize(report)
    if located is not None:
        found = _summarize(located)
        if found.function == summary.function and found.file is not None:
            summary = replace(summary, file=found.file, line=found.line)
    texts = {"summary": asdict(summary), "is_other": False, "program": None, "is_last": False}
    if log is None:
        return texts
    text = read_log(Path(log))
    if pid is not None and comm is not None and names_another_task(text, pid, comm):
        return {**texts, "is_other": True}
    program = find_program(text, comm or summary.comm)
    if program is None and comm is None:
        texts["is_last"] = True
        program = find_program(text, None)
    texts["program"] = program
    return texts


def _summarize(report: str) -> CrashSummary:
    found = summarize_report(decode_log(report, read_log(Path(report))))
    task, origin = found.task, found.origin
    summary = CrashSummary(syscall=found.syscall)
    if task is not None:
        summary = replace(summary, pid=task.pid, comm=task.comm)
    if origin is not None:
        summary = replace(summary, function=origin.function, file=origin.file, line=origin.line)
    if found.problem is not None:
        summary = replace(summary, errors=(found.problem,))
    return summary


_FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    "find": _find,
    "read_texts": _read_texts,
}


def _answer(name: str, arguments: list[Any]) -> dict[str, object]:
    try:
        with hold_memory("the work directory"), reading("the work directory"):
            return {"result": _FUNCTIONS[name](*arguments)}
    except KcovdbgError as error:
        return {
            "error": str(error),
            "hint": error.hint,
            "wrong_file": error.wrong_file,
            "is_usage": isinstance(error, UsageError),
        }
    except OSError as error:
        said = error.strerror or str(error)
        return {"error": said, "hint": None, "wrong_file": None, "is_usage": False}


def main() -> int:
    """Answer until standard input ends."""
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(_answer(name, arguments), default=os.fspath) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
