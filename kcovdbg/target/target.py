# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that can be read: memory, symbols and types, and the connection to its machine.

Some targets lack VMAs, vmalloc areas, stacks, slab objects or watchpoints: the attribute for it is
then None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, NoReturn, Protocol

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.errors import CapabilityError, MissingSymbolError, MissingTypeError
from kcovdbg.model.location import Frame, LoadedModule
from kcovdbg.model.memory import StackFrame, VmallocArea
from kcovdbg.target.connection import Connection, MachineState

if TYPE_CHECKING:
    from kcovdbg.target.watchpoints import Watchpoints


class Symbol(NamedTuple):
    """A symbol of the kernel, static ones included."""

    name: str
    address: int
    size: int


class Member(NamedTuple):
    """The place of a member in its structure, and how its bytes are decoded."""

    offset: int
    """Offset in bytes; for a bit-field, of its unit."""
    size: int
    """Size in bytes; for an array, of all elements."""
    type_name: str
    signed: bool = False
    length: int | None = None
    """The number of elements of an array."""
    bit_offset: int | None = None
    """Place of a bit-field's lowest bit, counted from the least significant bit of its unit."""
    bit_size: int | None = None


class Vma(NamedTuple):
    """A mapping in a user address space."""

    start: int
    end: int
    pgoff: int
    flags: int
    file: int
    """``struct file *``; 0 for anonymous memory."""


class PageRange(NamedTuple):
    """Consecutive elements of the array of ``struct page``."""

    first: int
    """Page frame number of the first one."""
    length: int
    """The number of elements."""
    address: int
    """``struct page *`` of the first one."""


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
        :raises ReadError: after the last object that can be read, when others cannot.
        """

    def for_each_file(self) -> Iterator[int]:
        """Yield every allocated ``struct file *``, whoever holds it.

        :raises ReadError: when the cache cannot be read further.
        """


class StackSource(Protocol):
    """Kernel stacks."""

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack, innermost frame first; a dead task has none. Errors do not
        name the task.

        :param task: ``struct task_struct *``.
        :raises CapabilityError: when it cannot be unwound: a running task of a live kernel, whose
            registers are not saved.
        :raises ReadError: when the task or its stack cannot be read.
        """

    def crashed_task(self) -> int | None:
        """Return the ``struct task_struct *`` that crashed the kernel, None when none did."""


class SourceLines:
    """Source lines and modules of a kernel. This base class knows none."""

    @property
    def image(self) -> str | None:
        """The path of the kernel's image with debug info, None when there is none."""
        return None

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the source location of an instruction, innermost frame first; empty when debug
        info does not cover it.
        """
        del address
        return ()

    def frames_in_section(self, path: str, section: str, offset: int) -> Sequence[Frame]:
        """Return the source location of an instruction of a module that is not loaded, as
        :meth:`frames_at` does.

        :param path: of the module's file with debug info.
        :param offset: in the section.
        """
        del path, section, offset
        return ()

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, one that is inlined everywhere
        included.
        """
        raise NotImplementedError

    def name_at(self, address: int) -> str | None:
        """Return the name of the loaded module that an address is in, None when it is in none."""
        raise NotImplementedError

    def may_hold(self, address: int) -> bool:
        """Return whether a module could be at an address."""
        raise NotImplementedError

    def code_at(self, address: int) -> tuple[str, int] | None:
        """Return the name and the address of ``.text`` of the loaded module that an address is in,
        None when it is in none.
        """
        del address
        return None

    def code_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """Return the code of loaded modules: name, start and end of each range."""
        return ()

    def loaded_modules(self) -> tuple[LoadedModule, ...]:
        """Return where the code of loaded modules is."""
        raise NotImplementedError

    def loaded_files(self) -> Mapping[str, str]:
        """Return the files of loaded modules that are at hand, by build ID."""
        return {}

    def module_files(self) -> Iterator[str]:
        """Yield the source files of loaded modules, some more than once."""
        return iter(())


