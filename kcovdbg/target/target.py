# SPDX-License-Identifier: LGPL-2.1-or-later
"""A kernel that can be read: its memory, symbols and types, and the connection to its machine.

A target that cannot list mappings, vmalloc areas or slab objects, or has no stacks, source lines or
watchpoints, has None as the attribute for these.
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
    """A symbol of the kernel, which may be static."""

    name: str
    address: int
    size: int


class Member(NamedTuple):
    """The place of a member in its structure, and the format of its bytes."""

    offset: int
    """Offset in bytes; for a bit-field, the offset of its unit."""
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
    """Page frame number of the first element."""
    length: int
    """The number of elements."""
    address: int
    """``struct page *`` of the first element."""


class SlabObject(NamedTuple):
    """An allocated object of a general slab cache."""

    address: int
    data: bytes


class VmaSource(Protocol):
    """Mappings of user address spaces."""

    def for_each_vma(self, mm: int) -> Iterator[Vma]:
        """Yield the mappings by address.

        :param mm: ``struct mm_struct *``.
        :raises ReadError: when further mappings are unreadable.
        """


class VmallocSource(Protocol):
    """The kernel's vmalloc areas."""

    def for_each_vmalloc_area(self) -> Iterator[VmallocArea]:
        """Yield all vmalloc areas.

        :raises ReadError: at the end, when some areas are unreadable.
        """


class SlabSource(Protocol):
    """Objects of the slab allocator."""

    def for_each_slab_object(self, size: int) -> Iterator[SlabObject]:
        """Yield allocated objects of the general caches for a size.

        :param size: in bytes.
        :raises ReadError: at the end, when some objects are unreadable.
        """

    def for_each_file(self) -> Iterator[int]:
        """Yield every allocated ``struct file *``.

        :raises ReadError: at the end, when some files are unreadable.
        """


class StackSource(Protocol):
    """Kernel stacks."""

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack, innermost frame first; empty for a dead task.

        :param task: ``struct task_struct *``; errors do not name it.
        :raises CapabilityError: when it cannot be unwound, as for a running task of a live kernel.
        :raises ReadError: when the task or its stack is unreadable.
        """

    def crashed_task(self) -> int | None:
        """Return the ``struct task_struct *`` that crashed the kernel, None if there is none."""


class SourceLines:
    """Source lines and modules of a kernel; this base class has none."""

    @property
    def image(self) -> str | None:
        """The path of the kernel's image with debug info, None when there is none."""
        return None

    def frames_at(self, address: int) -> Sequence[Frame]:
        """Return the source location of an instruction, innermost frame first; empty if debug info
        lacks it.
        """
        del address
        return ()

    def frames_in_section(self, path: str, section: str, offset: int) -> Sequence[Frame]:
        """Return the source location of an instruction of a module that is not loaded, as
        :meth:`frames_at`.

        :param path: the module's file with debug info.
        :param offset: the instruction's offset in the section.
        """
        del path, section, offset
        return ()

    def has_function(self, name: str) -> bool:
        """Return whether debug info has a function with a name, which may be inlined everywhere."""
        raise NotImplementedError

    def name_at(self, address: int) -> str | None:
        """Return the name of the loaded module at an address, None if there is none."""
        raise NotImplementedError

    def may_hold(self, address: int) -> bool:
        """Return whether a module could be at an address."""
        raise NotImplementedError

    def code_at(self, address: int) -> tuple[str, int] | None:
        """Return the name of the loaded module at an address, and the address of its ``.text``;
        None if there is no module.
        """
        del address
        return None

    def code_ranges(self) -> tuple[tuple[str, int, int], ...]:
        """Return the code of loaded modules: name, start and end of each range."""
        return ()

    def loaded_modules(self) -> tuple[LoadedModule, ...]:
        """Return the loaded modules."""
        raise NotImplementedError

    def loaded_files(self) -> Mapping[str, str]:
        """Return the known files of loaded modules, by build ID."""
        return {}

    def module_files(self) -> Iterator[str]:
        """Yield the source files of loaded modules, some more than once."""
        return iter(())


