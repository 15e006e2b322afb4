# SPDX-License-Identifier: LGPL-2.1-or-later
"""The environment of commands (the user's terminal and settings, kept buffers, the kernel), and one
run of one of them.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Protocol

from kcovdbg.console.argument import Value
from kcovdbg.console.command import Command, CommandTable, Need
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.renderable import Line
from kcovdbg.console.settings import Problem, Settings
from kcovdbg.console.terminal import Color, Terminal, find_terminal, write_remarks
from kcovdbg.console.writer import Format
from kcovdbg.errors import CapabilityError, GoneError
from kcovdbg.model.state import Extent, Lack, Part, State
from kcovdbg.target.protocol import Target, make_memory_error
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.state import StateReader

if TYPE_CHECKING:
    from kcovdbg.console.trace_paths import FileConfinement
    from kcovdbg.records.trace_file import Kept
    from kcovdbg.symbols.symbolizer import Symbolizer

# Seconds: enough for a large kernel's table on an idle machine.
_TABLE_PATIENCE: Final = 20.0


class BackgroundWork(Protocol):
    """Work that a command has started and that goes on after it."""

    def announce(self) -> list[Line]:
        """Return what has ended since the last call, a line each."""

    def end(self) -> list[Line]:
        """End all of it, because the program ends; return what to report."""


@dataclass(eq=False)
class Workspace:
    """One run of kcovdbg, or one kernel inside another debugger: the user's terminal and settings,
    and kept buffers.
    """

    commands: CommandTable
    kernel: Kernel = field(default_factory=Kernel)
    """The kernel that commands read; its user waits for location tables at this terminal."""
    color: Color = Color.AUTO
    find_terminal: Callable[[Color], Terminal] = find_terminal
    """Returns the current streams; other debuggers have their own."""
    has_screen: bool = False
    """Whether the frontend's terminal may be taken by full-screen views."""
    serve_tools: Callable[[Workspace, FileConfinement], None] | None = None
    """Serves commands to another program on standard input and output until it hangs up; None where
    a frontend cannot.
    """
    find_program: Callable[[], Sequence[str]] | None = None
    """Returns the words that run kcovdbg in another process, on this machine's kernel; None where a
    frontend cannot.
    """
    background: list[BackgroundWork] = field(default_factory=list)
    """Work of commands that goes on after them."""
    format: Format = Format.TEXT
    """The format of answers, unless a command says otherwise."""
    other_vmlinux: Sequence[str] = ()
    """Images and location tables of other builds, which traces may be of."""
    other_sources: Sequence[str] = ()
    """The source trees that these were built from, in the same order; there may be fewer."""
    named_files: Sequence[str] = ()
    """Files named on the command line: dump, debug info, script."""
    find_gdb_arguments: Callable[[], Sequence[str]] = tuple
    """Returns the arguments with which GDB opens the kernel, none where the user gave none."""
    move_symbols: Callable[[], str] | None = None
    """Moves the symbols of the debugger around kcovdbg to where the kernel is, and returns the
    command for that; None where a frontend cannot."""
    settings: Settings = field(default_factory=Settings)
    """The user's configuration file."""
    debug: bool = False
    """Whether errors show where they come from."""
    confinement: FileConfinement | None = None
    """Confines the files that arguments name and source text comes from, where another program
    gives the arguments; None for any file."""
    of_builds: dict[str, Kernel] = field(default_factory=dict)
    """The kernels of other builds that traces are of, by build ID."""
    kept: dict[str, Kept] = field(default_factory=dict)
    """Kept buffers, by their ``@name``."""
    stop_reason: str | None = None
    """The point at which a command stopped the kernel for the user to look at it: "at the write …";
    None where none did.
    """
    reads_only: bool = False
    """Whether lines may do nothing but read and print, because the user neither typed them nor
    named their script.
    """
    scripts: list[str] = field(default_factory=list)
    """The files of commands that are being run, the outermost first."""
    latest: StateReader | None = field(default=None, init=False)
    """The reader of the latest command, for completion."""

    def __post_init__(self) -> None:
        self.kernel.wait = self._wait_for_table
        self.kernel.write_remark = lambda remark: write_remarks(self.terminal(), [remark])

    def _wait_for_table(self, symbolizer: Symbolizer) -> None:
        # Most commands name no PC.
        from kcovdbg.console.table_progress import wait_for_table

        wait_for_table(self.terminal(), symbolizer, _TABLE_PATIENCE, is_quiet=True)

    @cached_property
    def settings_problems(self) -> Sequence[Problem]:
        """Problems of the configuration file, reported at the first call."""
        problems = self.settings.problems
        write_remarks(
            self.terminal(),
            [f"not used: {self.settings.path}: {problem.text}" for problem in problems],
        )
        return problems

    def announce(self) -> list[Line]:
        """Return what has ended in the background since the last call, a line each."""
        return [line for work in self.background for line in work.announce()]

    def end_background(self) -> list[Line]:
        """End what goes on in the background, because the program ends; return what to report."""
        return [line for work in self.background for line in work.end()]

    def terminal(self) -> Terminal:
        """Return the current streams."""
        return self.find_terminal(self.color)


