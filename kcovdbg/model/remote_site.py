# SPDX-License-Identifier: LGPL-2.1-or-later
"""Sites: the places in a kernel that announce a remote handle, by a call of ``kcov_remote_start()``."""

from __future__ import annotations

from typing import NamedTuple

from kcovdbg.abi.handle import USB
from kcovdbg.abi.remote_start import CONTEXTS, SOFTIRQ, START, SUBSYSTEMS, TASK


class RemoteSite(NamedTuple):
    """One call of ``kcov_remote_start()``, or of a function that wraps it."""

    address: int
    """After the call, in the running kernel."""
    function: str
    """The function whose source has the call; it may be inlined."""
    symbol: str | None
    """The function whose code has it."""
    wrapper: str
    """What the source calls: ``kcov_remote_start_usb``."""
    file: str | None
    line: int | None
    module: str | None
    """The loaded module that it is in; None for the kernel's image."""
    errors: tuple[str, ...] = ()

    @property
    def subsystem(self) -> int | None:
        """The subsystem of its handles; None where the caller passes a whole handle."""
        return SUBSYSTEMS.get(self.wrapper.removeprefix(START).removesuffix("_softirq"))

    @property
    def context(self) -> str | None:
        """``task`` or ``softirq``: where it runs; None where the code does not tell."""
        if self.wrapper.endswith("_softirq"):
            return SOFTIRQ
        # USB has a wrapper of its own for softirqs; the workers of io_uring are threads of a process.
        if self.subsystem == USB:
            return TASK
        return CONTEXTS.get(self.function, TASK if self.is_of_io_uring else None)

    @property
    def is_of_io_uring(self) -> bool:
        """Whether it is in the source of io_uring."""
        return "io_uring/" in (self.file or "")
