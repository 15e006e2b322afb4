# SPDX-License-Identifier: LGPL-2.1-or-later
"""Wait for a location table that is being built, with a progress bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from kcovdbg.console.terminal import Terminal, write_remarks
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.awaited_table import AwaitedTable
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.table_cache import Progress, TableBuild, find_usable_cache

_STEP: Final = 0.05
_BAR: Final = 24
_TITLE: Final = "finding coverage points"

PATIENCE: Final = 600.0
"""Seconds to wait for the table of a build that the user named."""
# Seconds: enough for a large kernel's table on an idle machine.
_NAMES_PATIENCE: Final = 20.0

_Found = TypeVar("_Found")


def _bar(progress: Progress | None, first: tuple[float, int] | None) -> str:
    """Return the bar.

    :param first: seconds since the first progress was seen, and how far the build was then.
    """
    if progress is None or first is None:
        return f"{_TITLE} …"
    filled = _BAR * progress.done // progress.total
    text = (
        f"{_TITLE} [{'#' * filled}{'-' * (_BAR - filled)}] "
        f"{100 * progress.done // progress.total} %"
    )
    if progress.done == progress.total:
        return f"{text}, writing the table"
    seconds, before = first
    if progress.done > before:
        # How long the parts took that were finished before is unknown.
        text += (
            f", {seconds / (progress.done - before) * (progress.total - progress.done):.0f} s left"
        )
    return text


def _wait(
    terminal: Terminal,
    find: Callable[[], _Found | None],
    find_progress: Callable[[], Progress | None],
    patience: float,
    *,
    is_quiet: bool = False,
) -> _Found | None:
    """Wait until a table has been built, with a progress bar on the terminal's standard error.

    :param find: returns the table, None while it is being built.
    :param patience: seconds to wait.
    :param is_quiet: whether to write nothing if standard error is not a terminal.
    :return: None if the table is not there in time.
    """
    found = find()
    stream, width = terminal.stderr, terminal.error_width
    if found is None and width is None and not is_quiet:
        stream.write(f"kcovdbg: {_TITLE} of this build, once\n")
        stream.flush()
    first: tuple[float, int] | None = None
    shown = 0
    end = time.monotonic() + patience
    try:
        while found is None and time.monotonic() < end:
            if width is not None:
                progress, now = find_progress(), time.monotonic()
                if progress is not None and first is None:
                    first = now, progress.done
                text = _bar(progress, first and (now - first[0], first[1]))[: width - 1]
                # Blanks work on every terminal, unlike escape sequences.
                stream.write(f"\r{text}{' ' * (shown - len(text))}")
                stream.flush()
                shown = len(text)
            time.sleep(_STEP)
            found = find()
    finally:
        if shown:
            stream.write(f"\r{' ' * shown}\r")
            stream.flush()
    return found


def wait_for_table(
    terminal: Terminal, table: AwaitedTable, patience: float, *, is_quiet: bool = False
) -> None:
    """Wait until the table of a kernel has been built, or its build has failed. If it is not built
    in the user's cache, say once where.

    :param patience: seconds.
    :param is_quiet: whether to say nothing else if standard error is not a terminal.
    """
    if table.note is not None and not table.was_noted:
        table.was_noted = True
        write_remarks(terminal, [table.note])

    def has_ended() -> bool | None:
        return None if table.is_awaited else True

    _wait(terminal, has_ended, table.progress, patience, is_quiet=is_quiet)


def wait_for_names(terminal: Terminal, table: AwaitedTable) -> None:
    """Wait a moment, once, for a table that is being built: without it, lines are less exact and
    tail calls are unknown.
    """
    if table.was_awaited:
        return
    table.was_awaited = True
    wait_for_table(terminal, table, _NAMES_PATIENCE, is_quiet=True)


def build_table(
    terminal: Terminal, image: str, key: str, patience: float = PATIENCE, code: str | None = None
) -> LocationTable:
    """Build the location table of an image in the cache, and wait for it.

    :param image: ELF file with debug info.
    :param key: the key of its table.
    :param patience: seconds; a table that takes longer is finished in the background.
    :param code: ELF file with the code, where that is another one.
    :raises CapabilityError: when there is no cache, or the table is not there in time.
    :raises KcovdbgError: when it cannot be built.
    """
    build = TableBuild(image, key, find_usable_cache().require(), code=code, nice=False)
    try:
        table = _wait(terminal, build.find, build.progress, patience)
    except KeyboardInterrupt:
        build.process.terminate()
        raise
    if table is None:
        raise CapabilityError(
            "the table is still being built in the background", hint="give the same command again"
        )
    return table
