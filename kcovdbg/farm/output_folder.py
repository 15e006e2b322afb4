# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directory for results: the user's, in no directory of inputs, and reached through no link of theirs."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kcovdbg.errors import KcovdbgError, UsageError

# As many as the kernel follows.
_MAX_LINKS: Final = 40


def make_output(command: str, name: str | os.PathLike[str], inputs: Sequence[Path]) -> Path:
    """Return the user's directory for results, made if it does not exist.

    :param inputs: files and directories of somebody else, who may have put links and results there.
    :raises KcovdbgError: when it cannot be made, is in an input directory or reached through one, or has links or an input.
    """
    path = Path(os.path.abspath(Path(name).expanduser()))  # noqa: PTH100 - links are looked at one by one
    folder = Path(os.path.realpath(path))
    passed, links = _pass(path)
    for given in inputs:
        real = Path(os.path.realpath(given))
        home = real if real.is_dir() else Path(os.path.realpath(given.parent))
        holds = folder in (*real.parents, *home.parents) or folder == home != real
        if holds or real in passed or home in links:
            relation = "holds" if holds else "is reached through"
            raise UsageError(
                f"{command}: '{name}' {relation} the input '{given}'", hint="-o takes a directory for the results alone: -o DIR"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link = next((path for path in folder.rglob("*") if path.is_symlink()), None)
    except OSError as error:
        problem = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise KcovdbgError(f"could not write '{name}': {problem}", hint="-o takes a directory: -o DIR") from None
    if link is not None:
        raise KcovdbgError(f"cannot write to '{name}': '{link}' is a link", hint="choose another directory: -o DIR")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise KcovdbgError(f"could not write '{name}': {os.strerror(errno.EACCES)}", hint="choose another directory: -o DIR")
    return folder


def _pass(path: Path) -> tuple[set[Path], set[Path]]:
    """Return the directories on the way to a path, which is among them, and those in which the way follows a link."""
    passed: set[Path] = set()
    links: list[Path] = []
    place = Path("/")
    left = [*reversed(path.parts)]
    while left:
        step = left.pop()
        following = place.parent if step == ".." else place / step
        if len(links) < _MAX_LINKS and following.is_symlink():
            links.append(place)
            # An absolute target begins with the root, from where the way goes on.
            left += reversed(following.readlink().parts)
        else:
            place = following
            passed.add(place)
    return passed, {*links}
