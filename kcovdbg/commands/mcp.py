# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mcp``: commands for programs, as tools of the Model Context Protocol."""

from __future__ import annotations

import os
from argparse import Namespace
from pathlib import Path
from typing import Final

from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.errors import CapabilityError, KcovdbgError
from kcovdbg.inputs.trace_paths import FileConfinement
from kcovdbg.user_folder import expand_user


def _find_folder(name: str | None) -> Path | None:
    if name is None:
        return None
    folder = Path(os.path.realpath(expand_user(name)))
    if not folder.is_dir():
        raise KcovdbgError(f"mcp: '{name}' is not a directory", hint=f"mkdir -p {name}")
    return folder


def _find_trace(name: str) -> Path:
    path = Path(os.path.realpath(expand_user(name)))
    if not path.is_file():
        raise KcovdbgError(
            f"mcp: '{name}' is not a file",
            hint="-o DIR makes all trace files of a directory readable",
        )
    return path


def _run(context: Context, args: Namespace) -> None:
    serve = context.workspace.frontend.serve_tools
    if serve is None:
        raise CapabilityError(
            "mcp: only the program kcovdbg can serve tools", hint="kcovdbg -c VMCORE -s VMLINUX mcp"
        )
    serve(
        context.workspace,
        FileConfinement(_find_folder(args.output), tuple(map(_find_trace, args.traces))),
    )


COMMAND: Final = Command(
    name="mcp",
    summary="serve read-only commands to programs, through the Model Context Protocol",
    topic=Topic.MAINTENANCE,
    run=_run,
    description=(
        "A client starts this and speaks the protocol on standard input and output. The target is "
        "opened once. The tools are the state commands, buffer, trace, top, diff, source, points, "
        "patch, sym, last, log, why, check and, with -o, slice. No tool runs code, a shell or a "
        "pipeline. A long answer is cut; the argument next asks for the rest.\n\n"
        "Tools read trace files that are named here or are in DIR, and write slices into DIR. "
        "Source text comes from the directories of --source-dir and --substitute-path alone.\n\n"
        "Needs the package mcp: pip install 'kcovdbg[mcp]', or in a checkout .venv/bin/pip "
        "install -e '.[mcp]'."
    ),
    arguments=(
        Argument("-o, --output DIR", Value.FILE, "the directory for slices and trace files"),
        Argument("traces [TRACE…]", Value.FILE, "trace files that tools may read"),
    ),
    examples=(
        Example("mcp", "what a client starts, after the options that name a target"),
        Example("mcp -o /var/tmp/triage", "with a directory for slices and trace files"),
    ),
    needs=frozenset(),
    acts=True,
)
