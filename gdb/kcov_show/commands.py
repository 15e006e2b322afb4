# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov-show`` with a subcommand for each command of kcovdbg, and ``-kcov-show`` for MI."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any, Dict, List, Optional

import gdb

from . import expressions, output
from .lender import Lender

NAME = "kcov-show"
# The only command that lets the machine run.
_RUNS = "catch"
# Seconds that `source` waits for the child, to report its problems before the first command.
_PATIENCE = 10.0
_HELP = os.path.join(os.path.dirname(os.path.realpath(__file__)), "commands.json")


def run(lender: Lender, name: str, line: str, *, from_tty: bool = False) -> None:
    """Run a line.

    :param name: of the command that the line runs.
    :param from_tty: whether the user typed it, so that a program in its pipe gets the terminal.
    :raises gdb.GdbError: when it fails, with the message for the user; in batch mode also for a
        status other than 0, so that GDB exits with 1.
    """
    line = expressions.replace(line)
    is_interactive = from_tty and output.is_interactive()
    answer = lender.ask(
        "run",
        output.write,
        may_run=name == _RUNS,
        may_type=is_interactive,
        line=line,
        **output.describe(),
    )
    if answer.get("symbols"):
        _load_symbols(*answer["symbols"])
    if answer["status"] and output.is_batch():
        raise gdb.GdbError("kcovdbg: %s: exit status %d" % (name or line, answer["status"]))


def _load_symbols(path: str, offset: int) -> None:
    """Have GDB load the symbols of a file.

    The command names an open descriptor and not the path, which may have quotes and newlines: GDB
    would run each line as a command.

    :raises gdb.GdbError: when the file cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise gdb.GdbError("could not open %a: %s" % (path, error.strerror)) from None
    try:
        # GDB follows the link in /proc, and remembers the file's own path.
        gdb.execute(
            "with confirm off -- symbol-file /proc/self/fd/%d -o %#x" % (descriptor, offset),
            to_string=True,
        )
    finally:
        os.close(descriptor)


class _Show(gdb.Command):
    """Show the state of KCOV, the Linux kernel's code coverage.

    Usage: kcov-show COMMAND [ARGUMENT...]

    The kernel is the one that GDB has open: a QEMU guest, a kgdb target, an ELF core, or
    /proc/kcore. Nothing is written to it, and loaded symbols stay as they are: the KASLR offset is
    determined each time. kcov-show symbols --apply gives GDB names in a kernel that KASLR has
    moved.

    Every answer can be written as JSON (--json) or CSV (--csv), piped (kcov-show tasks | grep syz,
    or with GDB's own | kcov-show tasks | grep syz) and redirected (kcov-show objects --json >
    file). Words that begin with $ are expressions of GDB (kcov-show why $t). $_kcov_status is the
    exit status of the last command: 1 where check found violations.

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
        """Run a line that no subcommand matches; an empty line lists the commands."""
        self.dont_repeat()
        run(self._lender, "", argument or "help", from_tty=from_tty)


class _Subcommand(gdb.Command):
    """One command, under one of its names.

    :param name: the command's name or an alias.
    :param command: the command's name.
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
        run(self._lender, self._command, "%s %s" % (self._name, argument), from_tty=from_tty)

    def complete(self, text: str, word: Optional[str]) -> List[str]:
        """Complete the last word; GDB first asks without a word, to find where it begins."""
        if word is None:
            return []
        line = "%s %s" % (self._name, text)
        try:
            words: List[str] = self._lender.ask("complete", line=line, word=word)["words"]
        except (Exception, KeyboardInterrupt):  # noqa: BLE001 - a key press must not print errors
            return []
        return [output.to_host(found) for found in words]


class _Info(gdb.Command):
    """Show the kernel that GDB has open, its KASLR offset, and the generation of its KCOV.

    Usage: info kcov [COMMAND [ARGUMENT...]]

    With a command, this is kcov-show COMMAND: info kcov tasks.
    """

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        super().__init__("info kcov", gdb.COMMAND_STATUS)

    def invoke(self, argument: str, from_tty: bool) -> None:
        """Run ``info``, or the command in the argument."""
        self.dont_repeat()
        run(self._lender, "", argument or "info", from_tty=from_tty)


class _Mi(gdb.MICommand):
    """``-kcov-show COMMAND [ARGUMENT...]`` for MI.

    The answer has ``rows``, which are those of ``--json`` with every value as a string, and
    ``remarks``. ``catch`` lets the machine run: GDB answers ``^running``, and the rows follow when
    the machine has stopped, as ``=kcov-show,rows=[...],remarks=[...]``. Before GDB 14, whose Python
    cannot make such records, they follow as JSON on the console.
    """

    def __init__(self, lender: Lender) -> None:
        self._lender = lender
        super().__init__("-kcov-show")

    def invoke(self, arguments: List[str]) -> Optional[Dict[str, Any]]:
        if not arguments:
            raise gdb.GdbError("usage: -kcov-show COMMAND [ARGUMENT...]")
        texts: Dict[str, str] = {"out": "", "err": ""}

        def write(op: str, text: str) -> None:
            texts[op] += text

        def gather() -> Dict[str, Any]:
            rows = json.loads(texts["out"] or "[]")
            return {"rows": rows, "remarks": texts["err"].splitlines()}

        words = list(arguments)
        for index, word in enumerate(words):
            if expressions.is_expression(word):
                words[index] = expressions.evaluate(word)
        fields: Dict[str, Any] = {"width": None, "styled": False, "color": "never"}
        if words[0] == _RUNS:
            fields.update(may_run=True, deliver=lambda _answer: _notify(gather()))
        answer = self._lender.ask("run", write, words=words, format="json", **fields)
        return _words(gather()) if answer else None


def _notify(found: Dict[str, Any]) -> None:
    """Report the rows of a command that let the machine run."""
    notify = getattr(gdb, "notify_mi", None)
    if notify is not None:
        notify(NAME, _words(found))
    else:
        gdb.write(json.dumps({NAME: found}) + "\n")


def _words(value: Any) -> Any:
    """Return a value with null, true and false as words, because MI has only strings."""
    if isinstance(value, dict):
        return {_name(key): _words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_words(item) for item in value]
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return output.to_host(str(value))


def _name(key: str) -> str:
    # Names in MI consist of letters, digits, - and _.
    return re.sub(r"[^\w-]", "_", key)


def define(lender: Lender) -> None:
    """Define the commands in GDB, and start the child."""
    _Show(lender)
    _Info(lender)
    _Mi(lender)
    for command, about in _read_help().items():
        for name in [command] + about["aliases"]:
            _Subcommand(lender, name, command, about["help"])
    try:
        lender.start()
    except gdb.GdbError as error:
        # Each command tries again.
        sys.stderr.write("%s\n" % error)


def greet(lender: Lender) -> None:
    """Wait some seconds until the child serves."""
    try:
        lender.greet(_PATIENCE)
    except gdb.GdbError as error:
        # Each command tries again.
        sys.stderr.write("%s\n" % error)


def _read_help() -> Dict[str, Dict[str, Any]]:
    """Return each command's aliases and help, by its name."""
    with open(_HELP, encoding="utf-8") as file:
        known: Dict[str, Dict[str, Any]] = json.load(file)
    return known
