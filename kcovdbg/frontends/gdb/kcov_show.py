# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` and a subcommand for each command of the table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Final

import gdb
from kcovdbg.analysis.compact_buffer import Kept
from kcovdbg.commands import COMMANDS
from kcovdbg.engine.command import Command, CommandTable, Need
from kcovdbg.engine.help_text import command_help
from kcovdbg.engine.runner import explain, run_line
from kcovdbg.engine.settings import Settings, read_settings
from kcovdbg.engine.workspace import Workspace
from kcovdbg.errors import KcovdbgError
from kcovdbg.frontends.gdb import parameters
from kcovdbg.frontends.gdb.charset import to_host
from kcovdbg.frontends.gdb.completion import GdbCompleter
from kcovdbg.frontends.gdb.streams import find_terminal
from kcovdbg.render.error_lines import error_lines
from kcovdbg.render.paint import Painter
from kcovdbg.render.theme import Color
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer, open_symbolizer
from kcovdbg.symbols.table_cache import choose_table_file
from kcovdbg.target.gdb.opener import open_target
from kcovdbg.target.gdb.target import GdbTarget
from kcovdbg.target.protocol import Target

NAME: Final = "kcov-show"
# They start GDB, or print the path of the file that it sources.
_NOT_INSIDE: Final = frozenset({"gdb", "gdb-path"})


def commands_in_gdb() -> CommandTable:
    """Return the commands that GDB offers: all but those that need the terminal, in place of which the TUI has a window."""
    return CommandTable(
        command for command in COMMANDS if command.name not in _NOT_INSIDE and Need.TERMINAL not in command.needs
    )


def find_symbolizer(target: Target | None, tables: Sequence[str]) -> Symbolizer | None:
    """Return what names the PCs of GDB's kernel: the table of the kernel's build, and GDB where there is none.

    :param tables: those that were built elsewhere, of any builds.
    :raises TargetError: when one of them cannot be read.
    """
    if not isinstance(target, GdbTarget):
        return None
    # Building a table is left to another program: it takes drgn, and all CPUs for a while.
    return open_symbolizer(
        target.kaslr_offset,
        build_id=target.build_id,
        image=target.kernel.image.path,
        fallback=target.frames_at,
        word_size=target.word_size,
        may_build=False,
        table_file=choose_table_file(tables, target.build_id),
    )


class Show:
    """What the commands share: kept buffers, and completion."""

    def __init__(self) -> None:
        self.table = commands_in_gdb()
        self.kept: dict[str, Kept] = {}
        self.completer = GdbCompleter(self.table, self.kept, self._find_table)

    def _find_table(self) -> LocationTable | None:
        try:
            symbolizer = self.workspace().symbolizer
        except (KcovdbgError, gdb.error, gdb.GdbError):
            return None
        return None if symbolizer is None else symbolizer.table

    def workspace(self) -> Workspace:
        """Return a workspace for one command: the user may have done anything since the last.

        :raises gdb.GdbError: when the configuration file is wrong.
        """
        try:
            settings = find_settings()
        except KcovdbgError as error:
            raise gdb.GdbError(error_text(error)) from None
        return Workspace(
            self.table,
            open_kernel,
            color=settings.color if parameters.color() is Color.AUTO else parameters.color(),
            source_folders=settings.source_dirs,
            substitutions=settings.substitute_paths,
            settings=settings,
            find_terminal=find_terminal,
            find_symbolizer=partial(find_symbolizer, tables=settings.symbol_tables),
            format=parameters.output_format(),
            debug=parameters.is_debugging(),
            kept=self.kept,
        )

    def run(self, line: str) -> None:
        """Run a line.

        :raises gdb.GdbError: when it fails, with the message for the user.
        """
        workspace = self.workspace()
        try:
            run_line(workspace, line)
        except gdb.GdbError:
            raise
        except Exception as error:
            if workspace.debug:
                raise
            raise gdb.GdbError(error_text(error)) from None


def find_settings() -> Settings:
    """Return the user's settings as they are now.

    :raises KcovdbgError: when the configuration file is wrong.
    """
    return read_settings(COMMANDS, os.environ)


def open_kernel() -> GdbTarget:
    """Open the kernel of the selected inferior."""
    return open_target(parameters.kaslr_offset())


def error_text(error: Exception) -> str:
    """Return the message for an error."""
    known = explain(error)
    if not isinstance(error, (KcovdbgError, OSError)):
        known.hint = "please report it with the command and the output after set kcov debug on"
    plain = Painter()
    return to_host("\n".join(plain.paint(line) for line in error_lines(known)))


def _help_text(command: Command) -> str:
    """Return a command's help for GDB, which shows the first line in lists of commands."""
    plain = Painter()
    lines = [plain.paint(line) for line in command_help(command, None, f"{NAME} ").lines]
    summary = f"{command.summary[0].upper()}{command.summary[1:]}."
    return to_host("\n".join([summary, *lines[1:]]))


class ShowCommand(gdb.Command):
    """Show the state of KCOV, the Linux kernel's code coverage.

    Usage: kcov-show COMMAND [ARGUMENT…]

    The kernel is the one that GDB has open: a QEMU guest, a kgdb target, an ELF core, or /proc/kcore. Nothing is written to
    it, and loaded symbols stay as they are: the KASLR offset is determined each time (kcov-show info says how).

    Every answer can be written as JSON (--json) or CSV (--csv), piped (kcov-show tasks | grep syz, or with GDB's own
    | kcov-show tasks | grep syz) and redirected (kcov-show objects --json > file).

    Examples:
        kcov-show tasks
            which tasks collect coverage, and how full are their buffers?
        kcov-show buffer 41
            what did task 41 execute?
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
        """Run a line that no subcommand matches: an empty one lists the commands."""
        self.dont_repeat()
        self._show.run(argument or "help")


class ShowSubcommand(gdb.Command):
    """One command of the table, under one of its names or an alias of the user's."""

    def __init__(self, show: Show, command: Command, name: str) -> None:
        self._show = show
        self._name = name
        self.__doc__ = _help_text(command)
        super().__init__(f"{NAME} {name}", gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:  # noqa: ARG002 - GDB's signature
        """Run the command."""
        # An empty line must not repeat a walk over a slow connection.
        self.dont_repeat()
        self._show.run(f"{self._name} {argument}")

    def complete(self, text: str, word: str | None) -> list[str]:
        """Complete the last word; GDB first asks without a word, to find where it begins."""
        if word is None:
            return []
        try:
            return self._show.completer.complete(f"{self._name} {text}", word, find_settings().aliases)
        except Exception:  # noqa: BLE001 - a key press must not print errors
            return []


def define_commands(show: Show) -> None:
    """Define the commands in GDB."""
    ShowCommand(show)
    for command in show.table:
        for name in command.names:
            # GDB takes only words as names of commands.
            if _can_be_command(name):
                ShowSubcommand(show, command, name)
    try:
        aliases = find_settings().aliases
    except KcovdbgError:
        # Commands report it.
        return
    for name, (first, *_) in aliases.items():
        if _can_be_command(name) and first in show.table:
            ShowSubcommand(show, show.table.find(first), name)


def _can_be_command(name: str) -> bool:
    return name.replace("-", "").replace("_", "").isalnum()