@dataclass(slots=True)
class Context:
    """One run of one command."""

    workspace: Workspace
    kernel: Kernel
    """The workspace's, or that of the build that the command's traces are of."""
    command: Command
    args: Namespace
    """The values that the user gave it."""
    terminal: Terminal
    format: Format = Format.TEXT
    status: int = 0
    """The exit status; a handler sets 1 for violations and differences, 2 for failure without an
    error of its own.
    """
    uses_target: bool = False
    """True once the target is accessed."""
    shows_target: bool = False
    """Whether the run has shown what is known of the kernel, whose machine may have ended."""
    _reader: StateReader | None = field(default=None, repr=False)

    @property
    def target(self) -> Target:
        """The kernel.

        :raises GoneError: when its machine has ended.
        """
        target = self.kernel.target
        self.uses_target = True
        if target.is_gone():
            raise GoneError(target.name)
        return target

    @property
    def known_target(self) -> Target:
        """The kernel, even after its machine has ended."""
        self.shows_target = True
        return self.kernel.target

    @property
    def layout(self) -> Layout:
        """The layout of its KCOV."""
        return self.kernel.layout

    @property
    def running_features(self) -> Collection[str] | None:
        """Features of the kernel that runs on this machine; None where its debug info is not at
        hand.
        """
        from kcovdbg.target.local_kernel import is_this_machine

        target = self.kernel.optional_target
        return (
            None
            if target is None or not is_this_machine(target)
            else self.layout.generation.features
        )

    @property
    def width(self) -> int | None:
        """The terminal's width, None where the answer does not go to one."""
        return self.terminal.width

    @property
    def reader(self) -> StateReader:
        """Reads the kernel's state for this run.

        :raises CapabilityError: when the target has no memory.
        """
        if self._reader is None:
            self.require(Need.MEMORY)
            self._reader = self.workspace.latest = StateReader(
                self.target, self.layout, lambda: self.kernel.point_proof
            )
        return self._reader

    def inputs(self) -> Iterator[str]:
        """Iterate over the files that the run reads, which its output must not overwrite."""
        return find_input_files(self.workspace, self.command, self.args)

    def state(self, parts: Part) -> State:
        """Return KCOV's state with some parts; a run reads each part once."""
        return self.reader.read(parts)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on unreadable data of this run so far."""
        return self.state(Part.NOTHING).notes

    def find_lack(self, parts: Part | None = None) -> Lack:
        """Return what could not be read of some parts that this run has asked for, by default of
        all so far.
        """
        if self._reader is None:
            return Lack()
        state = self._reader.recall()
        parts = state.parts if parts is None else parts
        return Lack(state.unread(parts), is_total=state.extent(parts) is Extent.NONE)

    def require(self, need: Need) -> None:
        """Make sure that the command has what it needs.

        :raises CapabilityError: when it hasn't.
        """
        name = self.command.name
        if need in (Need.NAMES, Need.POINTS, Need.CODE):
            target = self.kernel.target
            if need is Need.CODE and self.kernel.image is None:
                raise CapabilityError(
                    f"{name} needs the kernel's code; {target.memory_problem or target.name}",
                    hint="-s VMLINUX",
                )
        if need is Need.MEMORY and self.kernel.target.memory_problem is not None:
            raise make_memory_error(name, self.kernel.target.memory_problem)
        if need is Need.TERMINAL and not self.terminal.is_terminal:
            raise CapabilityError(f"{name} needs {need.value}")
        if need is Need.LIVE and not self.target.live:
            raise CapabilityError(f"{name} needs {need.value}; {self.target.name} is not one")


def find_input_files(workspace: Workspace, command: Command, args: Namespace) -> Iterator[str]:
    """Iterate over the files that a command reads: the target's, the settings, source files, and
    traces in its arguments.
    """
    settings = () if workspace.settings.path is None else (str(workspace.settings.path),)
    yield from (
        *workspace.named_files,
        *settings,
        *workspace.kernel.input_files(),
        *workspace.other_sources,
    )
    for argument in command.arguments:
        value = getattr(args, argument.attribute, None)
        words = [
            word
            for word in (value if isinstance(value, list) else [value])
            if isinstance(word, str)
        ]
        if argument.value is Value.BUFFER:
            from kcovdbg.console.trace_paths import find_input_traces

            for word in words:
                yield from find_input_traces(word)
        elif argument.value is Value.FILE and not argument.is_output:
            yield from words
