# SPDX-License-Identifier: LGPL-2.1-or-later
"""The environment of commands: the kernel, names for its PCs, kept buffers, and the user's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Final, Protocol

from kcovdbg.console.buffer_arguments import ModuleCode
from kcovdbg.console.command import CommandTable
from kcovdbg.console.file_confinement import FileConfinement
from kcovdbg.console.renderable import Line
from kcovdbg.console.settings import Problem, Settings
from kcovdbg.console.symbol_sources import (
    find_point_proof,
    find_remote_calls,
    find_symbolizer,
    make_source_tree,
    wait_with_progress,
)
from kcovdbg.console.terminal import Color, Terminal, find_terminal, write_remarks
from kcovdbg.console.writer import Format
from kcovdbg.errors import KcovdbgError, TargetError
from kcovdbg.model.location import Location
from kcovdbg.model.point_proof import PointProof
from kcovdbg.records.compact_buffer import Kept
from kcovdbg.records.pc_names import LocationCache
from kcovdbg.target.protocol import Target
from kcovdbg.walk.layout import Layout, detect_layout
from kcovdbg.walk.state import StateReader

if TYPE_CHECKING:
    from kcovdbg.symbols.location_table import LocationTable
    from kcovdbg.symbols.remote_calls import RemoteCalls
    from kcovdbg.symbols.source_tree import SourceTree
    from kcovdbg.symbols.symbolizer import Symbolizer

# Seconds: enough for a large kernel's table on an idle machine.
_TABLE_PATIENCE: Final = 20.0


class BackgroundWork(Protocol):
    """What a command has started that goes on after it."""

    def announce(self) -> list[Line]:
        """Return what has ended since the last call, a line each."""

    def end(self) -> list[Line]:
        """End all of it, because the program ends; return what to report."""


@dataclass(eq=False)
class Workspace:
    """One run of kcovdbg, or one kernel inside another debugger: the kernel, kept buffers, and the user's settings."""

    commands: CommandTable
    open_target: Callable[[], Target] | None = None
    """Opens the kernel when a command first needs it; None where the user gave none."""
    is_target_named: bool = True
    """Whether the user named the kernel; otherwise it is the running one, if a command needs it."""
    color: Color = Color.AUTO
    find_terminal: Callable[[Color], Terminal] = find_terminal
    """Returns the current streams; other debuggers have their own."""
    find_symbolizer: Callable[[Target | None], Symbolizer | None] = find_symbolizer
    """Returns what locates the PCs of the kernel, which is None where there is no kernel."""
    has_screen: bool = False
    """Whether the frontend's terminal may be taken by full-screen views."""
    serve_tools: Callable[[Workspace, FileConfinement], None] | None = None
    """Serves commands to another program on standard input and output until it hangs up; None where a frontend cannot."""
    program: Sequence[str] | None = None
    """The words that run kcovdbg in another process, on this machine's kernel; None where a frontend cannot."""
    background: list[BackgroundWork] = field(default_factory=list)
    """What commands have started that goes on after them."""
    format: Format = Format.TEXT
    """The format of answers, unless a command says otherwise."""
    source_folders: Sequence[str] = ()
    """Roots of source trees that the user named."""
    substitutions: Sequence[tuple[str, str]] = ()
    """Prefixes of source paths, as debug info names them and as they are here."""
    other_vmlinux: Sequence[str] = ()
    """Images and location tables of other builds, which traces may be of."""
    other_sources: Sequence[str] = ()
    """The source trees that these were built from, in the same order; there may be fewer."""
    named_files: Sequence[str] = ()
    """Files named on the command line: dump, debug info, script."""
    find_gdb_arguments: Callable[[], Sequence[str]] = tuple
    """Returns the arguments with which GDB opens the kernel, none where the user gave none."""
    move_symbols: Callable[[], str] | None = None
    """Moves the symbols of the debugger around kcovdbg to where the kernel is, and returns the command for that; None where a
    frontend cannot."""
    settings: Settings = field(default_factory=Settings)
    """The user's configuration file."""
    debug: bool = False
    """Whether errors show where they come from."""
    confinement: FileConfinement | None = None
    """Confines the files that arguments name and source text comes from, where another program gives the arguments; None for
    any file."""
    of_builds: dict[str, Workspace] = field(default_factory=dict)
    """The environments of commands on traces of other builds, by build ID."""
    kept: dict[str, Kept] = field(default_factory=dict)
    """Kept buffers, by their ``@name``."""
    stop_reason: str | None = None
    """Where a command stopped the kernel for the user to look at it there: "at the write …"; None where none did."""
    scripts: list[str] = field(default_factory=list)
    """The files of commands that are being run, the outermost first."""
    latest: StateReader | None = field(default=None, init=False)
    """The reader of the latest command, for completion."""

    @cached_property
    def target(self) -> Target:
        """The kernel, opened when first asked for.

        :raises TargetError: when it cannot be opened.
        """
        if self.open_target is None:
            raise TargetError("no target", hint="kcovdbg -c VMCORE -s VMLINUX; kcovdbg --help lists the others")
        return self.open_target()

    @cached_property
    def optional_target(self) -> Target | None:
        """The kernel, None where there is none or it cannot be opened: trace files can be read without one."""
        return None if self._target_error is not None else self.target

    @property
    def target_problem(self) -> str:
        """Why there is no :attr:`optional_target`."""
        return "no kernel is given" if self._target_error is None else str(self._target_error)

    @property
    def names_problem(self) -> str:
        """Why PCs have no names without :attr:`optional_target`."""
        return self.target_problem if self.is_target_named else "no vmlinux is named: -s VMLINUX"

    @cached_property
    def _target_error(self) -> KcovdbgError | None:
        try:
            _ = self.target
        except KcovdbgError as error:
            return error
        return None

    @cached_property
    def symbolizer(self) -> Symbolizer | None:
        """Locates PCs of the kernel; None without one."""
        symbolizer = self.find_symbolizer(self.optional_target)
        if symbolizer is not None and symbolizer.note is not None:
            write_remarks(self.terminal(), [symbolizer.note])
        return symbolizer

    @cached_property
    def names(self) -> LocationCache:
        """Names for recorded PCs; without a kernel, PCs have none."""
        symbolizer = self.symbolizer
        if symbolizer is None:
            return LocationCache(lambda pcs: [Location(pc, ()) for pc in pcs])
        find_table = cache(partial(self._wait_for_table, symbolizer))

        def locate(pcs: Sequence[int]) -> Sequence[Location]:
            find_table()
            return symbolizer.locate_all(pcs)

        target = self.optional_target
        return LocationCache(locate, lambda: find_table() or symbolizer.table, None if target is None else ModuleCode(target))

    def _wait_for_table(self, symbolizer: Symbolizer) -> LocationTable | None:
        """Wait a moment for a table that is being built: without it, lines are less exact and tail calls are unknown."""
        if symbolizer.table is not None or not symbolizer.waits_for_table:
            return symbolizer.table
        wait_with_progress(
            self.terminal(),
            lambda: None if symbolizer.table is None and symbolizer.waits_for_table else symbolizer,
            symbolizer.progress,
            _TABLE_PATIENCE,
            is_quiet=True,
        )
        return symbolizer.table

    @cached_property
    def point_proof(self) -> PointProof:
        """Proves that records are coverage points."""
        return find_point_proof(self.target)

    @cached_property
    def remote_calls(self) -> RemoteCalls:
        """The calls of the kernel that announce remote handles."""
        return find_remote_calls(self.target)

    @cached_property
    def source(self) -> SourceTree:
        """The source of the kernel, where it can be found."""
        return make_source_tree(self.optional_target, self.source_folders, self.substitutions)

    @cached_property
    def layout(self) -> Layout:
        """Which KCOV the kernel has and where its members are.

        :raises TargetError: when it has none.
        """
        return detect_layout(self.target)

    def input_files(self) -> Iterator[str]:
        """Iterate over the files that are read: those of the target are known once it is open, source files once read."""
        yield from self.named_files
        if self.settings.path is not None:
            yield str(self.settings.path)
        opened = vars(self)
        yield from getattr(opened.get("target"), "files", ())
        yield from self.source_folders
        yield from self.other_sources
        yield from (new for _, new in self.substitutions)
        if "source" in opened:
            yield from map(str, self.source.paths)

    @cached_property
    def told_problems(self) -> Sequence[Problem]:
        """What is wrong in the configuration file, returned at the first call."""
        problems = self.settings.problems
        write_remarks(self.terminal(), [f"not used: {problem.place}: {problem.text}" for problem in problems])
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
