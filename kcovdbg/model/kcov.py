# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects (``struct kcov``), the references to them, the files that lead to them, and the names of
objects and tasks in messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from kcovdbg.abi.mode import is_tracing


class Reference(NamedTuple):
    """One place that refers to a ``struct kcov``."""

    kind: str
    """``fd``, ``vma``, ``task``, ``section``, ``saved`` or ``remote``."""
    counts: int
    """1 if the kernel took a reference for it; 0 if it took none, or if another row counts it.

    A ``struct file`` counts once, although many descriptors and mappings may lead to it. Hash
    entries hold no reference.
    """
    pid: int | None = None
    fd: int | None = None
    file: int | None = None
    start: int | None = None
    """Start of the mapping."""
    handle: int | None = None
    cpu: int | None = None


class KcovFields(NamedTuple):
    """The members of a ``struct kcov``; None is a member that this kernel lacks, or that is
    unreadable.
    """

    address: int
    refcount: int | None
    is_locked: bool
    """Whether its ``lock`` is known to be held."""
    mode: int | None
    size: int | None
    """Size in words of the kernel."""
    area: int | None
    task: int | None
    """``t``: the task that did KCOV_ENABLE or KCOV_REMOTE_ENABLE."""
    remote: bool | None
    remote_size: int | None
    sequence: int | None
    trace: int | None = None
    """Address of the count word, in kernels whose buffers may have words before it."""
    trace_size: int | None = None
    """Size in words of the kernel, the count word included."""
    mode_flag: int | None = None
    """A member of a posted series that, if set, makes another mode of ``mode``."""


class KcovFile(NamedTuple):
    """A descriptor or a mapping of a process whose file belongs to KCOV."""

    pid: int | None
    """The process with the descriptor or the mapping, or the thread, if it has its own file table.
    """
    file: int
    """``struct file *``."""
    kcov: int
    """``file->private_data``."""
    fd: int | None = None
    start: int | None = None
    end: int | None = None
    pgoff: int | None = None
    is_repeated: bool = False
    """Whether processes share the descriptor or mapping, and another row stands for it."""


@dataclass(frozen=True, slots=True)
class Kcov:
    """A ``struct kcov``, the meaning of its fields, and the references to it."""

    fields: KcovFields | None
    """None if it is unreadable."""
    address: int | None
    mode: str | None = None
    pid: int | None = None
    """The thread id of ``t``."""
    comm: str | None = None
    count: int | None = None
    """The number of records by the buffer's count word, which user space can write."""
    capacity: int | None = None
    """Capacity in records."""
    full: bool | None = None
    references: tuple[Reference, ...] = ()
    found_by: tuple[str, ...] = ()
    """The kinds of structures that led to it: ``task``, ``saved``, ``remote``, ``fd``, ``vma``,
    ``file``, ``vmalloc``.
    """
    errors: tuple[str, ...] = ()
    implausible: str | None = None
    """What shows that the memory is not, or no longer, a ``struct kcov``; None if nothing does."""
    posted: Mapping[str, int | None] = field(default_factory=dict)
    """The fields that posted series add to it."""
    own_areas: frozenset[int] = frozenset()
    """The known vmalloc areas that it allocated."""
    knows_own_areas: bool = True
    """Whether ``own_areas`` is complete."""
    is_blank: bool = False
    """Whether its buffer's count and the next word are 0: probably nothing was ever recorded."""
    full_because: str | None = None
    """Why nothing more is recorded although the buffer has room; otherwise None."""
    device: str | None = None
    """The device of a posted series to which the object belongs; None for a ``struct kcov``."""

    @property
    def is_enabled(self) -> bool:
        """Whether it collects in its mode."""
        return self.mode is not None and is_tracing(self.mode)

    @property
    def counted(self) -> int:
        """The number of known references that the kernel counts."""
        return sum(reference.counts for reference in self.references)

    def count_references(self, *kinds: str) -> int:
        """Return the number of known references of some kinds that the kernel counts."""
        return sum(found.counts for found in self.references if found.kind in kinds)


# Limit for lists of names in messages.
_NAMED: Final = 20


class HasTask(Protocol):
    """Data that refers to a task: the task's fields, saved state, a buffer, a remote handle."""

    @property
    def pid(self) -> int | None:
        """Its thread id."""

    @property
    def comm(self) -> str | None:
        """Its name."""


def name_task(fields: HasTask) -> str:
    """Return a task's name: ``task 41 (syz-executor)``."""
    name = "task ?" if fields.pid is None else f"task {fields.pid}"
    return f"{name} ({fields.comm})" if fields.comm else name


def name_kcov(address: int, device: str = "kcov") -> str:
    """Return an object's name: ``kcov 0xffff…``."""
    return f"{device} {address:#x}"


def name_some(names: Iterable[str], most: int = _NAMED) -> str:
    """Return a list of names; if it is long, the first names and the number of the others."""
    every = list(names)
    text = ", ".join(every[:most])
    if len(every) > most:
        text += f" and {len(every) - most} more"
    return text


def amount_text(number: int, noun: str, plural: str = "") -> str:
    """Return an amount in words: ``1 crash``, ``2 crashes``.

    :param plural: the noun's plural; by default the noun and an s.
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or noun + 's'}"
