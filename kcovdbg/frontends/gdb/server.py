# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers what GDB asks for its user: lines, completions, functions in expressions, and the rows of
the window.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from kcovdbg.abi.handle import decode_handle
from kcovdbg.abi.mode import IN_CTXSW, mode_name
from kcovdbg.commands import COMMANDS
from kcovdbg.console.command import Command, CommandTable
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.output_files import check_pipeline_status, pipeline_status
from kcovdbg.console.renderable import error_lines
from kcovdbg.console.runner import explain, run_line, run_words
from kcovdbg.console.settings import Settings, read_settings
from kcovdbg.console.terminal import (
    THEME,
    Color,
    Destination,
    Painter,
    Terminal,
    wants_color,
    write_remarks,
)
from kcovdbg.console.writer import Format
from kcovdbg.errors import INTERRUPTED, KcovdbgError, ReadError
from kcovdbg.frontends.gdb.kernel import OpenKernel, symbol_file_command
from kcovdbg.frontends.gdb.link import VERSION, Fields, Link
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TextIO

    from kcovdbg.console.completion_index import Harvest
    from kcovdbg.frontends.gdb.buffer_window import BufferWindow
    from kcovdbg.model.task import TaskFields
    from kcovdbg.target.drgn.target import DrgnTarget

# Commands that start GDB, serve other programs, list work in the background, which GDB does not
# have, or let a machine go on, which GDB controls.
_NOT_INSIDE: Final = frozenset({"gdb", "mcp", "jobs", "resume"})
_PIECE: Final = 1 << 15
_PREFIX: Final = "kcov-show"


def _load(name: str) -> Command | None:
    command = COMMANDS.find(name) if name in COMMANDS else None
    if command is None or command.name in _NOT_INSIDE:
        return None
    return command


def _find_inside() -> Iterator[Command]:
    # A generator: no command is loaded before the first one is asked for.
    for command in COMMANDS:
        if command.name not in _NOT_INSIDE:
            yield command


INSIDE: Final = CommandTable(_find_inside(), _load)
"""The commands that GDB offers. In place of full-screen views, GDB's TUI has a window."""


