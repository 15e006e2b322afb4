# SPDX-License-Identifier: LGPL-2.1-or-later
"""One run of one command."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from kcovdbg.console.argument import Value
from kcovdbg.console.command import Command, Need
from kcovdbg.console.kernel import Kernel
from kcovdbg.console.terminal import Terminal
from kcovdbg.console.workspace import Workspace
from kcovdbg.console.writer import Format
from kcovdbg.errors import CapabilityError, GoneError
from kcovdbg.model.state import Part, State
from kcovdbg.target.protocol import Target, make_memory_error
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.state import StateReader


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
    """The exit status; a handler sets 1 for violations and differences, 2 for failure without an error of its own."""
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
        """Features of the kernel that runs on this machine; None where its debug info is not at hand."""
        from kcovdbg.target.local_kernel import is_this_machine

        target = self.kernel.optional_target
        return None if target is None or not is_this_machine(target) else self.layout.generation.features

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
            self._reader = self.workspace.latest = StateReader(self.target, self.layout, lambda: self.kernel.point_proof)
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

    def require(self, need: Need) -> None:
        """Make sure that the command has what it needs.

        :raises CapabilityError: when it hasn't.
        """
        name = self.command.name
        if need in (Need.NAMES, Need.POINTS, Need.CODE):
            target = self.kernel.target
            if need is Need.CODE and self.kernel.image is None:
                raise CapabilityError(
                    f"{name} needs the kernel's code; {target.memory_problem or target.name}", hint="-s VMLINUX"
                )
        if need is Need.MEMORY and self.kernel.target.memory_problem is not None:
            raise make_memory_error(name, self.kernel.target.memory_problem)
        if need is Need.TERMINAL and not self.terminal.is_terminal:
            raise CapabilityError(f"{name} needs {need.value}")
        if need is Need.LIVE and not self.target.live:
            raise CapabilityError(f"{name} needs {need.value}; {self.target.name} is not one")


def find_input_files(workspace: Workspace, command: Command, args: Namespace) -> Iterator[str]:
    """Iterate over the files that a command reads: the target's, the script, source files, and traces in its arguments."""
    yield from workspace.input_files()
    for argument in command.arguments:
        value = getattr(args, argument.attribute, None)
        words = [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
        if argument.value is Value.BUFFER:
            from kcovdbg.console.trace_paths import find_input_traces

            for word in words:
                yield from find_input_traces(word)
        elif argument.value is Value.FILE and not argument.is_output:
            yield from words
