# SPDX-License-Identifier: LGPL-2.1-or-later
"""The inputs that the user named for all commands, and the inputs of one command."""

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
    """Description of the buffer that it is a copy of."""


def keep(buffer: Buffer, name: str, source: str) -> Kept:
    """Return a copy of a buffer, to be kept.

    :param name: ``@name``.
    """
    return Kept(replace(buffer, name=name, live=False, file_words=None), source)


@dataclass(eq=False)
class UserInputs:
    """The inputs that the user named for all commands, and the buffers that commands have kept."""

    kernel: Kernel = field(default_factory=Kernel)
    named_files: Sequence[str] = ()
    """Files named on the command line: dump, debug info, script."""
    other_vmlinux: Sequence[str] = ()
    """Images and location tables of other builds that recorded traces."""
    other_sources: Sequence[str] = ()
    """The source trees of the first of these builds, in the same order."""
    confinement: FileConfinement | None = None
    """Confines trace files and source text, if another program gives the arguments; None for no
    limits.
    """
    of_builds: dict[str, Kernel] = field(default_factory=dict)
    """The kernels of other builds that recorded traces, by build ID."""
    kept: dict[str, Kept] = field(default_factory=dict)
    """Kept buffers, by their ``@name``."""
    latest: StateReader | None = field(default=None, init=False)
    """The reader of the latest command, for completion."""


@dataclass(slots=True)
class CommandInputs:
    """The inputs of one run of a command."""

    user: UserInputs
    kernel: Kernel
    """The user's kernel, or the kernel that recorded the command's traces."""
    command: str
    """Name of the command, for errors."""
    reading: ReadingOptions | None = None
    """How to read its traces; None for a command that takes no buffers."""
    wait: Callable[[AwaitedTable], None] | None = None
    """Waits a moment for a table that is being built, whose points show the convention of lists."""
    uses_target: bool = False
    """Whether the command has accessed the target."""
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
        """Make sure that the target has memory.

        :raises CapabilityError: when it has none.
        """
        problem = self.kernel.target.memory_problem
        if problem is not None:
            raise make_memory_error(self.command, problem)

    def state(self, parts: Part) -> State:
        """Return KCOV's state with some parts; a run reads each part once."""
        return self.reader.read(parts)

    def find_lack(self, parts: Part | None) -> Lack:
        """Return the data that could not be read for some parts of the state.

        :param parts: None for all parts that this run has asked for.
        """
        if self._reader is None:
            return Lack()
        state = self._reader.recall()
        parts = state.parts if parts is None else parts
        return Lack(state.unread(parts), is_total=state.extent(parts) is Extent.NONE)
