# SPDX-License-Identifier: LGPL-2.1-or-later
"""``config``: the settings in force, and where they come from."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterator
from typing import Final, NamedTuple

from kcovdbg.console.column import PATH, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context, Workspace
from kcovdbg.console.renderable import Table
from kcovdbg.console.settings import DEFAULT, FILE
from kcovdbg.limits import LIMITS, find_limit
from kcovdbg.user_folder import find_user_folder

_COMMAND_LINE: Final = "command line"


class _Row(NamedTuple):
    setting: str
    value: str | None
    origin: str
    problem: str | None = None


_COLUMNS: Final = (
    Column("setting", meaning="name of the setting"),
    Column("value", meaning="its value as text"),
    Column(
        "origin", PATH, title="FROM", meaning="what decided it: a file, an option or the default"
    ),
    Column(
        "problem", meaning="why a setting of the file is not used", null="the setting is in force"
    ),
)


def _rows(workspace: Workspace) -> Iterator[_Row]:
    settings = workspace.settings

    def origin(name: str, *, is_set: bool) -> str:
        if is_set:
            return settings.origin(name)
        return _COMMAND_LINE

    color = workspace.color
    yield _Row("color", color.value, origin("color", is_set=color is settings.color))
    if settings.pager is not None:
        yield _Row("pager", settings.pager, settings.origin("pager"))
    elif "PAGER" in os.environ:
        yield _Row("pager", os.environ["PAGER"], "PAGER")
    else:
        yield _Row("pager", "less", DEFAULT)
    yield _Row("keys", settings.keys, settings.origin("keys"))
    options = workspace.inputs.kernel.options
    for folder in options.source_folders:
        is_set = folder in settings.source_dirs
        yield _Row("source-dirs", folder, origin("source-dirs", is_set=is_set))
    for pair in options.substitutions:
        is_set = pair in settings.substitute_paths
        name = f"substitute-paths.{pair[0]}"
        yield _Row(name, pair[1], origin("substitute-paths", is_set=is_set))
    for path in settings.symbol_tables:
        yield _Row("symbol-tables", path, settings.origin("symbol-tables"))
    for command, columns in settings.columns.items():
        yield _Row(f"columns.{command}", ",".join(columns), settings.origin("columns"))
    for name, limit in LIMITS.items():
        value = find_limit(name)
        decided = DEFAULT
        if value != settings.limits.get(name, limit.default):
            decided = _COMMAND_LINE
        elif name in settings.limits:
            decided = settings.origin("limits")
        yield _Row(f"limits.{name}", limit.format(value), decided)
    for problem in settings.problems:
        text = problem.text
        if problem.hint is not None:
            text += f"; {problem.hint}"
        yield _Row("not used", None, str(settings.path), text)


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    workspace = context.workspace
    folder = find_user_folder("config").path
    remarks = []
    if workspace.settings.path is None:
        remark = "no configuration file"
        if folder is not None:
            remark += f": {folder / FILE}"
        remarks.append(remark)
    return Table(_COLUMNS, tuple(_rows(workspace)), remarks=remarks)


COMMAND: Final = Command(
    name="config",
    summary="show the settings in force, and where they come from",
    topic=Topic.MAINTENANCE,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Settings are read from $XDG_CONFIG_HOME/kcovdbg/config.toml, by default "
        "~/.config/kcovdbg/config.toml: color, pager, keys (auto, emacs, vi), source-dirs, "
        "symbol-tables, and the tables substitute-paths, columns and limits. Options of "
        "the command line take precedence. FROM is the file, a variable of the environment, the "
        "command line, or default. A setting that is wrong is not used, and shown with its "
        "problem. Limits of one input: "
        + "; ".join(
            f"{name}, {limit.meaning} ({limit.format_default()})" for name, limit in LIMITS.items()
        )
        + "."
    ),
    examples=(
        Example("config", "why is the pager another one?"),
        Example(
            "config --json --fields setting,origin",
            "which settings are made, and where? for a script",
        ),
    ),
    needs=frozenset(),
)
