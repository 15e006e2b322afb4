# SPDX-License-Identifier: LGPL-2.1-or-later
"""``%kcov`` inside drgn's command line.

drgn imports this module at every start, so it imports little; the first ``%kcov`` imports the rest.
"""

from __future__ import annotations

from typing import Any

from drgn import Program
from drgn.commands.linux import linux_kernel_raw_command


@linux_kernel_raw_command(  # type: ignore[untyped-decorator]
    description="show the state and buffers of KCOV",
    usage="**kcov** [*command* [*option*...]]",
    long_description=(
        "Run a command of kcovdbg on this kernel; without one, list them. **kcov help** "
        "*command* shows help for one."
    ),
)
# The signature is drgn's.
def _cmd_kcov(prog: Program, name: str, args: str, **kwargs: Any) -> Any:  # noqa: ARG001
    from kcovdbg.frontends.drgn_commands import run_in_drgn

    run_in_drgn(prog, args)