class Target:
    """A kernel that can be read.

    Attributes are fixed once the target is open; reads are answered from the target each time. A
    method that a kind of target does not override refuses.
    """

    name: str
    """The target as the user named it."""
    live: bool = False
    """Whether the kernel runs while it is read."""
    word_size: int
    """Bytes of the kernel's ``unsigned long``."""
    big_endian: bool
    kernel_range: tuple[int, int] = (0, 0)
    """The first and last address that a pointer of this kernel can have."""
    kaslr_offset: int = 0
    """The KASLR offset of the kernel's image, in bytes."""
    release: str
    """As ``uname -r`` prints it."""
    machine: str
    """As ``uname -m`` prints it."""
    page_size: int = PAGE_SIZE
    """Size in bytes: arm64 has kernels with 4, 16 and 64 KiB."""
    build_id: str | None
    """The build ID of the kernel's image, hexadecimal."""
    notes: Sequence[str] = ()
    """Notes for the user on how the target was opened, a line each."""
    damage: Sequence[str] = ()
    """Damage of a dump, a line each; the notes have these lines as well."""
    memory_problem: str | None = None
    """Description of a target without memory, as in "vmlinux is a kernel image"; None where it has
    memory.
    """
    code: str | None = None
    """Path of the stripped image that has the kernel's code, None where the image with debug info
    has it.
    """
    connection: Connection = Connection()
    watchpoints: Watchpoints | None = None
    """Hardware watchpoints."""
    read_count: int | None = None
    """How often memory was read; None where it is not counted."""

    @property
    def files(self) -> Iterable[str]:
        """The files that are read."""
        return ()

    @property
    def byte_order(self) -> Literal["little", "big"]:
        """The byte order, as :meth:`int.from_bytes` takes it."""
        return "big" if self.big_endian else "little"

    @property
    def pointer_tag(self) -> int:
        """The bits of a pointer in the kernel's memory that are a tag, set in addresses; 0 in
        kernels without tags.
        """
        return 0

    @property
    def lines(self) -> SourceLines | None:
        """Source lines and modules by the debug info."""
        return None

    @property
    def stacks(self) -> StackSource | None:
        """Kernel stacks."""
        return None

    @property
    def vmas(self) -> VmaSource | None:
        """Mappings of user address spaces."""
        return None

    @property
    def vmalloc(self) -> VmallocSource | None:
        """Vmalloc areas."""
        return None

    @property
    def slab(self) -> SlabSource | None:
        """Slab objects."""
        return None

    def state(self) -> MachineState | None:
        """Ask what the machine does at the moment; None for a dump."""
        return self.connection.state()

    def is_gone(self) -> bool:
        """Return whether the machine has ended, without asking it."""
        return self.connection.is_gone()

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it cannot be read.
        :raises GoneError: when the machine has ended.
        """
        raise make_memory_error(f"reading {size} bytes at {address:#x}", self.memory_problem)

    def symbol(self, name: str) -> Symbol:
        """Find a symbol by name, of data or a function.

        :return: its address in the running kernel, KASLR offset included. Not for per-CPU symbols.
        :raises MissingSymbolError: when the kernel has none.
        """
        raise MissingSymbolError(f"{self.memory_problem}, which has no symbols such as {name}")

    def symbol_name(self, address: int) -> str | None:
        """Return the name of the symbol that an address is in, None when it is in none."""
        raise NotImplementedError

    def type_size(self, type_name: str) -> int:
        """Return the size in bytes of a type such as ``struct kcov``.

        :raises MissingTypeError: when the debug info does not have it, or only its name.
        """
        self._refuse_type(type_name)

    def member(self, type_name: str, path: str) -> Member:
        """Find a member by its path, such as ``refcount.refs.counter``, in anonymous structures as
        well.

        :raises MissingTypeError: when there is no such type or member.
        """
        self._refuse_type(f"{type_name}.{path}")

    def member_names(self, type_name: str) -> Sequence[str]:
        """Return the names of the members of a structure, those of anonymous structures included.

        :raises MissingTypeError: when the debug info has no such type.
        """
        self._refuse_type(type_name)

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Return the enumerators of a type such as ``enum kcov_mode``.

        :raises MissingTypeError: when the debug info has no such type.
        """
        self._refuse_type(type_name)

    def _refuse_type(self, name: str) -> NoReturn:
        raise MissingTypeError(
            f"{self.memory_problem}, which has no types such as {name}", hint="-s VMLINUX"
        )

    def has_name(self, name: str) -> bool:
        """Return whether debug info or symbols have a function, inlined ones included, a variable
        or an enumerator.
        """
        del name
        return False

    def array_length(self, name: str) -> int | None:
        """Return the number of elements of a variable that is an array, None for another.

        :raises MissingSymbolError: when there is no such variable.
        """
        raise MissingSymbolError(f"{self.memory_problem}, which has no variables such as {name}")

    def member_at(
        self, name: str, address: int, offset: int, files: Iterable[str] = ()
    ) -> str | None:
        """Return which part of a variable is at an offset, as ``.connect`` or ``[3].call``; an
        empty string for a plain variable.

        :param name: of the variable.
        :param address: of the variable, KASLR offset included: several may have the name.
        :param offset: in bytes.
        :param files: the source files that may define it, for a name that several variables have.
        :return: None where debug info does not have the variable, or nothing of it begins there.
        """
        del name, address, offset, files
        return None

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs.

        :raises ReadError: when their mask cannot be read.
        """
        raise make_memory_error("the mask of possible CPUs", self.memory_problem)

    def page_ranges(self) -> Iterator[PageRange]:
        """Yield the parts of the array of ``struct page`` by page frame number.

        :raises ReadError: when it cannot be read further.
        """
        raise make_memory_error("the array of pages", self.memory_problem)

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable; debug info may have one of
            size 0.
        :raises ReadError: when the offset of the CPU cannot be read.
        """
        raise make_memory_error(f"{name} of CPU {cpu}", self.memory_problem)


_MEMORY_HINT: Final = (
    "give its dump: -c VMCORE, or its machine: --qemu ADDR, --gdb-remote ADDR, or -k on the "
    "machine itself"
)


def make_memory_error(subject: str, problem: str | None) -> CapabilityError:
    """Return the error for a command that needs memory on a target without it.

    :param subject: the command, or the data to be read.
    :param problem: what was given instead, as in
        :attr:`~kcovdbg.target.target.Target.memory_problem`.
    """
    return CapabilityError(f"{subject} needs the kernel's memory; {problem}", hint=_MEMORY_HINT)
