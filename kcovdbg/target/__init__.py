# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where bytes come from: the little that a walker may ask of a kernel, whatever debugger reads it.

:class:`Target` is what every adapter has. What only some have (VMAs, vmalloc areas, stacks, slab objects) they offer as a
capability: an attribute that is None where it lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol


class Symbol(NamedTuple):
    """A symbol of the kernel, file-local ones too."""

    name: str
    address: int
    size: int


class Member(NamedTuple):
    """Where a member of a structure lies and how its bytes read."""

    offset: int
    """In bytes. Of a bit-field: of the unit that holds it."""
    size: int
    """In bytes; of an array, of the whole of it."""
    type_name: str
    signed: bool = False
    length: int | None = None
    """Of an array."""
    bit_offset: int | None = None
    """Of a bit-field: of its lowest bit, counted from the least significant bit of the unit."""
    bit_size: int | None = None


class Vma(NamedTuple):
    """One mapping of a user address space that has a file."""

    start: int
    end: int
    pgoff: int
    flags: int
    file: int
    """``struct file *``."""


class VmallocArea(NamedTuple):
    """One area of the kernel's vmalloc space."""

    start: int
    size: int
    """In bytes, without the guard page where the kernel tells it apart."""
    caller: str
    """The function that allocated it."""
    has_user_pages: bool
    """``VM_USERMAP``: made to be mapped by user space."""
    is_page_array: bool = False
    """Whether it only lists the pages of another area: that of a large one is allocated in the name of the same caller."""


class SlabObject(NamedTuple):
    """One allocated object of a general slab cache."""

    address: int
    data: bytes


class StackFrame(NamedTuple):
    """One frame of a kernel stack, innermost first."""

    pc: int
    function: str | None
    file: str | None
    line: int | None
    column: int | None
    is_inline: bool


class VmaSource(Protocol):
    """Knows every kernel's tree of mappings."""

    def for_each_vma(self, mm: int) -> Iterator[Vma]:
        """Yield the mappings that have a file.

        :param mm: ``struct mm_struct *``.
        :raises ReadError: when the tree can't be read further.
        """


class VmallocSource(Protocol):
    """Knows every kernel's list of vmalloc areas."""

    def for_each_vmalloc_area(self) -> Iterator[VmallocArea]:
        """Yield all vmalloc areas.

        :raises ReadError: when they can't be read further.
        """


class SlabSource(Protocol):
    """Knows the slab allocator."""

    def for_each_slab_object(self, size: int) -> Iterator[SlabObject]:
        """Yield allocated objects of the general caches that serve requests of this size.

        :param size: in bytes.
        :raises ReadError: when a cache can't be read further.
        """

    def for_each_file(self) -> Iterator[int]:
        """Yield every allocated ``struct file *``, whoever holds it.

        :raises ReadError: when the cache can't be read further.
        """


class StackSource(Protocol):
    """Unwinds kernel stacks."""

    def stack_trace(self, task: int) -> Sequence[StackFrame]:
        """Return a task's kernel stack.

        :param task: ``struct task_struct *``.
        :raises CapabilityError: when this one can't be unwound, a running task of a live kernel for instance.
        """

    def crashed_task(self) -> int | None:
        """Return the ``struct task_struct *`` that crashed the kernel, None where none did."""


class Target(Protocol):
    """A kernel that can be read.

    Attributes are fixed once the target is open; reads are answered from the target each time.
    """

    @property
    def name(self) -> str:
        """What the user opened, in the user's words."""

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
        """First and last address that a pointer of this kernel can have."""

    @property
    def kaslr_offset(self) -> int:
        """What the kernel's image is shifted by."""

    @property
    def release(self) -> str:
        """As uname -r says."""

    @property
    def machine(self) -> str:
        """As uname -m says."""

    @property
    def build_id(self) -> str | None:
        """Of the kernel's image, hexadecimal."""

    @property
    def notes(self) -> Sequence[str]:
        """What the user should know about how the target was opened; each a line."""

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

    def read(self, address: int, size: int) -> bytes:
        """Read virtual memory of the kernel.

        :raises ReadError: when any of it can't be read.
        """

    def symbol(self, name: str) -> Symbol:
        """Find a symbol by name, of data or a function.

        :return: its address in the running kernel, KASLR offset included. Not for per-CPU symbols.
        :raises MissingSymbolError: when the kernel has none.
        """

    def symbol_name(self, address: int) -> str | None:
        """Name the symbol that an address lies in, None where none does."""

    def type_size(self, type_name: str) -> int:
        """Return the size in bytes of a type such as ``struct kcov``.

        :raises MissingTypeError: when the debug info has none.
        """

    def member(self, type_name: str, path: str) -> Member:
        """Find a member, in anonymous structures too; a path has dots: ``refcount.refs.counter``.

        :raises MissingTypeError: when the type or the member doesn't exist.
        """

    def member_names(self, type_name: str) -> Sequence[str]:
        """Name the members of a structure, those of anonymous structures included.

        :raises MissingTypeError: when the debug info has no such type.
        """

    def enumerators(self, type_name: str) -> Mapping[str, int]:
        """Return the enumerators of a type such as ``enum kcov_mode``.

        :raises MissingTypeError: when the debug info has no such type.
        """

    def variable_type(self, name: str) -> tuple[str, int | None]:
        """Return a variable's type name, for an array the element's, and the array's length or None.

        :raises MissingSymbolError: when there is no such variable.
        """

    def cpus(self) -> Sequence[int]:
        """Return the possible CPUs."""

    def per_cpu(self, name: str, cpu: int) -> int:
        """Return the address of a CPU's instance of a per-CPU variable.

        :raises MissingSymbolError: when the kernel has no such variable.
        """
