# SPDX-License-Identifier: LGPL-2.1-or-later
"""The shell on a kernel made by hand, as a process of its own: ``python -m tests.unit.shell_process``."""

import sys
import time

from kcovdbg.commands import COMMANDS
from kcovdbg.commands.command import Command
from kcovdbg.commands.session import Context, Session
from kcovdbg.frontends.completion import harvest
from kcovdbg.frontends.shell import run_shell
from kcovdbg.render.renderable import Lines
from tests.unit.state import TASKS, StubCensus, make_layout, make_target


class Look(StubCensus):
    task_fields = tuple(task.fields for task in TASKS)

    def __init__(self, *_):
        super().__init__()


def _lines(count, width=20):
    return lambda _context, _args: Lines(tuple((("", f"line {number:<{width}}|"),) for number in range(1, count + 1)))


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
    Context.census = property(lambda _self: Look())
    harvest.Census = Look
    session = Session(COMMANDS.with_commands(*EXTRA), make_target)
    session.layout = make_layout()
    session.debug = "--debug" in sys.argv
    return run_shell(session, quiet="-q" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
