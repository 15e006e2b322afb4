# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect coverage on the running machine: of a command and its tasks, or of a block of Python.

Acts on the running kernel through KCOV's own ioctls, in the native collector, and needs
/sys/kernel/debug/kcov. Collecting costs below 5 % beside a C program with the same calls.
:mod:`kcovdbg.records` reads the traces. ::

    with kcovdbg.collect.Trace() as trace:
        os.getppid()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcovdbg.collect.command_run import Collected, Request, collect_command
    from kcovdbg.collect.thread_trace import Trace

__all__ = ["Collected", "Request", "Trace", "collect_command"]


def __getattr__(name: str) -> Any:
    # Imported on demand: reading trace files needs no compiled module.
    if name == "Trace":
        from kcovdbg.collect.thread_trace import Trace

        return Trace
    if name in ("Collected", "Request", "collect_command"):
        from kcovdbg.collect import command_run

        return getattr(command_run, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
