# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remote handles, their carriers, the kernel's calls that start sections under them, and the areas
of sections.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kcovdbg.abi.handle import CONTEXTS, SOFTIRQ, START, SUBSYSTEMS, TASK, USB


class RemoteHandle(NamedTuple):
    """One ``struct kcov_remote``: remote sections under the handle collect for the object."""

    address: int
    handle: int | None
    bucket: int
    """Its bucket in memory; :func:`kcovdbg.abi.handle.find_bucket` returns the right one."""
    kcov: int | None
    pid: int | None
    """Thread id of the object's owner, ``kcov->t``."""
    comm: str | None
    errors: tuple[str, ...] = ()
    device: str | None = None
    """The device of a posted series with which it is registered; None for KCOV's own."""


VHOST: Final = "vhost worker"
"""The kind of a ``struct vhost_worker``, up to v6.3 ``struct vhost_dev``."""
SKB: Final = "sk_buff"
"""The kind of a ``struct sk_buff``."""


class Carrier(NamedTuple):
    """One carrier."""

    kind: str
    """VHOST or SKB."""
    address: int
    handle: int
    """``kcov_handle``, never 0."""
    place: str
    """The place where it was found: ``the receive queue of descriptor 41/5``."""
    pid: int | None = None
    """The thread that works for a vhost device."""


class RemoteSite(NamedTuple):
    """One call of ``kcov_remote_start()``, or of a function that wraps it."""

    address: int
    """The return address of the call, in the running kernel."""
    function: str
    """The function whose source has the call; it may be inlined."""
    symbol: str | None
    """The function whose code has the call."""
    wrapper: str
    """The function that the source calls: ``kcov_remote_start_usb``."""
    file: str | None
    line: int | None
    module: str | None
    """Its loaded module; None for the kernel's image."""
    errors: tuple[str, ...] = ()

    @property
    def subsystem(self) -> int | None:
        """The subsystem of its handles; None if the caller passes a whole handle."""
        return SUBSYSTEMS.get(self.wrapper.removeprefix(START).removesuffix("_softirq"))

    @property
    def context(self) -> str | None:
        """The context in which it runs, ``task`` or ``softirq``; None if unknown."""
        if self.wrapper.endswith("_softirq"):
            return SOFTIRQ
        # USB has another wrapper for softirqs. Workers of io_uring are threads of a process.
        if self.subsystem == USB:
            return TASK
        return CONTEXTS.get(self.function, TASK if self.is_of_io_uring else None)

    @property
    def is_of_io_uring(self) -> bool:
        """Whether it is in the source of io_uring."""
        return "io_uring/" in (self.file or "")


TASK_LIST: Final = "task"
IRQ_LIST: Final = "irq"
# The functions that allocate KCOV's buffers (kcov-abi.md 10.6). User buffers: kcov_ioctl since
# Linux kernel commit 17581aa13680 ("kcov: split ioctl handling into locked and unlocked parts") (in
# v5.18), kcov_mmap before.
USER_ALLOCATORS: Final = ("kcov_ioctl", "kcov_mmap")
AREA_ALLOCATORS: Final = {"kcov_remote_start": TASK_LIST, "kcov_init": IRQ_LIST}
"""The list of areas for which each function allocates."""


class Area(NamedTuple):
    """One area: on a free list, as ``struct kcov_remote_area``, or used by a section."""

    address: int
    size: int | None
    """Size in words of the kernel. A free area has it in its overlay, an area in use in its
    section's task; otherwise it is the size of the vmalloc area, in whole pages.
    """
    list: str
    """The kind of its sections: ``task`` or ``irq``."""
    state: str | None
    """``cached`` (on a list, or idle on its CPU), ``in-use``, ``saved`` (of an interrupted section)
    or ``unclaimed``; None if some of its possible users are unknown.
    """
    pid: int | None = None
    cpu: int | None = None
    errors: tuple[str, ...] = ()
    device: str | None = None
    """The device of a posted series to which it belongs; None for KCOV's own."""
