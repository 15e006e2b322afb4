# SPDX-License-Identifier: LGPL-2.1-or-later
"""``-kcov-show`` for programs that drive GDB through its machine interface."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import gdb
from kcovdbg.engine.runner import run_words
from kcovdbg.engine.terminal import Terminal
from kcovdbg.frontends.gdb.charset import to_host
from kcovdbg.frontends.gdb.kcov_show import Show, error_text
from kcovdbg.render.theme import Color

if TYPE_CHECKING:
    from collections.abc import Sequence


def define_mi(show: Show) -> None:
    """Define the command in GDB."""
    if not hasattr(gdb, "MICommand"):
        # Before GDB 12.
        return

    class ShowMi(gdb.MICommand):
        """``-kcov-show COMMAND [ARGUMENT...]``: ``rows``, as in JSON with every value a string, and ``remarks``."""

        def __init__(self) -> None:
            super().__init__("-kcov-show")

        def invoke(self, arguments: Sequence[str]) -> dict[str, Any]:
            if not arguments:
                raise gdb.GdbError("usage: -kcov-show COMMAND [ARGUMENT...]")
            stdout, stderr = io.StringIO(), io.StringIO()
            try:
                run_words(show.workspace(), [*arguments, "--json"], Terminal(stdout, stderr, color=Color.NEVER))
            except Exception as error:  # noqa: BLE001 - the program gets an ^error record
                raise gdb.GdbError(error_text(error)) from None
            return {"rows": _words(json.loads(stdout.getvalue() or "[]")), "remarks": to_host(stderr.getvalue()).splitlines()}

    ShowMi()


def _words(value: Any) -> Any:
    """Return a value with words for what MI lacks, as JSON spells them."""
    if isinstance(value, dict):
        return {_name(key): _words(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_words(item) for item in value]
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return to_host(str(value))


def _name(key: str) -> str:
    # Names in MI consist of letters, digits, - and _.
    return "".join(character if character.isalnum() or character in "-_" else "_" for character in key)
