# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs commands on a kernel in memory, as a user does."""

import io
import json
import traceback
from typing import Any

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Frontend, Workspace
from kcovdbg.console.runner import run_line
from kcovdbg.console.terminal import Color, Painter, Terminal
from kcovdbg.errors import KcovdbgError
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.target.target import Target

STATE = ("info", "tasks -a", "objects", "remote", "areas", "percpu")


class Asker:
    """A workspace on a target; remarks are kept beside the answers."""

    def __init__(self, target: Target) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.status = 0
        """The exit status of the latest line."""
        self.workspace = Workspace(
            COMMANDS,
            UserInputs(Kernel(KernelOptions(lambda: target))),
            Frontend(self._terminal),
        )

    def _terminal(self, _color: Color) -> Terminal:
        return Terminal(self.out, self.err, None, Painter(), Painter(), Color.NEVER)

    def ask(self, line: str) -> tuple[str, str]:
        """Return the answer's text and what was said beside it."""
        for stream in (self.out, self.err):
            stream.seek(0)
            stream.truncate()
        try:
            self.status = run_line(self.workspace, line)
        except KcovdbgError as error:
            self.status = error.status
            self.err.write(f"error: {error}\n")
        except Exception as error:  # noqa: BLE001 - the test says which
            frame = traceback.extract_tb(error.__traceback__)[-1]
            self.err.write(
                f"internal error: {type(error).__name__}: {error} at {frame.name}:{frame.lineno}\n"
            )
        return self.out.getvalue(), self.err.getvalue()

    def rows(self, command: str) -> tuple[list[dict[str, Any]], str]:
        """Return the rows of an answer in JSON, and what was said beside it."""
        out, err = self.ask(f"{command} --json")
        return json.loads(out) if out and "internal error" not in err else [], err


def ask_everything(target, formats=("json",)):
    """Return the rows of every state command by its name, and all that was said beside them."""
    asker = Asker(target)
    answers, said = {}, []
    for command in STATE:
        if "json" in formats:
            answers[command], err = asker.rows(command)
            said.append(err)
            said += [error for row in answers[command] for error in row["errors"]]
        if "text" in formats:
            said += asker.ask(command)
        if "csv" in formats:
            asker.ask(f"{command} --csv")
    return answers, "\n".join(said)
