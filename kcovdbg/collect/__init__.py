# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collected coverage: trace files, and the Python face of the native collector.

::

    with kcovdbg.collect.Trace() as trace:
        os.getppid()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcovdbg.collect.running import Collected, Request, run_command
    from kcovdbg.collect.trace import Trace

__all__ = ["Collected", "Request", "Trace", "run_command"]


def __getattr__(name: str) -> Any:
    # On demand: reading a trace file needs no compiled module.
    if name == "Trace":
        from kcovdbg.collect.trace import Trace

        return Trace
    if name in ("Collected", "Request", "run_command"):
        from kcovdbg.collect import running

        return getattr(running, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