class _GdbStream(io.TextIOBase):
    """A stream of text that GDB writes.

    :param op: ``out``, ``err``, or ``feed`` for the programs of a pipe.
    """

    def __init__(self, link: Link, op: str) -> None:
        self._link = link
        self._op = op
        self._parts: list[str] = []
        self._size = 0

    def write(self, text: str) -> int:
        """Write a text.

        :raises BrokenPipeError: when the program that reads it has ended.
        """
        self._parts.append(text)
        self._size += len(text)
        if self._size > _PIECE:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Send the text that was written so far."""
        text, self._parts, self._size = "".join(self._parts), [], 0
        if not text:
            return
        if self._op == "feed":
            if not self._link.call("feed", text=text).fields["reads"]:
                raise BrokenPipeError
            return
        with self._link.interrupts.delayed():
            self._link.send(op=self._op, text=text)


class Server:
    """The commands on what GDB has open, which may be something else with each request."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._settings: Settings | None = None
        self._kernel: OpenKernel | None = None
        self._workspace: Workspace | None = None
        self._harvest: Harvest | None = None
        self._window: BufferWindow | None = None
        self._kept: dict[str, Any] = {}
        self._generation = -1
        self._sources: tuple[Sequence[str], Sequence[Sequence[str]]] = ((), ())
        # Whether the user was told where the kernel is.
        self._is_told = False

    def greet(self, version: int) -> None:
        """Report to GDB that the process is up."""
        self._link.send(op="hello", version=version)

    def serve(self) -> None:
        """Answer until GDB ends."""
        answers: dict[str, Callable[[Fields], Fields]] = {
            "run": self._run,
            "complete": self._complete,
            "call": self._call,
            "name": self._name,
            "rows": self._rows,
            "where": self._where,
        }
        while True:
            request = self._link.receive().fields
            debug = bool(request.get("debug"))
            try:
                with self._link.interrupts.allowed():
                    answer = answers[request["op"]](request)
            except KeyboardInterrupt:
                answer = {"status": INTERRUPTED}
            except Exception as error:  # noqa: BLE001 - GDB shows it
                answer = {"error": _error_text(error, debug=debug), "status": explain(error).status}
            # Nothing of the user's directory is held or imported between two requests.
            os.chdir("/")
            self._link.send(op="done", n=request["n"], **answer)

    def _open(self, state: Fields) -> DrgnTarget:
        if "problem" in state:
            raise KcovdbgError(state["problem"], hint=state["hint"])
        if self._kernel is None:
            self._kernel = OpenKernel(self._link, state)
            self._is_told = False
        return self._kernel.target

    def _forget(self) -> None:
        self._kernel = self._workspace = self._harvest = None

    def _prepare(self, state: Fields, *, is_brief: bool = False) -> Workspace:
        """Return the workspace of what GDB has open, which is opened when a command needs it.

        :raises KcovdbgError: when the configuration file is wrong.
        """
        settings = read_settings(COMMANDS, os.environ)
        if settings != self._settings:
            self._forget()
            self._settings = settings
        if state["generation"] != self._generation:
            self._generation, self._harvest = state["generation"], None
        if self._kernel is not None:
            try:
                is_same = "problem" not in state and self._kernel.refresh(state, is_brief=is_brief)
            except KcovdbgError:
                # Raised again where the kernel is needed.
                is_same = False
            if not is_same:
                self._forget()
        # GDB's source paths, which the user sets with directory and set substitute-path.
        sources = (state["source_folders"], state["substitutions"])
        if self._kernel is None or self._workspace is None or sources != self._sources:
            self._sources = sources
            substitutions = map(tuple, state["substitutions"])
            options = KernelOptions(
                lambda: self._open(state),
                tables=settings.symbol_tables,
                source_folders=(*state["source_folders"], *settings.source_dirs),
                substitutions=(*substitutions, *settings.substitute_paths),
            )
            inputs = UserInputs(Kernel(options), kept=self._kept)
            self._workspace = Workspace(INSIDE, inputs, settings=settings)
        return self._workspace

    def _run(self, request: Fields) -> Fields:
        state = request["state"]
        os.chdir(request["cwd"])
        workspace = self._prepare(state)
        color = Color(request["color"])
        workspace.color = workspace.settings.color if color is Color.AUTO else color
        workspace.format = Format(request["format"])
        workspace.debug = request["debug"]
        colored = wants_color(workspace.color, terminal=request["styled"], environment=os.environ)
        out, err = (cast("TextIO", _GdbStream(self._link, op)) for op in ("out", "err"))
        painter = Painter(THEME if colored else None)
        terminal = Terminal(
            out,
            err,
            request["width"],
            painter,
            Painter(),
            workspace.color,
            open_pipeline=self._open_pipeline,
            spell=spell_hint,
        )
        moved: list[tuple[str, int]] = []

        def move_symbols() -> str:
            self._open(state)
            found = None if self._kernel is None else self._kernel.find_symbol_file()
            if found is None:
                raise KcovdbgError("GDB's symbols are where the kernel is")
            moved.append(found)
            return symbol_file_command(*found)

        workspace.frontend = Frontend(lambda _color: terminal, move_symbols=move_symbols)
        try:
            if "words" in request:
                status = run_words(workspace, request["words"], terminal)
            else:
                status = run_line(workspace, request["line"], terminal)
        finally:
            self._tell_where(terminal)
            out.flush()
            err.flush()
        return {"status": status, "symbols": moved[-1] if moved else None}

    def _tell_where(self, terminal: Terminal) -> None:
        """Report once where the kernel is: GDB's own commands need to know."""
        if self._kernel is not None and not self._is_told:
            self._is_told = True
            write_remarks(terminal, [self._kernel.describe()])

    @contextlib.contextmanager
    def _open_pipeline(self, pipeline: str, _stdout: TextIO) -> Iterator[Destination]:
        """Have GDB run the programs that read an answer: it has the terminal."""
        problem = self._link.call("pipe", line=pipeline).fields["error"]
        if problem is not None:
            raise KcovdbgError(f"could not start the shell: {problem}")
        stream = _GdbStream(self._link, "feed")
        ended: list[int] = []
        with contextlib.suppress(BrokenPipeError):
            yield Destination(cast("TextIO", stream), lambda: ended[0])
            stream.flush()
        ended.append(pipeline_status(self._link.call("finish").fields["status"]))
        check_pipeline_status(pipeline, ended[0])

    def _where(self, request: Fields) -> Fields:
        """Return a line about where the kernel is, for a user who has just started GDB."""
        self._prepare(request["state"])
        self._open(request["state"])
        assert self._kernel is not None
        self._is_told = True
        return {"line": self._kernel.describe()}

    def _complete(self, request: Fields) -> Fields:
        from kcovdbg.console.completion import complete_word
        from kcovdbg.console.completion_index import Harvest

        os.chdir(request["cwd"])
        workspace = self._prepare(request["state"])
        if self._harvest is None:
            self._harvest = Harvest(workspace)
        # A serial line takes too long for a key.
        if request["state"].get("stub") != "kgdb":
            # Without a target, commands and options are completed.
            with contextlib.suppress(KcovdbgError):
                self._harvest.refresh()
        # GDB replaces the end of the word only, which begins after the last "-", "=", ":" or "/".
        words = complete_word(request["line"], request["word"], INSIDE, self._harvest.index)
        return {"words": words}

    def _call(self, request: Fields) -> Fields:
        """Return a number or a name about a task, for ``$kcov(tid)`` and the like."""
        from kcovdbg.walk.tasks import TaskWalk, read_current_tasks, read_task

        # GDB asks while the machine moves from stop to stop.
        workspace = self._prepare(request["state"], is_brief=True)
        target, tid = workspace.inputs.kernel.target, request["tid"]
        layout = workspace.inputs.kernel.memory.layout
        if tid is None:
            address = read_current_tasks(target).found.get(request["state"]["cpu"])
            if address is None:
                raise KcovdbgError(
                    "the CPU of the selected thread has no readable task",
                    hint="kcov-show tasks -a lists tasks",
                )
            task = read_task(target, layout, address)
            return {"value": self._value_of(request["name"], task, workspace)}
        try:
            address = cast("DrgnTarget", target).find_task(tid) if tid else 0
            found = read_task(target, layout, address) if address else None
        except ReadError:
            found = None
        # Idle tasks all have number 0: the first is the boot CPU's.
        walk = TaskWalk(target, layout)
        found = found or next((one for one in walk if one.pid == tid), None)
        if found is None:
            broken = f" ({'; '.join(walk.remarks)})" if walk.remarks else ""
            raise KcovdbgError(f"no task {tid}{broken}", hint="kcov-show tasks -a lists them")
        return {"value": self._value_of(request["name"], found, workspace)}

    def _value_of(self, name: str, task: TaskFields, workspace: Workspace) -> int | str:
        """Return the value of one of GDB's functions for a task."""
        from kcovdbg.walk.state import StateReader

        layout = workspace.inputs.kernel.memory.layout
        if name == "kcov_task":
            return task.address
        if name == "kcov_count":
            found = StateReader(workspace.inputs.kernel.target, layout).interpret(task)
            if found.count is None and found.errors:
                raise KcovdbgError("; ".join(found.errors))
            return found.count or 0
        members = [name]
        if name == "kcov":
            members.append("kcov_remote")
        values = [getattr(task, member) for member in members]
        for member, value in zip(members, values, strict=True):
            # A member that this kernel has may be on a missing page.
            if value is None and layout.task.has(member):
                raise KcovdbgError(f"{member} of {task.label} could not be read")
        value = next(filter(None, values), 0)
        if name == "kcov_mode":
            return layout.mode_name(value, task.mode_flag)
        return value

    def _name(self, request: Fields) -> Fields:
        """Return the names of a handle, or of a mode word with its flags, for pretty printers."""
        value = request["value"]
        if request["kind"] == "handle":
            return {"name": str(decode_handle(value))}
        known = request["known"]
        if self._workspace is not None:
            # A posted series may have modes that are no enumerators. Do not open a kernel only for
            # these.
            with contextlib.suppress(KcovdbgError):
                known = {**known, **self._workspace.inputs.kernel.memory.layout.modes}
        name = mode_name(value & ~IN_CTXSW, known)
        return {"name": f"{name} | IN_CTXSW" if value & IN_CTXSW else name}

    def _rows(self, request: Fields) -> Fields:
        """Return the lines of the window."""
        from kcovdbg.frontends.gdb.buffer_window import BufferWindow

        if request["reads"] or self._window is None:
            self._window = None
            self._window = BufferWindow(self._prepare(request["state"]), request["what"])
        drawn = self._window.draw(request)
        if drawn["address"] is not None and self._kernel is not None:
            drawn["address"] = self._kernel.address_in_gdb(drawn["address"])
        return drawn


