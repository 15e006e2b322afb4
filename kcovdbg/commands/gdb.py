# SPDX-License-Identifier: LGPL-2.1-or-later
"""``gdb`` and ``gdb-path``: the way to ``kcov-show`` inside GDB."""

from __future__ import annotations

import os
import signal
import subprocess
from argparse import Namespace
from pathlib import Path

from kcovdbg.commands.argument import Argument, Count, Value
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.errors import CapabilityError
from kcovdbg.render.renderable import Lines, text_lines


def loader_path() -> Path:
    """Return the file that GDB sources: in a checkout gdb/kcov.py, otherwise the copy that is installed with the package."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "gdb" / "kcov.py"
    return checkout if checkout.is_file() else package / "frontends" / "gdb_loader.py"


def _run_path(context: Context, args: Namespace) -> Lines:  # noqa: ARG001
    return text_lines(str(loader_path()))


def _run_gdb(context: Context, args: Namespace) -> None:
    program = os.environ.get("GDB", "gdb")
    # As an early command: it is there before any file is loaded, and a command line of GDB's own follows unchanged.
    command = [program, "-iex", f"source {loader_path()}", *args.arguments]
    context.terminal.stdout.flush()
    # C-c is GDB's: it interrupts what is debugged.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
            status = process.wait()
    except OSError as error:
        raise CapabilityError(
            f"{program} can't be started: {error.strerror}", hint="install gdb, or name one: GDB=/path/to/gdb kcovdbg gdb"
        ) from error
    finally:
        signal.signal(signal.SIGINT, before)
    # As a shell has it where a signal ended it.
    context.status = 128 - status if status < 0 else status


GDB_PATH = Command(
    name="gdb-path",
    summary="the file to source in GDB for kcov-show",
    run=_run_path,
    examples=(Example("gdb-path", "for ~/.config/gdb/gdbinit: source PATH"),),
    needs=frozenset(),
)
GDB = Command(
    name="gdb",
    summary="start GDB with kcov-show loaded",
    run=_run_gdb,
    description=(
        "Everything that follows is GDB's own. Inside, kcov-show has these commands: help kcov-show tells about them. "
        "GDB's Python must be 3.10 or newer; which it is doesn't matter otherwise."
    ),
    arguments=(Argument(("arguments",), Value.TEXT, "as for gdb", count=Count.REST, metavar="ARGUMENT"),),
    examples=(
        Example("gdb vmlinux -ex 'target remote :1234'", "look into a QEMU guest started with -s"),
        Example("gdb vmlinux vmcore", "an ELF core that GDB can read: one with virtual addresses"),
    ),
    needs=frozenset(),
)
