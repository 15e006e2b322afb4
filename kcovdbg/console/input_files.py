# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files that a run reads, which no output may overwrite."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator

from kcovdbg.console.argument import Value
from kcovdbg.console.buffer_sources import find_trace_operands
from kcovdbg.console.command import Command
from kcovdbg.console.workspace import Workspace
from kcovdbg.errors import KcovdbgError
from kcovdbg.records.trace_file import find_traces, side_path


def find_input_files(workspace: Workspace, command: Command, args: Namespace) -> Iterator[str]:
    """Iterate over the files that a command reads: the target's, the script, source files, and traces in its arguments."""
    yield from workspace.input_files()
    for argument in command.arguments:
        value = getattr(args, argument.attribute, None)
        words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        if argument.value is Value.BUFFER:
            for word in words:
                yield from _find_trace_files(word)
        elif argument.value is Value.FILE and not argument.is_output:
            yield from words


def _find_trace_files(word: str) -> Iterator[str]:
    """Iterate over the trace files that a word names, and their side files."""
    for name in find_trace_operands(word):
        with contextlib.suppress(KcovdbgError, OSError):
            for path in find_traces(name):
                yield str(path)
                yield str(side_path(path))
