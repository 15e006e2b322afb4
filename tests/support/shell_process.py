# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell on a kernel made by hand, as a process of its own: ``python -m
tests.support.shell_process``.
"""

import sys
import time
from unittest.mock import patch

from kcovdbg.commands import COMMANDS
from kcovdbg.console import completion_index as harvest
from kcovdbg.console.command import Command
from kcovdbg.console.context import Workspace
from kcovdbg.console.renderable import Lines
from kcovdbg.frontends.shell import run_interactively
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import CommandInputs, UserInputs
from tests.support.state import TASKS, StubReader, make_layout, make_target


class Look(StubReader):
    task_fields = tuple(task.fields for task in TASKS)

    def __init__(self, *_):
        super().__init__()


def _lines(count, width=20):
    return lambda _context, _args: Lines(
        tuple((("", f"line {number:<{width}}|"),) for number in range(1, count + 1))
    )


def _slow(_context, _args):
    sys.stdout.write("working\n")
    sys.stdout.flush()
    time.sleep(60)


EXTRA = (
    Command("tall", "a hundred lines", _lines(100), needs=frozenset()),
    Command("wide", "lines wider than the screen", _lines(3, 300), needs=frozenset()),
    Command("slow", "takes a minute", _slow, needs=frozenset()),
)


def main():
    workspace = Workspace(
        COMMANDS.with_commands(*EXTRA), UserInputs(Kernel(KernelOptions(make_target)))
    )
    workspace.inputs.kernel.memory.layout = make_layout()
    workspace.debug = "--debug" in sys.argv
    with (
        patch.object(CommandInputs, "reader", property(lambda _self: Look())),
        patch.object(harvest, "StateReader", Look),
    ):
        return run_interactively(workspace, quiet="-q" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