# Words of the command line in hints, and the same in GDB.
_SPELLINGS: Final = (
    (re.compile(r"(?:kcovdbg )?--source-dir( [A-Z{]\S*)?"), r"directory\1"),
    (re.compile(r"(?:kcovdbg )?(?:-c VMCORE )?-s (VMLINUX|{\w+})"), r"symbol-file \1"),
    (re.compile(r"\bkcovdbg (?=[a-z])"), "kcov-show "),
)


def spell_hint(hint: str) -> str:
    """Return a hint in GDB's words: options of the command line are commands of GDB, and commands
    have a prefix.
    """
    for pattern, spelling in _SPELLINGS:
        hint = pattern.sub(spelling, hint)
    first = hint.partition(" ")[0]
    return f"{_PREFIX} {hint}" if first in INSIDE else hint


def _error_text(error: Exception, *, debug: bool) -> str:
    known = explain(error)
    if known.hint is not None:
        known.hint = spell_hint(known.hint)
    if not isinstance(error, (KcovdbgError, OSError)):
        known.hint = "please report it with the command and the output after set kcov debug on"
    plain = Painter()
    text = "\n".join(plain.paint(line) for line in error_lines(known))
    return "".join(traceback.format_exception(error)) + text if debug else text


def main() -> None:
    """Serve GDB until it ends."""
    link = Link(int(sys.argv[1]))
    link.interrupts.watch()
    server = Server(link)
    server.greet(VERSION)
    # Import drgn while GDB reads its files. If drgn is missing, the first command says so.
    with contextlib.suppress(ImportError):
        import_module("kcovdbg.target.drgn.programs")
    server.serve()


if __name__ == "__main__":
    main()
