# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` and a subcommand for each command of the table."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

import gdb
from kcovdbg.analysis.naming import Names
from kcovdbg.commands import COMMANDS
from kcovdbg.commands.command import Command, CommandTable, Need
from kcovdbg.commands.helptext import command_help
from kcovdbg.commands.run import explain, run_line
from kcovdbg.commands.session import Session
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.gdb_commands import parameters
from kcovdbg.frontends.gdb_commands.charset import to_host
from kcovdbg.frontends.gdb_commands.completion import complete, tails
from kcovdbg.frontends.gdb_commands.known import KnownState
from kcovdbg.frontends.gdb_commands.stream import find_terminal
from kcovdbg.render.errorlines import error_lines
from kcovdbg.render.paint import Painter
from kcovdbg.symbols.resolve import open_symbolizer
from kcovdbg.target.gdb.opening import open_target
from kcovdbg.target.gdb.target import GdbTarget

NAME: Final = "kcov-show"
# They start GDB, or tell where this file is.
_NOT_INSIDE: Final = frozenset({"gdb", "gdb-path"})


def commands_in_gdb() -> CommandTable:
    """Return the commands that GDB offers: all but those that take the terminal for themselves; the TUI's window does here."""
    return CommandTable(
        command for command in COMMANDS if command.name not in _NOT_INSIDE and Need.TERMINAL not in command.needs
    )


class GdbSession(Session):
    """A session whose PCs are named by the table of the kernel's build, and by GDB where there is none."""

    @cached_property
    def names(self) -> Names:
        """Names for recorded PCs; without a target, PCs have none."""
        target = self.optional_target
        if not isinstance(target, GdbTarget):
            return super().names
        # Building the table is another program's business: it takes all CPUs for a while, and drgn.
        symbolizer = open_symbolizer(
            target.kaslr_offset,
            build_id=target.build_id,
            image=target.kernel.image.path,
            fallback=target.frames_at,
            word_size=target.word_size,
            may_build=False,
        )
        return Names(symbolizer.locate_all)


class Show:
    """What the commands share: buffers that were kept, and what completion knows."""

    def __init__(self) -> None:
        self.table = commands_in_gdb()
        self.kept: dict[str, Any] = {}
        self.known = KnownState(self.kept)

    def session(self) -> GdbSession:
        """Return a session for one command: its user may have done anything since the last."""
        session = GdbSession(self.table, open_kernel, color=parameters.color(), find_terminal=find_terminal)
        session.kept = self.kept
        session.format = parameters.output_format()
        session.debug = parameters.is_debugging()
        return session

    def run(self, line: str) -> None:
        """Run a line.

        :raises gdb.GdbError: when it fails, with what to tell the user.
        """
        session = self.session()
        try:
            run_line(session, line)
        except gdb.GdbError:
            raise
        except Exception as error:
            if session.debug:
                raise
            raise gdb.GdbError(error_text(error)) from None


def open_kernel() -> GdbTarget:
    """Open the kernel of the selected inferior."""
    return open_target(parameters.kaslr_offset())


def error_text(error: Exception) -> str:
    """Return what is told about an error."""
    known = explain(error)
    if not isinstance(error, (KcovdbgError, OSError)):
        known.hint = "set kcov debug on, then again, shows where; please report it with the command"
    plain = Painter()
    return to_host("\n".join(plain.paint(line) for line in error_lines(known)))


def _help_text(command: Command) -> str:
    """Return a command's help as GDB wants it: the first line is what lists of commands show."""
    plain = Painter()
    lines = [plain.paint(line) for line in command_help(command, None).lines]
    examples = lines.index("Examples:") if "Examples:" in lines else len(lines)
    # As one types them here.
    names = {f"    {example.line}" for example in command.examples}
    lines[examples:] = [
        f"    {NAME} {line.strip()}" if line in names and not line.strip().startswith("!") else line
        for line in lines[examples:]
    ]
    usage = next(index for index, line in enumerate(lines) if line.startswith("Usage: "))
    lines[usage] = f"Usage: {NAME} {command.usage}"
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    return to_host("\n".join([summary, *lines[1:]]))


class ShowCommand(gdb.Command):
    """Show the state of KCOV, the Linux kernel's code coverage.

    Usage: kcov-show COMMAND [ARGUMENT…]

    The kernel is the one that GDB has open: a QEMU guest's, one on kgdb, an ELF core, /proc/kcore. Nothing is written to it,
    and symbols stay as they are loaded: where KASLR has put the kernel is found out each time (kcov-show info says how).

    Every answer can be written as JSON (--json) or CSV (--csv), can be piped (kcov-show tasks | grep syz, or GDB's own
    | kcov-show tasks | grep syz) and redirected (kcov-show objects --json > file).

    Examples:
        kcov-show tasks
            who has KCOV open, and how full are the buffers?
        kcov-show buffer 41
            what task 41 has executed
        break do_exit if $kcov_count(41) > 1000
        print *$kcov(41)
            a task's struct kcov, in expressions
        tui new-layout kcov {-horizontal src 1 kcov 1} 2 status 0 cmd 1
        layout kcov
        kcov-window 41
            a buffer beside the source
    """

    def __init__(self, show: Show) -> None:
        self._show = show
        self.__doc__ = to_host(self.__doc__ or "")
        super().__init__(NAME, gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 - GDB's signature
        """Run what is no subcommand: nothing, which lists them, or a word that is none."""
        self.dont_repeat()
        self._show.run(argument or "help")


class ShowSubcommand(gdb.Command):
    """One command of the table."""

    def __init__(self, show: Show, command: Command, name: str) -> None:
        self._show = show
        self._command = command
        self.__doc__ = _help_text(command)
        super().__init__(f"{NAME} {name}", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 - GDB's signature
        """Run it."""
        # A walk over a slow connection is nothing to repeat by an empty line.
        self.dont_repeat()
        self._show.run(f"{self._command.name} {argument}")

    def complete(self, text: str, word: str | None) -> list[str]:
        """Complete the last word; GDB asks first without a word, for where one begins."""
        if word is None:
            return []
        try:
            return tails(complete(self._show.table, self._command, text, self._show.known), text, word)
        except Exception:  # noqa: BLE001 - a key press must not print errors
            return []


def define_commands(show: Show) -> None:
    """Make them known to GDB."""
    ShowCommand(show)
    for command in show.table:
        for name in command.names:
            # GDB takes words as names of commands only.
            if name.replace("-", "").isalnum():
                ShowSubcommand(show, command, name)
