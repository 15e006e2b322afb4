# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files that are named without a command: the command for its kind of file answers each, or it is
refused by name.

Nothing in such a file is run.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from kcovdbg.console.context import Workspace
from kcovdbg.console.runner import explain, report, run_words
from kcovdbg.console.terminal import write_remarks
from kcovdbg.errors import TargetError, UsageError
from kcovdbg.frontends.options import NamedInput
from kcovdbg.inputs.input_commands import find_commands, find_trace, quote
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.trace_paths import FILE
from kcovdbg.records.input_kind import FoundKind, InputKind
from kcovdbg.records.side_file import side_path


def refuse(path: str, found: FoundKind) -> UsageError:
    """Return the error of an input that no command answers.

    :param path: the path, as messages show it.
    """
    if found.kind is InputKind.PIPE:
        hint = (
            f"--script {path} runs the commands in it; top file:{path} reads a list; sym - < "
            f"{path} reads a log"
        )
    elif found.kind is InputKind.TEXT:
        hint = f"--script {path} runs the commands in it, if you wrote them"
    else:
        hint = found.hint or "kcovdbg help lists what can be read"
    return UsageError(f"'{path}' is {found.noun}: not run, and no command answers it", hint=hint)


def answer_inputs(workspace: Workspace, inputs: Sequence[NamedInput]) -> int:
    """Answer files one by one.

    :return: the highest exit status.
    """
    own = workspace.inputs.kernel
    unopened = Kernel(replace(own.options, open_target=_refuse_to_guess))
    status = 0
    for named in _without_side_files(inputs):
        # Only a side file says that a file is of the running kernel.
        has_side_file = side_path(Path(named.path)).is_file()
        is_known = own.options.is_named or (named.found.kind is InputKind.TRACE and has_side_file)
        workspace.inputs.kernel = own if is_known else unopened
        status = max(status, _answer(workspace, named))
    workspace.inputs.kernel = own
    return status


def _refuse_to_guess() -> NoReturn:
    raise TargetError(
        "no vmlinux is named", hint="kcovdbg -s VMLINUX FILE; -k means the running kernel"
    )


def _without_side_files(inputs: Sequence[NamedInput]) -> Iterator[NamedInput]:
    """Iterate over the inputs, with a trace in place of its side file: a shell's pattern names
    both.
    """
    seen: set[str] = set()
    for path, found in inputs:
        trace = find_trace(path)
        if found.kind is InputKind.SIDE_FILE and trace != path and Path(trace).is_file():
            path, found = trace, FoundKind(InputKind.TRACE, f"a trace, by its side file {path}")
        if path not in seen:
            seen.add(path)
            yield NamedInput(path, found)


def _answer(workspace: Workspace, named: NamedInput) -> int:
    """Answer a file and report its errors.

    :return: the exit status.
    """
    status = 0
    try:
        for words in _choose_commands(workspace, named):
            status = max(status, run_words(workspace, words))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - continue with the next file
        report(workspace, error)
        status = max(status, explain(error).status)
    return status


def _choose_commands(workspace: Workspace, named: NamedInput) -> Sequence[Sequence[str]]:
    """Return the commands that answer a file; a remark names its kind.

    :raises UsageError: when there is none.
    """
    answers = [
        words for words in find_commands(named.path, named.found) if words[0] in workspace.commands
    ]
    if not answers:
        raise refuse(named.path, named.found)
    if named.found.kind is InputKind.REPORT and not workspace.inputs.kernel.options.is_named:
        # The first command reads the report itself, without a kernel.
        del answers[1:]
    shown = "; ".join(" ".join(map(quote, words)) for words in answers)
    write_remarks(workspace.terminal(), [f"{named.path}: {named.found.noun}, answered by: {shown}"])
    return answers


def are_traces(inputs: Sequence[NamedInput]) -> bool:
    """Return whether all files are traces, which the shell can keep."""
    return all(named.found.kind is InputKind.TRACE for named in _without_side_files(inputs))


def keep_traces(workspace: Workspace, inputs: Sequence[NamedInput]) -> None:
    """Keep traces that are named beside a command or a script, under the names of their files.

    :raises UsageError: when a file is no trace.
    """
    terminal = workspace.terminal().with_stdout(io.StringIO())
    for path, found in _without_side_files(inputs):
        if found.kind is not InputKind.TRACE:
            raise UsageError(
                f"'{path}' ({found.noun}) cannot be combined with a command or a script",
                hint="give one of them",
            )
        name = re.sub(r"\W", "_", Path(path).name.partition(".")[0])
        run_words(workspace, ["keep", f"@{name}", f"{FILE}{path}"], terminal)
