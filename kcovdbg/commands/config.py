# SPDX-License-Identifier: LGPL-2.1-or-later
"""``config``: the settings in force, and where they come from."""

from __future__ import annotations

import os
import shlex
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
    is_own = workspace.color is not settings.color
    yield _Row(
        "color", workspace.color.value, _COMMAND_LINE if is_own else settings.origin("color")
    )
    if settings.pager is None:
        is_named = "PAGER" in os.environ
        yield _Row("pager", os.environ.get("PAGER", "less"), "PAGER" if is_named else DEFAULT)
    else:
        yield _Row("pager", settings.pager, settings.origin("pager"))
    yield _Row("keys", settings.keys, settings.origin("keys"))
    for folder in workspace.inputs.kernel.options.source_folders:
        is_set = folder in settings.source_dirs
        yield _Row(
            "source-dirs", folder, settings.origin("source-dirs") if is_set else _COMMAND_LINE
        )
    for pair in workspace.inputs.kernel.options.substitutions:
        is_set = pair in settings.substitute_paths
        origin = settings.origin("substitute-paths") if is_set else _COMMAND_LINE
        yield _Row(f"substitute-paths.{pair[0]}", pair[1], origin)
    for path in settings.symbol_tables:
        yield _Row("symbol-tables", path, settings.origin("symbol-tables"))
    for command, columns in settings.columns.items():
        yield _Row(f"columns.{command}", ",".join(columns), settings.origin("columns"))
    for alias, words in settings.aliases.items():
        yield _Row(f"aliases.{alias}", shlex.join(words), settings.origin("aliases"))
    for name, limit in LIMITS.items():
        value = find_limit(name)
        origin = settings.origin("limits") if name in settings.limits else DEFAULT
        if value != settings.limits.get(name, limit.default):
            origin = _COMMAND_LINE
        yield _Row(f"limits.{name}", limit.format(value), origin)
    for problem in settings.problems:
        text = problem.text if problem.hint is None else f"{problem.text}; {problem.hint}"
        yield _Row("not used", None, str(settings.path), text)


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    workspace = context.workspace
    folder = find_user_folder("config").path
    remarks = []
    if workspace.settings.path is None:
        remarks.append(
            "no configuration file" if folder is None else f"no configuration file: {folder / FILE}"
        )
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
        "symbol-tables, and the tables substitute-paths, columns, aliases and limits. Options of "
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
