# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands work with: the kernel, what was kept, and where the answer goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kcovdbg.analysis.naming import Names
from kcovdbg.commands.command import Command, CommandTable, Need
from kcovdbg.commands.locating import make_source_tree, make_symbolizer
from kcovdbg.commands.terminal import Terminal, find_terminal
from kcovdbg.errors import CapabilityError, KcovdbgError, TargetError
from kcovdbg.model.location import Location
from kcovdbg.render.theme import Color
from kcovdbg.render.writer import Format
from kcovdbg.target import Target
from kcovdbg.walk.census import Census
from kcovdbg.walk.layout import Layout, detect_layout

if TYPE_CHECKING:
    from kcovdbg.collect.job import Jobs
    from kcovdbg.commands.viewing import View
    from kcovdbg.symbols.resolve import Symbolizer
    from kcovdbg.symbols.source import SourceTree

_NATIVE_MODULE = "kcovdbg._native"


class Session:
    """One run of kcovdbg, or one kernel inside another debugger.

    :param commands: the table.
    :param open_target: opens the kernel when a command first needs it; None where the user gave none.
    :param color: what the user said about colours.
    :param find_terminal: looks at the streams; other debuggers have their own.
    """

    def __init__(
        self,
        commands: CommandTable,
        open_target: Callable[[], Target] | None = None,
        *,
        color: Color = Color.AUTO,
        find_terminal: Callable[[Color], Terminal] = find_terminal,
    ) -> None:
        self.commands = commands
        self.color = color
        self.jobs: Jobs | None = None
        """Collectors in the background; None where a frontend can't have any."""
        self.format = Format.TEXT
        """For commands that don't say otherwise."""
        self.kept: dict[str, Any] = {}
        """Buffers that were kept, by their ``@name``."""
        self.show_view: Callable[[View], None] | None = None
        """Shows a view full-screen and returns when the user leaves it; None where a frontend can't."""
        self.source_folders: tuple[str, ...] = ()
        """Roots of source trees that the user named."""
        self.substitutions: tuple[tuple[str, str], ...] = ()
        """Prefixes of source paths, as debug info names them and as they are here."""
        self.debug = False
        """Whether errors show where they come from."""
        self.latest: Census | None = None
        """The look at the kernel that the latest command took, for what completes next."""
        self.target_problem = "no kernel is given"
        """Why there is no :attr:`optional_target`."""
        self._open_target = open_target
        self._find_terminal = find_terminal

    @cached_property
    def target(self) -> Target:
        """The kernel, opened when first asked for.

        :raises TargetError: when it can't be opened.
        """
        if self._open_target is None:
            raise TargetError("no target", hint="kcovdbg -c VMCORE -s VMLINUX; kcovdbg --help lists the others")
        return self._open_target()

    @cached_property
    def optional_target(self) -> Target | None:
        """The kernel, None where there is none or it can't be opened: a trace file can be looked at without one."""
        try:
            return self.target
        except KcovdbgError as error:
            self.target_problem = str(error)
            return None

    @cached_property
    def symbolizer(self) -> Symbolizer | None:
        """Locates PCs of the kernel; None without one."""
        target = self.optional_target
        return None if target is None else make_symbolizer(target)

    @cached_property
    def names(self) -> Names:
        """Names for recorded PCs; without a kernel, PCs have none."""
        symbolizer = self.symbolizer
        if symbolizer is None:
            return Names(lambda pcs: [Location(pc, ()) for pc in pcs])
        return Names(symbolizer.locate_all)

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

    def terminal(self) -> Terminal:
        """Look at the streams as they are now."""
        return self._find_terminal(self.color)


@dataclass(slots=True)
class Context:
    """One run of one command."""

    session: Session
    command: Command
    terminal: Terminal
    format: Format = Format.TEXT
    status: int = 0
    """The exit status; a handler sets 1 for violations and differences, 2 for failure without an error of its own."""
    pc: str = "auto"
    """What PCs in text files are: ``raw``, ``call``, or whichever fits."""
    _census: Census | None = field(default=None, repr=False)

    @property
    def target(self) -> Target:
        """The kernel."""
        return self.session.target

    @property
    def layout(self) -> Layout:
        """Which KCOV it has."""
        return self.session.layout

    @property
    def width(self) -> int | None:
        """The terminal's width, None where the answer doesn't go to one."""
        return self.terminal.width

    @property
    def census(self) -> Census:
        """This run's look at KCOV's state."""
        if self._census is None:
            self._census = self.session.latest = Census(self.target, self.layout)
        return self._census

    def require(self, need: Need) -> None:
        """Make sure that the command has what it needs.

        :raises CapabilityError: when it hasn't.
        """
        name = self.command.name
        if need is Need.TERMINAL and not self.terminal.is_terminal:
            raise CapabilityError(f"{name} needs {need.value}")
        if need is Need.LIVE and not self.target.live:
            raise CapabilityError(f"{name} needs {need.value}; {self.target.name} isn't one")
        if need is Need.NATIVE:
            from importlib.util import find_spec

            if find_spec(_NATIVE_MODULE) is None:
                raise CapabilityError(
                    f"{name} needs {need.value}, which this installation lacks",
                    hint="install kcovdbg with a C compiler at hand",
                )
