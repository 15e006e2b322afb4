# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands run in: the workspace, with the user's settings, kept buffers and kernel, and the
context of one run of a command.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from kcovdbg.console.argument import Value
from kcovdbg.console.command import Command, CommandTable, Need
from kcovdbg.console.output_files import STDOUT
from kcovdbg.console.renderable import Line
from kcovdbg.console.settings import Problem, Settings
from kcovdbg.console.terminal import Color, Terminal, find_terminal, write_remarks
from kcovdbg.console.writer import Format
from kcovdbg.errors import CapabilityError, UsageError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.user_inputs import CommandInputs, UserInputs
from kcovdbg.model.state import Part, State
from kcovdbg.target.target import Target
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.state import StateReader

if TYPE_CHECKING:
    from kcovdbg.inputs.trace_paths import FileConfinement
    from kcovdbg.records.pc_locations import LocationCache


class BackgroundWork(Protocol):
    """Work that a command has started and that goes on after the command."""

    def announce(self) -> list[Line]:
        """Return lines about the parts that have ended since the last call."""

    def end(self) -> list[Line]:
        """End all parts, because the program ends; return lines about them."""


@dataclass(frozen=True)
class Frontend:
    """What commands can do in one frontend. A function is None if the frontend cannot do it."""

    find_terminal: Callable[[Color], Terminal] = find_terminal
    """Returns the current streams; other debuggers have their own."""
    has_screen: bool = False
    """Whether full-screen views may use the frontend's terminal."""
    serve_tools: Callable[[Workspace, FileConfinement], None] | None = None
    """Serves commands to another program on standard input and output until it hangs up."""
    find_program: Callable[[], Sequence[str]] | None = None
    """Returns the command line that runs kcovdbg in another process, on this machine's kernel."""
    find_gdb_arguments: Callable[[], Sequence[str]] = tuple
    """Returns the arguments with which GDB opens the kernel, or none if the user named none."""
    move_symbols: Callable[[], str] | None = None
    """Moves the symbols of the debugger that runs kcovdbg to where the kernel is, and returns the
    debugger's command for that.
    """


@dataclass(eq=False)
class Workspace:
    """One run of kcovdbg, or one kernel inside another debugger: the user's inputs and settings."""

    commands: CommandTable
    inputs: UserInputs = field(default_factory=UserInputs)
    """What commands work on."""
    frontend: Frontend = Frontend()
    color: Color = Color.AUTO
    format: Format = Format.TEXT
    """The format of answers, unless a command says otherwise."""
    settings: Settings = field(default_factory=Settings)
    """The user's configuration file."""
    debug: bool = False
    """Whether errors show where they come from."""
    background: list[BackgroundWork] = field(default_factory=list)
    """Work of commands that goes on after them."""
    stop_reason: str | None = None
    """Where a command has left the kernel stopped for the user: ``where refcount of … was broken``;
    None if none has.
    """
    reads_only: bool = False
    """Whether lines may only read and print, because the user neither typed them nor named their
    script.
    """
    scripts: list[str] = field(default_factory=list)
    """The files of commands that are being run, the outermost first."""

    @cached_property
    def settings_problems(self) -> Sequence[Problem]:
        """Problems of the configuration file; they are reported once."""
        problems = self.settings.problems
        write_remarks(
            self.terminal(),
            [f"not used: {self.settings.path}: {problem.text}" for problem in problems],
        )
        return problems

    def announce(self) -> list[Line]:
        """Return lines about work in the background that has ended since the last call."""
        return [line for work in self.background for line in work.announce()]

    def end_background(self) -> list[Line]:
        """End the work in the background, because the program ends; return lines about it."""
        return [line for work in self.background for line in work.end()]

    def terminal(self) -> Terminal:
        """Return the current streams."""
        return self.frontend.find_terminal(self.color)


