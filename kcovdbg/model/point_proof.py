# SPDX-License-Identifier: LGPL-2.1-or-later
"""Records compared with the code that wrote them: whether each is the return address of a call of the sanitizer's callback."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from kcovdbg.abi.record import Codec


class Verdict(NamedTuple):
    """The result of comparing some PCs with the code."""

    wrong: Mapping[int, str]
    """Impossible PCs, with the reason: what is there instead of a callback."""
    unjudged: Collection[int]
    """PCs whose code cannot be read."""
    comparisons: Collection[int]
    """PCs of ``wrong`` that callbacks for comparisons record."""


class PointProof(Protocol):
    """The code of a kernel's image and of its loaded modules."""

    def problem(self) -> str | None:
        """Return why nothing can be judged, None when it can."""

    def prepare(self) -> None:
        """Compute in advance what the first judgment needs, for a process that judges more than once."""

    def judge(self, pcs: Collection[int], codec: Codec, read: Callable[[int, int], bytes]) -> Verdict:
        """Judge PCs.

        :param pcs: as recorded.
        :param codec: of the records that they are from.
        :param read: reads the kernel's memory.
        """


class NextMapping(NamedTuple):
    """A mapping next to one of a buffer."""

    start: int
    end: int
    writable: bool
    name: str
    """Its file's name, or what it is without one."""


class BufferMapping(NamedTuple):
    """A mapping of a buffer in user space, and what is next to it."""

    pid: int | None
    start: int
    end: int
    offset: int
    """In bytes from the start of the buffer."""
    writable: bool
    before: NextMapping | None
    """None where nothing is mapped directly before it."""
    after: NextMapping | None


class WrongRecord(NamedTuple):
    """A record that no callback can have written."""

    number: int
    word: int
    problem: str
    neighbors: tuple[tuple[int, int], ...]
    """Numbers and words of the records before and after it."""
    offset: int
    """In bytes from the start of the buffer."""