class Target:
    """A kernel that can be read.

    Attributes do not change; each read reads the target's memory. A method that a kind of target
    does not override raises an error.
    """

    name: str
    """The target's name in messages."""
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
    """The output of ``uname -r``."""
    machine: str
    """The output of ``uname -m``."""
    page_size: int = PAGE_SIZE
    """Size in bytes: arm64 has kernels with 4, 16 and 64 KiB."""
    build_id: str | None
    """The build ID of the kernel's image, hexadecimal."""
    notes: Sequence[str] = ()
    """Lines for the user on the opening of the target."""
    damage: Sequence[str] = ()
    """Lines on the damage of a dump, which are among the notes as well."""
    memory_problem: str | None = None
    """Description of a target without memory, as in "vmlinux is a kernel image"; None if the target
    has memory.
    """
    code: str | None = None
    """Path of the stripped image that has the kernel's code, None if the image with debug info has
    it.
    """
    connection: Connection = Connection()
    watchpoints: Watchpoints | None = None
    """Hardware watchpoints."""
    read_count: int | None = None
    """The number of reads of memory; None if it is not counted."""

    @property
    def files(self) -> Iterable[str]:
        """The files that are read."""
        return ()

    @property
    def byte_order(self) -> Literal["little", "big"]:
        """The byte order, for :meth:`int.from_bytes`."""
        return "big" if self.big_endian else "little"

    @property
    def pointer_tag(self) -> int:
        """The bits of a pointer that hold a tag, all of which are set in an address; 0 in kernels
        without tags.
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
        """Return the state of the machine at the moment, None for a dump."""
        return self.connection.state()

    def is_gone(self) -> bool:
        """Return whether the machine has ended, without asking it."""
        return self.connection.is_gone()

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when a part of it is unreadable.
        :raises GoneError: when the machine has ended.
        """
        raise make_memory_error(f"reading {size} bytes at {address:#x}", self.memory_problem)

    def symbol(self, name: str) -> Symbol:
        """Find the symbol of a function or of data by its name. Per-CPU symbols have other
        addresses: see :meth:`per_cpu`.

        :return: the symbol, with its address in the running kernel.
        :raises MissingSymbolError: when the kernel lacks the symbol.
        """
        raise MissingSymbolError(f"{self.memory_problem}, which has no symbols such as {name}")

    def symbol_name(self, address: int) -> str | None:
        """Return the name of the symbol at an address, None if there is none."""
        raise NotImplementedError

    def type_size(self, type_name: str) -> int:
        """Return the size in bytes of a type such as ``struct kcov``.

        :raises MissingTypeError: when the debug info lacks it, or has only its name.
        """
        self._refuse_type(type_name)

    def member(self, type_name: str, path: str) -> Member:
        """Find a member by its path, such as ``refcount.refs.counter``; names of anonymous
        structures are not part of the path.

        :raises MissingTypeError: when there is no such type or member.
        """
        self._refuse_type(f"{type_name}.{path}")

    def member_names(self, type_name: str) -> Sequence[str]:
        """Return the names of the members of a structure, and of the anonymous structures in it.

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
        """Return whether debug info or symbols have a function, a variable or an enumerator with a
        name. The function may be inlined everywhere.
        """
        del name
        return False

    def array_length(self, name: str) -> int | None:
        """Return the number of elements of a variable that is an array, None for another variable.

        :raises MissingSymbolError: when there is no such variable.
        """
        raise MissingSymbolError(f"{self.memory_problem}, which has no variables such as {name}")

    def member_at(
        self, name: str, address: int, offset: int, files: Iterable[str] = ()
    ) -> str | None:
        """Return the part of a variable at an offset: ``.connect`` or ``[3].call``, an empty string
        for a plain variable.

        :param name: the variable's name.
        :param address: the variable's address, as several variables may have the name.
        :param offset: in bytes.
        :param files: the source files that may define it, if several variables have the name.
        :return: None if debug info lacks the variable, or no part begins at the offset.
        """
        del name, address, offset, files
        return None

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs.

        :raises ReadError: when their mask is unreadable.
        """
        raise make_memory_error("the mask of possible CPUs", self.memory_problem)

    def page_ranges(self) -> Iterator[PageRange]:
        """Yield the parts of the array of ``struct page`` by page frame number.

        :raises ReadError: when further parts are unreadable.
        """
        raise make_memory_error("the array of pages", self.memory_problem)

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel lacks the variable, or its size is 0.
        :raises ReadError: when the offset of the CPU is unreadable.
        """
        raise make_memory_error(f"{name} of CPU {cpu}", self.memory_problem)


_MEMORY_HINT: Final = (
    "give its dump: -c VMCORE, or its machine: --qemu ADDR, --gdb-remote ADDR, or -k on the "
    "machine itself"
)


def make_memory_error(subject: str, problem: str | None) -> CapabilityError:
    """Return the error for a command that needs memory on a target without it.

    :param subject: the command, or the data to be read.
    :param problem: :attr:`Target.memory_problem` of the target.
    """
    return CapabilityError(f"{subject} needs the kernel's memory; {problem}", hint=_MEMORY_HINT)