@dataclass(slots=True)
class Context:
    """One run of one command."""

    workspace: Workspace
    inputs: CommandInputs
    command: Command
    args: Namespace
    """The values of the command's arguments."""
    terminal: Terminal
    format: Format = Format.TEXT
    status: int = 0
    """The exit status. A handler sets 1 for violations and differences, and 2 if it fails without
    raising an error.
    """

    @property
    def kernel(self) -> Kernel:
        """The kernel; if the command's traces are of another build, that build's kernel."""
        return self.inputs.kernel

    @property
    def names(self) -> LocationCache:
        """Names for recorded PCs. Waits some time for a table that is being built."""
        # Imported here because most commands name no PC.
        from kcovdbg.console.table_progress import wait_for_names

        if self.kernel.names.awaited_table is not None:
            wait_for_names(self.workspace.terminal(), self.kernel.names.awaited_table)
        return self.kernel.names.locations

    @property
    def target(self) -> Target:
        """The kernel; see :attr:`.CommandInputs.target`."""
        return self.inputs.target

    @property
    def layout(self) -> Layout:
        """The layout of its KCOV."""
        return self.inputs.layout

    @property
    def running_features(self) -> Collection[str] | None:
        """Features of the kernel that runs on this machine; None if its debug info is missing."""
        from kcovdbg.target.local_kernel import is_this_machine

        target = self.kernel.memory.optional_target
        if target is None or not is_this_machine(target):
            return None
        return self.layout.generation.features

    @property
    def width(self) -> int | None:
        """The terminal's width; None if the answer does not go to a terminal."""
        return self.terminal.width

    @property
    def has_screen(self) -> bool:
        """Whether a full-screen view can show the answer."""
        is_shown = self.terminal.is_terminal and self.format is Format.TEXT
        return is_shown and self.workspace.frontend.has_screen

    def require_screen(self, hint: str) -> None:
        """Make sure that a full-screen view can show the answer.

        :param hint: how the command answers without such a view.
        :raises CapabilityError: when it cannot.
        """
        if self.has_screen:
            return
        problem = "no full-screen view here"
        if self.workspace.frontend.has_screen:
            problem = "standard output is not a terminal"
        raise CapabilityError(f"{self.command.name}: {problem}", hint=hint)

    @property
    def reader(self) -> StateReader:
        """The reader of the kernel's state for this run; see :attr:`.CommandInputs.reader`."""
        return self.inputs.reader

    def renew(self) -> Context:
        """Return the same run, which reads the kernel's state again."""
        return replace(self, inputs=replace(self.inputs, _reader=None))

    def input_files(self) -> Iterator[str]:
        """Iterate over the files that the run reads, and that its output must not overwrite."""
        return find_input_files(self.workspace, self.command, self.args)

    def state(self, parts: Part) -> State:
        """Return KCOV's state with these parts; a run reads each part once."""
        return self.inputs.state(parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the data that this run could not read so far."""
        return self.state(Part.NOTHING).notes

    def writes_stdout(self, output: str | None) -> bool:
        """Return whether the command writes its file to standard output.

        :param output: the file that the user named.
        :raises UsageError: when JSON or CSV would go there as well.
        """
        if output != STDOUT:
            return False
        if self.format is not Format.TEXT:
            raise UsageError(
                f"{self.command.name}: cannot write JSON or CSV to standard output",
                hint="add -o FILE; then --json describes the file",
            )
        return True

    def require(self, need: Need) -> None:
        """Make sure that the command has what it needs.

        :raises CapabilityError: when it does not.
        """
        needed = f"{self.command.name} needs {need.value}"
        target = self.kernel.target
        if need is Need.NAMES:
            if not self.kernel.names.are_known:
                raise CapabilityError(f"{needed}; {target.name} has none", hint="-s VMLINUX")
            _ = self.names
        if need is Need.POINTS:
            self.kernel.points.require_known()
        if need is Need.CODE and self.kernel.code.image is None:
            raise CapabilityError(
                f"{needed}; {target.memory_problem or target.name}", hint="-s VMLINUX"
            )
        if need is Need.MEMORY:
            self.inputs.require_memory()


def find_input_files(workspace: Workspace, command: Command, args: Namespace) -> Iterator[str]:
    """Iterate over the files that a command reads: the target's, the settings, source files, and
    traces in its arguments.
    """
    yield from workspace.inputs.named_files
    if workspace.settings.path is not None:
        yield str(workspace.settings.path)
    yield from workspace.inputs.kernel.input_files()
    yield from workspace.inputs.other_sources
    for argument in command.arguments:
        value = getattr(args, argument.attribute, None)
        given = value if isinstance(value, list) else [value]
        words = [word for word in given if isinstance(word, str)]
        if argument.is_output:
            continue
        if argument.value is Value.FILE:
            yield from words
        elif words:
            from kcovdbg.inputs.trace_paths import find_input_traces

            # Any other word may name a trace or a log: ``file:PATH``.
            for word in words:
                yield from find_input_traces(word)
