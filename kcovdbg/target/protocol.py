# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that can be read: memory, symbols and types, whatever debugger provides them.

Every implementation has what :class:`Target` has. What some lack (VMAs, vmalloc areas, stacks, slab objects, watchpoints) is a
capability: an attribute that is None when it is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kcovdbg.errors import CapabilityError
from kcovdbg.model.memory import StackFrame, VmallocArea
from kcovdbg.target.connection import Connection, MachineState
from kcovdbg.target.watchpoints import Watchpoints


class Symbol(NamedTuple):
    """A symbol of the kernel, static ones included."""

    name: str
    address: int
    size: int


class Member(NamedTuple):
    """The place of a member in its structure, and how its bytes are decoded."""

    offset: int
    """In bytes; of a bit-field, that of its unit."""
    size: int
    """In bytes; of an array, of all elements."""
    type_name: str
    signed: bool = False
    length: int | None = None
    """The number of elements of an array."""
    bit_offset: int | None = None
    """Of the lowest bit of a bit-field, counted from the least significant bit of its unit."""
    bit_size: int | None = None


class Vma(NamedTuple):
    """A mapping in a user address space."""

    start: int
    end: int
    pgoff: int
    flags: int
    file: int
    """``struct file *``; 0 for anonymous memory."""


class SlabObject(NamedTuple):
    """An allocated object of a general slab cache."""

    address: int
    data: bytes


class VmaSource(Protocol):
    """Mappings of user address spaces."""

    def for_each_vma(self, mm: int) -> Iterator[Vma]:
        """Yield the mappings in the order of their addresses.

        :param mm: ``struct mm_struct *``.
        :raises ReadError: when the tree cannot be read further.
        """


class VmallocSource(Protocol):
    """The kernel's vmalloc areas."""

    def for_each_vmalloc_area(self) -> Iterator[VmallocArea]:
        """Yield all vmalloc areas.

        :raises ReadError: when they cannot be read further.
        """


class SlabSource(Protocol):
    """Objects of the slab allocator."""

    def for_each_slab_object(self, size: int) -> Iterator[SlabObject]:
        """Yield allocated objects of the general caches that serve requests of this size.

        :param size: in bytes.
        :raises ReadError: when a cache cannot be read further.
        """

    def for_each_file(self) -> Iterator[int]:
        """Yield every allocated ``struct file *``, whoever holds it.

        :raises ReadError: when the cache cannot be read further.
        """


class StackSource(Protocol):
    """Kernel stacks."""

    @property
    def note(self) -> str | None:
        """A peculiarity of how they are unwound, None without one."""

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack; a dead task has none.

        :param task: ``struct task_struct *``.
        :raises CapabilityError: when it cannot be unwound, as that of a running task of a live kernel.
        """

    def crashed_task(self) -> int | None:
        """Return the ``struct task_struct *`` that crashed the kernel, None when none did."""


class Target(Protocol):
    """A kernel that can be read.

    Attributes are fixed once the target is open; reads are answered from the target each time.
    """

    @property
    def name(self) -> str:
        """The target as the user named it."""

    @property
    def live(self) -> bool:
        """Whether the kernel runs while it is read."""

    @property
    def word_size(self) -> int:
        """Bytes of the kernel's ``unsigned long``."""

    @property
    def big_endian(self) -> bool:
        """Byte order."""

    @property
    def kernel_range(self) -> tuple[int, int]:
        """The first and last address that a pointer of this kernel can have."""

    @property
    def pointer_tag(self) -> int:
        """The bits of a pointer in the kernel's memory that are a tag, set in addresses; 0 in kernels without tags."""

    @property
    def kaslr_offset(self) -> int:
        """The KASLR offset of the kernel's image, in bytes."""

    @property
    def release(self) -> str:
        """The release, as of uname -r."""

    @property
    def machine(self) -> str:
        """The machine, as of uname -m."""

    @property
    def build_id(self) -> str | None:
        """The build ID of the kernel's image, hexadecimal."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user on how the target was opened, a line each."""

    @property
    def damage(self) -> Sequence[str]:
        """Damage of a dump, a line each; the notes have these lines as well."""

    @property
    def memory_problem(self) -> str | None:
        """Description of a target without memory, as in "vmlinux is a kernel image"; None where it has memory."""

    @property
    def vmas(self) -> VmaSource | None:
        """Mappings."""

    @property
    def vmalloc(self) -> VmallocSource | None:
        """Vmalloc areas."""

    @property
    def slab(self) -> SlabSource | None:
        """Slab objects."""

    @property
    def stacks(self) -> StackSource | None:
        """Kernel stacks."""

    @property
    def watchpoints(self) -> Watchpoints | None:
        """Hardware watchpoints."""

    def state(self) -> MachineState | None:
        """Ask what the machine does at the moment; None for a dump."""

    def stop_note(self) -> str | None:
        """Return a note on who stopped the machine before kcovdbg connected to it; None while it runs."""

    def resume(self) -> str | None:
        """Let a machine continue that was left stopped by a run of kcovdbg that has ended; return a note for the user.

        :raises TargetError: when none did.
        """

    def leave_stopped(self, reason: str) -> str | None:
        """Keep a machine that kcovdbg stopped from continuing when the target is closed.

        :param reason: what later runs of kcovdbg give as the reason.
        :return: a note for the user, None where closing the target lets nothing go on.
        """

    def is_gone(self) -> bool:
        """Return whether the machine has ended, without asking it."""

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it cannot be read.
        :raises GoneError: when the machine has ended.
        """

    def symbol(self, name: str) -> Symbol:
        """Find a symbol by name, of data or a function.

        :return: its address in the running kernel, KASLR offset included. Not for per-CPU symbols.
        :raises MissingSymbolError: when the kernel has none.
        """

    def symbol_name(self, address: int) -> str | None:
        """Return the name of the symbol that an address is in, None when it is in none."""

    def type_size(self, type_name: str) -> int:
        """Return the size in bytes of a type such as ``struct kcov``.

        :raises MissingTypeError: when the debug info has no such type.
        """

    def member(self, type_name: str, path: str) -> Member:
        """Find a member by its path, such as ``refcount.refs.counter``, in anonymous structures as well.

        :raises MissingTypeError: when there is no such type or member.
        """

    def member_names(self, type_name: str) -> Sequence[str]:
        """Return the names of the members of a structure, those of anonymous structures included.

        :raises MissingTypeError: when the debug info has no such type.
        """

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Return the enumerators of a type such as ``enum kcov_mode``.

        :raises MissingTypeError: when the debug info has no such type.
        """

    def variable_type(self, name: str) -> tuple[str, int | None]:
        """Return the name of a variable's type, or of an array's elements, and the array's length or None.

        :raises MissingSymbolError: when there is no such variable.
        """

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs."""

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable.
        """


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
