# SPDX-License-Identifier: LGPL-2.1-or-later
"""Waits for a location table that is being built, with a progress bar on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from kcovdbg.console.terminal import Terminal
from kcovdbg.errors import CapabilityError
from kcovdbg.symbols.location_table import LocationTable
from kcovdbg.symbols.symbolizer import Symbolizer
from kcovdbg.symbols.table_cache import CACHE_HINT, Progress, TableBuild, find_usable_cache

_STEP: Final = 0.05
_BAR: Final = 24
_TITLE: Final = "finding coverage points"

_Found = TypeVar("_Found")


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line that says what is waited for.

    :param terminal: its standard error is written to.
    :param is_quiet: whether to say nothing where that is not a terminal.
    :param clock: returns the time in seconds.
    """

    def __init__(self, terminal: Terminal, *, is_quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = terminal.stderr
        self._width = terminal.error_width
        self._clock = clock
        self._first: tuple[float, int] | None = None
        self._shown = 0
        if self._width is None and not is_quiet:
            self._stream.write(f"kcovdbg: {_TITLE} of this build, once\n")
            self._stream.flush()

    def show(self, progress: Progress | None) -> None:
        """Show how far the build is; None before its first part."""
        if self._width is None:
            return
        text = self._text(progress)[: self._width - 1]
        # Blanks work on every terminal, unlike escape sequences.
        self._stream.write(f"\r{text}{' ' * (self._shown - len(text))}")
        self._stream.flush()
        self._shown = len(text)

    def _text(self, progress: Progress | None) -> str:
        if progress is None:
            return f"{_TITLE} …"
        now = self._clock()
        if self._first is None:
            # Parts that were there before are not of this build.
            self._first = now, progress.done
        start, before = self._first
        filled = _BAR * progress.done // progress.total
        text = f"{_TITLE} [{'#' * filled}{'-' * (_BAR - filled)}] {100 * progress.done // progress.total} %"
        if progress.done == progress.total:
            return f"{text}, writing the table"
        if progress.done > before and now > start:
            left = (now - start) / (progress.done - before) * (progress.total - progress.done)
            text += f", {left:.0f} s left"
        return text

    def clear(self) -> None:
        """Remove the bar."""
        if self._shown:
            self._stream.write(f"\r{' ' * self._shown}\r")
            self._stream.flush()
            self._shown = 0


def _wait(
    terminal: Terminal,
    find: Callable[[], _Found | None],
    find_progress: Callable[[], Progress | None],
    patience: float,
    *,
    is_quiet: bool = False,
) -> _Found | None:
    """Wait until a table has been built.

    :param find: returns what is waited for, None while it is not there.
    :param patience: seconds.
    :param is_quiet: as in :class:`ProgressBar`.
    :return: None when it is not there in time.
    """
    found = find()
    if found is not None:
        return found
    bar = ProgressBar(terminal, is_quiet=is_quiet)
    end = time.monotonic() + patience
    try:
        while found is None and time.monotonic() < end:
            bar.show(find_progress())
            time.sleep(_STEP)
            found = find()
    finally:
        bar.clear()
    return found


def wait_for_table(
    terminal: Terminal, symbolizer: Symbolizer, patience: float, *, is_quiet: bool = False
) -> LocationTable | None:
    """Wait until the table of a kernel has been built, or its build has failed.

    :param patience: seconds.
    :param is_quiet: as in :class:`ProgressBar`.
    :return: None where there is no table.
    """

    def has_ended() -> bool | None:
        return None if symbolizer.table is None and symbolizer.waits_for_table else True

    _wait(terminal, has_ended, symbolizer.progress, patience, is_quiet=is_quiet)
    return symbolizer.table


def build_table(terminal: Terminal, image: str, build_id: str, patience: float, code: str | None = None) -> LocationTable:
    """Build the location table of an image in the cache, and wait for it.

    :param image: ELF file with debug info.
    :param patience: seconds; a table that takes longer is finished in the background.
    :param code: ELF file with the code, where that is another one.
    :raises CapabilityError: when there is no cache, or the table is not there in time.
    :raises KcovdbgError: when it cannot be built.
    """
    cache = find_usable_cache()
    if cache.folder is None:
        raise CapabilityError(f"the cache cannot be used: {cache.problem}", hint=CACHE_HINT)
    build = TableBuild(image, build_id, cache.folder, code=code, nice=False)
    try:
        table = _wait(terminal, build.find, build.progress, patience)
    except KeyboardInterrupt:
        build.stop()
        raise
    if table is None:
        raise CapabilityError("the table is still being built in the background", hint="give the same command again")
    return table
