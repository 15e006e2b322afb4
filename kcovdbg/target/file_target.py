# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel of which only files are at hand: names without memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcovdbg.errors import CapabilityError
from kcovdbg.target.connection import Connection

_MEMORY_HINT: Final = "give its dump: -c VMCORE, or its machine: --qemu ADDR, --gdb-remote ADDR, or -k on the machine itself"


def make_memory_error(subject: str, problem: str) -> CapabilityError:
    """Return the error of what needs the memory of a kernel that has none.

    :param subject: a command, or what is to be read.
    :param problem: what was given instead, as in :attr:`~kcovdbg.target.protocol.Target.memory_problem`.
    """
    return CapabilityError(f"{subject} needs the kernel's memory; {problem}", hint=_MEMORY_HINT)


class FileTarget:
    """The part of a :class:`~kcovdbg.target.protocol.Target` that is about memory and machines, for one that has neither.

    :param name: what messages call it, as the user gave it.
    :param noun: what it is: "a kernel image".
    """

    live = False
    kaslr_offset = 0
    kernel_range = (0, 0)
    pointer_tag = 0
    damage = ()
    vmas = None
    vmalloc = None
    slab = None
    stacks = None
    watchpoints = None

    def __init__(self, name: str, noun: str) -> None:
        self.name = name
        self.notes: Sequence[str] = ()
        """For the user, on how it was opened."""
        self.memory_problem = f"{name} is {noun}"
        nothing = self.connection = Connection()
        self.state, self.is_gone = nothing.state, nothing.is_gone
        self.stop_note, self.resume = nothing.stop_note, nothing.resume
        self.leave_stopped = nothing.leave_stopped

    def read(self, address: int, size: int) -> bytes:
        """Refuse to read memory.

        :raises CapabilityError: always.
        """
        raise make_memory_error(f"reading {size} bytes at {address:#x}", self.memory_problem)

    def cpus(self) -> Sequence[int]:
        """Refuse: which CPUs are possible is in memory.

        :raises CapabilityError: always.
        """
        raise make_memory_error("the mask of possible CPUs", self.memory_problem)

    def per_cpu(self, name: str, cpu: int) -> int:
        """Refuse: the offset of a CPU is in memory.

        :raises CapabilityError: always.
        """
        raise make_memory_error(f"{name} of CPU {cpu}", self.memory_problem)
