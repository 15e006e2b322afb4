# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` with a subcommand for each command of kcovdbg, and ``-kcov-show`` for MI."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Dict, List, Optional

import gdb

from . import output
from .lender import Lender

NAME = "kcov-show"
# Lets the machine run, as its user asks.
_RUNS = "catch"
_HELP = os.path.join(os.path.dirname(os.path.realpath(__file__)), "commands.json")


def run(lender: Lender, name: str, line: str) -> None:
    """Run a line.

    :param name: of the command that the line runs.
    :raises gdb.GdbError: when it fails, with the message for the user.
    """
    answer = lender.ask("run", output.write, may_run=name == _RUNS, line=line, **output.describe())
    if answer.get("symbols"):
        _load_symbols(*answer["symbols"])


def _load_symbols(path: str, offset: int) -> None:
    """Have GDB load the symbols of a file whose path may have quotes and newlines: GDB runs each line of a command.

    :raises gdb.GdbError: when it cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise gdb.GdbError("could not open %a: %s" % (path, error.strerror)) from None
    try:
        # GDB follows the link, and keeps the path that it leads to.
        gdb.execute("with confirm off -- symbol-file /proc/self/fd/%d -o %#x" % (descriptor, offset), to_string=True)
    finally:
        os.close(descriptor)


class _Show(gdb.Command):
    """Show the state of KCOV, the Linux kernel's code coverage.

    Usage: kcov-show COMMAND [ARGUMENT...]

    The kernel is the one that GDB has open: a QEMU guest, a kgdb target, an ELF core, or /proc/kcore. Nothing is written to
    it, and loaded symbols stay as they are: the KASLR offset is determined each time. kcov-show symbols --apply gives GDB
    names in a kernel that KASLR has moved.

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

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        super().__init__(NAME, gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run a line that no subcommand matches: an empty one lists the commands."""
        self.dont_repeat()
        run(self._lender, "", argument or "help")


class _Subcommand(gdb.Command):
    """One command, under one of its names or an alias of the user's.

    :param command: the name of the command.
    """

    def __init__(self, lender: Lender, name: str, command: str, text: str) -> None:
        self._lender = lender
        self._name = name
        self._command = command
        self.__doc__ = output.to_host(text)
        super().__init__("%s %s" % (NAME, name), gdb.COMMAND_DATA)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run the command."""
        # An empty line must not repeat a walk over a slow connection.
        self.dont_repeat()
        run(self._lender, self._command, "%s %s" % (self._name, argument))

    def complete(self, text: str, word: Optional[str]) -> List[str]:
        """Complete the last word; GDB first asks without a word, to find where it begins."""
        if word is None:
            return []
        try:
            words: List[str] = self._lender.ask("complete", line="%s %s" % (self._name, text), word=word)["words"]
        except (Exception, KeyboardInterrupt):  # noqa: BLE001 - a key press must not print errors
            return []
        return [output.to_host(found) for found in words]


class _Mi(gdb.MICommand):
    """``-kcov-show COMMAND [ARGUMENT...]``: ``rows``, as in JSON with every value a string, and ``remarks``."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        super().__init__("-kcov-show")

    def invoke(self, arguments: List[str]) -> Dict[str, Any]:
        if not arguments:
            raise gdb.GdbError("usage: -kcov-show COMMAND [ARGUMENT...]")
        texts: Dict[str, str] = {"out": "", "err": ""}

        def write(op: str, text: str) -> None:
            texts[op] += text

        plain = {"width": None, "styled": False, "color": "never", "format": "json"}
        self._lender.ask("run", write, may_run=arguments[0] == _RUNS, words=list(arguments), **plain)
        rows = json.loads(texts["out"] or "[]")
        return {"rows": _words(rows), "remarks": output.to_host(texts["err"]).splitlines()}


def _words(value: Any) -> Any:
    """Return a value with words for what MI lacks, as JSON spells them."""
    if isinstance(value, dict):
        return {_name(key): _words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_words(item) for item in value]
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return output.to_host(str(value))


def _name(key: str) -> str:
    # Names in MI consist of letters, digits, - and _.
    return "".join(character if character.isalnum() or character in "-_" else "_" for character in key)


def define(lender: Lender) -> None:
    """Define the commands in GDB."""
    with open(_HELP, encoding="utf-8") as file:
        known: Dict[str, Dict[str, Any]] = json.load(file)
    _Show(lender)
    _Mi(lender)
    for command, about in known.items():
        for name in [command] + about["aliases"]:
            _Subcommand(lender, name, command, about["help"])
    try:
        aliases = lender.start()
    except gdb.GdbError as error:
        # Each command tries again.
        sys.stderr.write("%s\n" % error)
        return
    names = {name: command for command, about in known.items() for name in [command] + about["aliases"]}
    for name, first in aliases.items():
        # GDB takes only words as names of commands.
        if name.replace("-", "").replace("_", "").isalnum() and first in names:
            _Subcommand(lender, name, names[first], known[names[first]]["help"])
