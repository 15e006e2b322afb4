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
    Column("setting", meaning="name of the setting, or `not used` for a problem of the file"),
    Column("value", meaning="its value as text", null="it is a problem of the file"),
    Column(
        "origin",
        PATH,
        title="FROM",
        meaning=(
            "what set the value: path of the file, name of an environment variable, "
            "`command line` or `default`"
        ),
    ),
    Column(
        "problem", meaning="why a setting of the file is not used", null="the setting is in force"
    ),
)


def _rows(workspace: Workspace) -> Iterator[_Row]:
    settings = workspace.settings

    def row(setting: str, value: str, *, is_set: bool = True) -> _Row:
        origin = _COMMAND_LINE
        if is_set:
            origin = settings.origin(setting.partition(".")[0])
        return _Row(setting, value, origin)

    yield row("color", workspace.color.value, is_set=workspace.color is settings.color)
    if settings.pager is None and "PAGER" in os.environ:
        yield _Row("pager", os.environ["PAGER"], "PAGER")
    else:
        yield row("pager", "less" if settings.pager is None else settings.pager)
    yield row("keys", settings.keys)
    options = workspace.inputs.kernel.options
    for folder in options.source_folders:
        yield row("source-dirs", folder, is_set=folder in settings.source_dirs)
    for pair in options.substitutions:
        is_set = pair in settings.substitute_paths
        yield row(f"substitute-paths.{pair[0]}", pair[1], is_set=is_set)
    for path in settings.symbol_tables:
        yield row("symbol-tables", path)
    for command, columns in settings.columns.items():
        yield row(f"columns.{command}", ",".join(columns))
    for name, limit in LIMITS.items():
        value = find_limit(name)
        shown = limit.format(value)
        if name not in settings.limits and value == limit.default:
            yield _Row(f"limits.{name}", shown, DEFAULT)
        else:
            yield row(f"limits.{name}", shown, is_set=value == settings.limits.get(name))
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
        "command line, or default. A wrong setting is not used, and is shown with its problem.\n\n"
        "Limits, with their defaults:\n\n"
        + "\n\n".join(
            f"{name} ({limit.format_default()}): {limit.meaning}." for name, limit in LIMITS.items()
        )
    ),
    examples=(
        Example("config", "why is the pager another one?"),
        Example(
            "config --json --fields setting,origin",
            "which settings are made, and where, for a script",
        ),
    ),
    needs=frozenset(),
)
