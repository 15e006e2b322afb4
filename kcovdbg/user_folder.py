# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories in which the user keeps files, and the only reader of the variables that name
them.

Root, as with ``sudo -E``, uses no directory that another user can write: that user could plant
links, tables and settings.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

# The XDG specification's variable of each kind, and the default below the home directory.
_PLACES: Final = {
    "cache": ("XDG_CACHE_HOME", ".cache"),
    "config": ("XDG_CONFIG_HOME", ".config"),
    "state": ("XDG_STATE_HOME", ".local/state"),
}


class UserFolder(NamedTuple):
    """A directory of kcovdbg; it may not exist."""

    path: Path | None
    """None where there is none to use."""
    problem: str | None = None
    """The existing directory that is not used, and the reason."""


def find_user_folder(kind: str, environment: Mapping[str, str] = os.environ) -> UserFolder:
    """Return the directory for kcovdbg's files. Root does not use a directory that others can
    write, but the one in root's home.

    :param kind: ``cache``, ``config`` or ``state``.
    """
    variable, default = _PLACES[kind]
    base = environment.get(variable, "")
    home = environment.get("HOME") or _find_home()
    # The specification: relative paths are ignored.
    if base.startswith("/"):
        path = Path(base, "kcovdbg")
    elif home.startswith("/"):
        path = Path(home, default, "kcovdbg")
    else:
        return UserFolder(None)
    stranger = find_stranger(path)
    if stranger is None:
        return UserFolder(path)
    own = Path(_find_home(), default, "kcovdbg")
    problem = f"{path}: {stranger}" if os.path.lexists(path) else None
    return UserFolder(own if find_stranger(own) is None else None, problem)


def make_folder(folder: Path) -> None:
    """Make a directory and its parents, accessible to the user only, whatever the umask is.

    :raises OSError: when it cannot be made.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))


def find_temporary_folder() -> UserFolder:
    """Return ``$TMPDIR`` where it is set; for root ``/tmp`` instead of one that is not safe."""
    base = os.environ.get("TMPDIR", "")
    if not base.startswith("/"):
        return UserFolder(None)
    # Files in a directory that is open to all are safe if it is sticky, as /tmp is.
    stranger = find_stranger(Path(base), may_be_sticky=True)
    if stranger is None:
        return UserFolder(Path(base))
    return UserFolder(Path("/tmp"), f"{base}: {stranger}")  # noqa: S108 - sticky


def find_stranger(path: Path, *, may_be_sticky: bool = False) -> str | None:
    """If this process is root's, return the name of a user who could replace a directory or write
    to it.

    :param may_be_sticky: accept a directory that is open to all if only owners can remove their
        files.
    """
    if os.geteuid() != 0:
        return None
    for name in (path, Path(os.path.realpath(path))):
        for folder in (*reversed(name.parents), name):
            try:
                found = folder.lstat()
            except (FileNotFoundError, NotADirectoryError):
                break
            except OSError as error:
                return f"{folder}: {error.strerror or error}"
            if found.st_uid != 0:
                return f"user {found.st_uid} can write to {folder}"
            if stat.S_ISLNK(found.st_mode) or (
                found.st_mode & stat.S_ISVTX and (folder != name or may_be_sticky)
            ):
                continue
            if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0):
                return f"others can write to {folder}"
    return None


def is_placed(path: Path) -> bool:
    """Return whether there is a file that nobody named, put there by this user, root, or the owner
    of the directory.

    In a directory that is open to all, anybody can put a file that claims the wanted build ID.
    """
    try:
        status = path.stat()
        owners = (os.geteuid(), 0, path.parent.stat().st_uid)
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid in owners


def find_home(environment: Mapping[str, str] = os.environ) -> str:
    """Return the user's home directory. Root does not use one that others can write, but root's own
    or ``/``.
    """
    homes = [home for home in (environment.get("HOME"), _find_home()) if home]
    return next((home for home in homes if find_stranger(Path(home).absolute()) is None), "/")


def _find_home() -> str:
    """Return the home directory of the process's user, without regard to ``HOME``; empty if there
    is none.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def is_home(folder: Path) -> bool:
    """Return whether a directory is a home directory of this user, or has one below it: its files
    do not belong to one project.

    :param folder: a path without links.
    """
    homes = [os.path.realpath(home) for home in (os.environ.get("HOME"), _find_home()) if home]
    return folder == Path("/") or any(Path(home).is_relative_to(folder) for home in homes)


def expand_user(path: str | os.PathLike[str]) -> Path:
    """Return a path that the user typed, with ``~`` at its start replaced, but not ``~NAME`` of an
    unknown user.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser() may raise


def find_debuginfod_cache() -> Path | None:
    """Return the directory in which debuginfod's client keeps files; None if root would use another
    user's directory.
    """
    named = os.environ.get("DEBUGINFOD_CACHE_PATH")
    base = os.environ.get("XDG_CACHE_HOME") or Path(os.environ.get("HOME") or "/") / ".cache"
    folder = Path(named) if named else Path(base, "debuginfod_client")
    return folder if find_stranger(folder) is None else None
