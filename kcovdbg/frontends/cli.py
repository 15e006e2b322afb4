# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcovdbg`` on the command line: one command, several, a script, files, or the shell.

``python -m kcovdbg.frontends.cli PID WORD…`` ends with its parent.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from kcovdbg import __version__
from kcovdbg.commands import COMMANDS
from kcovdbg.console.argument import Argument
from kcovdbg.console.command import CommandTable
from kcovdbg.console.renderable import Line
from kcovdbg.console.settings import read_settings
from kcovdbg.console.terminal import find_terminal, settle_streams, write_remarks
from kcovdbg.errors import INTERRUPTED, KcovdbgError
from kcovdbg.frontends.options import (
    GENERAL_OPTIONS,
    TARGET_OPTIONS,
    USAGE,
    option_help,
    parse_options,
)
from kcovdbg.limits import set_limits
from kcovdbg.target import target_options
from kcovdbg.user_folder import find_temporary_folder, find_user_folder

if TYPE_CHECKING:
    from kcovdbg.target.target import Target


def main(
    arguments: Sequence[str] | None = None,
    *,
    open_target: Callable[[target_options.TargetOptions], Target] = target_options.open_target,
    commands: CommandTable = COMMANDS,
) -> int:
    """Run the program.

    :param arguments: without the program's name; by default the process's.
    :param open_target: opens what the options name.
    :param commands: the command table.
    :return: the exit status.
    """
    _replace_closed_streams()
    arguments = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the locale cannot encode must not end an answer.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(arguments, commands, open_target)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = INTERRUPTED
    except BrokenPipeError:
        status = 0
    except Exception as error:  # noqa: BLE001 - the user gets a line, not a traceback
        from kcovdbg.console.context import Workspace
        from kcovdbg.console.runner import explain, report

        report(Workspace(commands, debug="--debug" in arguments), error)
        status = explain(error).status
    settle_streams()
    return status


def _run(
    arguments: Sequence[str],
    commands: CommandTable,
    open_target: Callable[[target_options.TargetOptions], Target],
) -> int:
    settings = read_settings(commands, os.environ)
    options = parse_options(arguments, commands)
    set_limits({**settings.limits, **options.limits})
    color = settings.color if options.color is None else options.color
    write_remarks(find_terminal(color), [f"not used: {problem}" for problem in _refuse_folders()])
    if options.version:
        sys.stdout.write(f"kcovdbg {__version__}\n")
        return 0
    if options.help:
        find_terminal(color).show(_help_lines(commands))
        return 0
    # Imported here: it takes most of the time that the version and the help would take.
    from kcovdbg.frontends.program import run_program

    return run_program(options, settings, commands, color, open_target)


def _refuse_folders() -> Iterator[str]:
    """Put temporary files where others cannot replace them; yield a problem for each folder that
    root does not use.
    """
    temporary = find_temporary_folder()
    if temporary.problem is not None:
        import tempfile

        tempfile.tempdir = str(temporary.path)
        yield temporary.problem
    for kind in ("config", "state"):
        problem = find_user_folder(kind).problem
        if problem is not None:
            yield problem


_PURPOSE: Final = (
    "See the Linux kernel's KCOV state: on a live machine, in a QEMU guest and in a crash dump."
)
_WITHOUT_COMMAND: Final = (
    "Without a command, answers each FILE by what it is: a list, a log, a crash directory, a "
    "recording."
)
_WITHOUT_FILE: Final = (
    "Without a file, runs the shell, or the commands on standard input if that is not a terminal."
)


def _help_lines(commands: CommandTable) -> Iterator[Line]:
    yield (("header", "Usage: "), ("", USAGE))
    yield (("", _PURPOSE),)
    yield ()
    yield (("header", "Target:"), ("", " kcovdbg VMLINUX VMCORE, in either order, or one of"))
    yield from map(_option_line, TARGET_OPTIONS)
    yield ()
    yield (("header", "Options:"),)
    yield from map(_option_line, GENERAL_OPTIONS)
    yield ()
    from kcovdbg.console.help_text import command_list_lines

    yield from command_list_lines(commands)
    yield ()
    yield (("hint", "kcovdbg help COMMAND shows help for a command."),)
    yield (("", _WITHOUT_COMMAND),)
    yield (("", _WITHOUT_FILE),)
    yield (
        ("header", "Exit status: "),
        ("", "0 success; 1 check found violations, diff a difference, or patch a missed line;"),
    )
    yield (
        ("", "  2 failure; 3 check found no violation, but could not judge every rule; 130 C-c."),
    )


def _option_line(option: Argument) -> Line:
    return (("key", f"  {option.heading}".ljust(24) + " "), ("", option_help(option)))


class _ClosedOutput(io.TextIOBase):
    """Takes the place of a standard output that is closed: Python has none then."""

    def write(self, text: str) -> NoReturn:
        """Refuse the text.

        :raises KcovdbgError: always.
        """
        del text
        hint = "redirect it, for instance to /dev/null"
        raise KcovdbgError("standard output is closed", hint=hint)


def _replace_closed_streams() -> None:
    """Make sure that there are standard streams, and that no other file gets their descriptors.

    Otherwise the next file opened would get descriptor 1, and child processes would write their
    output to it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest one that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has None where a stream was closed, whatever the annotations say.
    streams = vars(sys)
    if streams["stdin"] is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    if streams["stdout"] is None:
        sys.stdout = _ClosedOutput()
    if streams["stderr"] is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as above


def run_for_parent(arguments: Sequence[str]) -> int:
    """Run the program until its parent ends.

    :param arguments: process id of the parent, and the program's arguments.
    :return: the exit status.
    """
    from kcovdbg.child_process import end_with_parent

    # On SIGTERM a collector ends its command and writes what it has.
    if not end_with_parent(int(arguments[0]), signal.SIGTERM):
        return 128 + signal.SIGTERM
    return main(arguments[1:])


if __name__ == "__main__":
    sys.exit(run_for_parent(sys.argv[1:]))
