# SPDX-License-Identifier: LGPL-2.1-or-later
"""``%kcov`` inside drgn's command line.

drgn imports this module at every start, so it imports little; the first ``%kcov`` imports the rest.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from drgn import Program, get_default_prog
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


_LINE: Final = re.compile(r"\s*%\s*kcov\s+")


def _complete_kcov() -> None:
    """Complete the lines of ``%kcov`` as well, from the first prompt on: drgn completes Python
    only.

    drgn sets its own completer after it has loaded plugins, and the one in use belongs to the
    innermost prompt.
    """
    repl = sys.modules.get("drgn.internal.repl")
    if repl is None:
        # A script, or a program of the user's.
        return
    readline = repl.readline

    def wrap() -> None:
        inner = readline.get_completer()
        if inner is None or getattr(inner, "completes_kcov", False):
            return
        words: list[str] = []

        def complete(text: str, state: int) -> str | None:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            match = _LINE.match(line)
            if match is None:
                found: str | None = inner(text, state)
                return found
            if state == 0:
                from kcovdbg.frontends.drgn_commands import complete_in_drgn

                words[:] = complete_in_drgn(get_default_prog(), line[match.end() :], text)
            return words[state] if state < len(words) else None

        complete.completes_kcov = True  # type: ignore[attr-defined]
        readline.set_completer(complete)

    readline.set_startup_hook(wrap)


_complete_kcov()
