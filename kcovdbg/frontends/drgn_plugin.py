# SPDX-License-Identifier: LGPL-2.1-or-later
"""``%kcov`` inside drgn's command line.

drgn imports this module at every start, so it imports next to nothing; the first ``%kcov`` brings the rest.
"""

from __future__ import annotations

from typing import Any

from drgn import Program
from drgn.commands.linux import linux_kernel_raw_command


@linux_kernel_raw_command(  # type: ignore[untyped-decorator]
    description="see KCOV's state and buffers",
    usage="**kcov** [*command* [*option*...]]",
    long_description=(
        "Runs a command of kcovdbg on this kernel; without one, lists them. **kcov help** *command* tells about each."
    ),
)
def _cmd_kcov(prog: Program, name: str, args: str, **kwargs: Any) -> Any:  # noqa: ARG001 - drgn's signature
    from kcovdbg.frontends.drgn_commands import run_in_drgn

    run_in_drgn(prog, args)
