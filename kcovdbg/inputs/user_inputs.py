# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the user named for all commands, and what one command works on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kcovdbg.errors import GoneError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.state import Extent, Lack, Part, State
from kcovdbg.target.target import Target, make_memory_error
from kcovdbg.walk.layout import Layout
from kcovdbg.walk.state import StateReader

if TYPE_CHECKING:
    from kcovdbg.inputs.trace_paths import FileConfinement
    from kcovdbg.records.pc_options import ReadingOptions
    from kcovdbg.symbols.awaited_table import AwaitedTable


class Kept(NamedTuple):
    """A buffer that is kept in memory."""

    buffer: Buffer
    source: str
    """What it was copied from, in words."""


def keep(buffer: Buffer, name: str, source: str) -> Kept:
    """Return a buffer as it is kept.

    :param name: ``@name``.
    """
    return Kept(replace(buffer, name=name, live=False, file_words=None), source)


@dataclass(eq=False)
class UserInputs:
    """What the user named for all commands, and what earlier commands have kept."""

    kernel: Kernel = field(default_factory=Kernel)
    named_files: Sequence[str] = ()
    """Files named on the command line: dump, debug info, script."""
    other_vmlinux: Sequence[str] = ()
    """Images and location tables of other builds, which traces may be of."""
    other_sources: Sequence[str] = ()
    """The source trees that these were built from, in the same order; there may be fewer."""
    confinement: FileConfinement | None = None
    """Confines the files that arguments name and source text comes from, where another program
    gives the arguments; None for any file."""
    of_builds: dict[str, Kernel] = field(default_factory=dict)
    """The kernels of other builds that traces are of, by build ID."""
    kept: dict[str, Kept] = field(default_factory=dict)
    """Kept buffers, by their ``@name``."""
    latest: StateReader | None = field(default=None, init=False)
    """The reader of the latest command, for completion."""


@dataclass(slots=True)
class CommandInputs:
    """What one run of a command works on."""

    user: UserInputs
    kernel: Kernel
    """The user's kernel, or the kernel that recorded the command's traces."""
    command: str
    """Name of the command, for errors."""
    reading: ReadingOptions | None = None
    """How its traces are read; None for a command that takes no buffers."""
    wait: Callable[[AwaitedTable], None] | None = None
    """Waits a moment for a table that is being built: lists are read by its points."""
    uses_target: bool = False
    """True once the target is accessed."""
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
    def layout(self) -> Layout:
        """The layout of its KCOV."""
        return self.kernel.memory.layout

    @property
    def reader(self) -> StateReader:
        """Reads the kernel's state for this run.

        :raises CapabilityError: when the target has no memory.
        """
        if self._reader is None:
            self.require_memory()
            self._reader = self.user.latest = StateReader(
                self.target, self.layout, lambda: self.kernel.code.proof
            )
        return self._reader

    def require_memory(self) -> None:
        """Make sure that the kernel has memory.

        :raises CapabilityError: when it has none.
        """
        problem = self.kernel.target.memory_problem
        if problem is not None:
            raise make_memory_error(self.command, problem)

    def state(self, parts: Part) -> State:
        """Return KCOV's state with some parts; a run reads each part once."""
        return self.reader.read(parts)

    def find_lack(self, parts: Part | None) -> Lack:
        """Return the unread sources of parts of the state, by default of all parts that this run
        has asked for.
        """
        if self._reader is None:
            return Lack()
        state = self._reader.recall()
        parts = state.parts if parts is None else parts
        return Lack(state.unread(parts), is_total=state.extent(parts) is Extent.NONE)
