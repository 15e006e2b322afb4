# SPDX-License-Identifier: LGPL-2.1-or-later
"""``gdb``: GDB with ``kcov-show`` loaded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from typing import Final

from kcovdbg.child_process import child_environment, find_gdb_script
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Lines, text_lines
from kcovdbg.errors import CapabilityError


def _run(context: Context, args: Namespace) -> Lines | None:
    if args.arguments == ["--path"]:
        return text_lines(str(find_gdb_script()))
    program = os.environ.get("GDB", "gdb")
    # With -ix and -iex, the commands run before any file is loaded, and the user's own words can
    # follow on GDB's command line.
    target = context.workspace.frontend.find_gdb_arguments()
    load = ["-ix", str(find_gdb_script()), "-iex", "python __import__('kcov_show').announce()"]
    command = [program, *load, *target, *args.arguments]
    context.terminal.stdout.flush()
    # C-c is for GDB: it interrupts the program being debugged.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with subprocess.Popen(
            command,
            # The script that GDB sources starts kcovdbg in this interpreter.
            env=child_environment(KCOVDBG_PYTHON=sys.executable),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:
            status = process.wait()
    except OSError as error:
        raise CapabilityError(
            f"could not start '{program}': {error.strerror}",
            hint="install gdb, or name one: GDB=/path/to/gdb kcovdbg gdb",
        ) from error
    finally:
        signal.signal(signal.SIGINT, before)
    # The status that a shell gives a program that a signal ended.
    if status < 0:
        status = 128 - status
    context.status = status
    return None


COMMAND: Final = Command(
    name="gdb",
    summary="start GDB with kcov-show loaded",
    topic=Topic.MAINTENANCE,
    run=_run,
    description=(
        "GDB gets all arguments, after the target that kcovdbg was started with: a core, the "
        "demo, or a GDB stub. In GDB, kcov-show runs these commands; see help kcov-show. GDB 12 "
        "or newer is needed, with Python 3.8 or newer, which may differ from kcovdbg's.\n\n"
        "--path alone prints the path of the file to source in a GDB that is running, or in "
        "~/.config/gdb/gdbinit."
    ),
    arguments=(Argument("arguments ARGUMENT…", Value.TEXT, "arguments of gdb", takes_rest=True),),
    examples=(
        Example("gdb vmlinux -ex 'target remote :1234'", "look into a QEMU guest started with -s"),
        Example("gdb vmlinux vmcore", "open an ELF core"),
        Example("gdb -ex 'kcov-show tasks'", "with kcovdbg --demo: the demo in GDB"),
        Example("gdb --path", "the file to source in a GDB that is running"),
    ),
    needs=frozenset(),
    acts=True,
)
