# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cache of location tables, and the background process that builds one, whose progress is in
the file that it locks.

The name of a table has the digest of the image that it was made of. The build ID that an image
claims is public and proves nothing: a table is found by it only if no image is at hand, and only if
the user built the table by ``symbols build``.
"""

from __future__ import annotations

import os
import re
import signal
import stat
import struct
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.child_process import child_environment, python_command
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.shared_debug_info import list_contents
from kcovdbg.errors import CapabilityError, LimitError, TargetError
from kcovdbg.file_digest import combine_digests, find_digest
from kcovdbg.input_file import open_input, read_input
from kcovdbg.limits import WORK, over_limit
from kcovdbg.symbols.location_table import FORMAT, LocationTable, TableError
from kcovdbg.user_folder import (
    expand_user,
    find_stranger,
    find_temporary_folder,
    find_user_folder,
    make_folder,
)

# The contents of the file that the builder of a table locks: finished parts, all parts.
_PROGRESS: Final = struct.Struct("<II")


class Progress(NamedTuple):
    """Progress of a build."""

    done: int
    total: int


CACHE_HINT = "set XDG_CACHE_HOME to a directory that you can write to"

# Free bytes that a folder needs: the table of a small kernel takes 8 MB, of a large kernel more.
_ROOM = 16 << 20


class UsableCache(NamedTuple):
    """A folder that tables can be written to."""

    folder: Path | None
    """The folder; None if no folder can be used."""
    problem: str | None = None
    """Why it is not the user's cache."""

    @property
    def note(self) -> str | None:
        """A note for the user if it is not the user's cache."""
        if self.problem is None:
            return None
        instead = (
            "names are found without a cache" if self.folder is None else f"using {self.folder}"
        )
        return f"the cache cannot be used: {self.problem}; {instead}; {CACHE_HINT}"

    def require(self) -> Path:
        """Return the folder.

        :raises CapabilityError: when there is none.
        """
        if self.folder is None:
            raise CapabilityError(f"the cache cannot be used: {self.problem}", hint=CACHE_HINT)
        return self.folder


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/kcovdbg/symbols``, or root's own folder; it may not exist."""
    return Path(find_user_folder("cache").path or "", "symbols")


def _spare_folders() -> tuple[Path, ...]:
    """Return the directories for tables if the cache cannot be used: on disk, and in memory."""
    own = f"kcovdbg-{os.geteuid()}"
    # The callers check that these are the user's.
    temporary = find_temporary_folder().path or "/tmp"  # noqa: S108
    return Path(temporary, own), Path("/dev/shm", own)  # noqa: S108


def find_usable_cache() -> UsableCache:
    """Return the folder for new tables: the user's cache, or else a temporary directory."""
    folder, unused = cache_folder(), find_user_folder("cache").problem
    problem = _find_problem(folder)
    if problem is None:
        return UsableCache(folder, unused)
    problem = unused or problem
    for folder in _spare_folders():
        if _find_problem(folder) is None and _is_ours(folder):
            return UsableCache(folder, problem)
    return UsableCache(None, problem)


def _find_problem(folder: Path) -> str | None:
    """Return why a table cannot be written to a directory, None if it can; make the directory."""
    if not folder.is_absolute():
        return "no home directory"
    try:
        make_folder(folder)
        if _is_open(folder):
            return f"others can write to {folder}"
        # Imported only here, as most tables exist.
        import tempfile

        with tempfile.TemporaryFile(dir=folder) as file:
            # Takes a quota into account, unlike the free space of the file system.
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return None


def _is_ours(folder: Path) -> bool:
    """Return whether a directory in a place that is open to all users is this user's, so that its
    tables can be trusted.
    """
    try:
        found = folder.lstat()
    except OSError:
        return False
    is_private = (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )
    return is_private and find_stranger(folder) is None


def _is_open(folder: Path) -> bool:
    """Return whether other users can put tables into a directory."""
    try:
        return bool(folder.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def make_table_key(build_id: str, digests: Sequence[str]) -> str:
    """Return the key of a table.

    :param build_id: hexadecimal.
    :param digests: of the image, of the file that it shares debug info with, and of the stripped
        image, as far as there are such files.
    """
    return f"{build_id}-{combine_digests(list(digests))}"


def find_table_key(
    image: str | os.PathLike[str], code: str | os.PathLike[str] | None = None
) -> str | None:
    """Return the key of an image's table, None for an image without a build ID.

    The first time, all bytes of these files are read (:mod:`kcovdbg.file_digest`).

    :param image: a kernel image with debug info, or its file of debug info.
    :param code: the image, where the first one is its file of debug info.
    :raises TargetError: when one cannot be read.
    """
    with ElfFile(image) as elf:
        build_id = elf.build_id
    if build_id is None:
        return None
    files = [*list_contents(image), *(() if code is None else (code,))]
    try:
        return make_table_key(build_id, [find_digest(path) for path in files])
    except OSError as error:
        raise TargetError(f"{error.filename or image}: {error.strerror or error}") from error


def make_build_key(build_id: str) -> str:
    """Return the key of the table that the user built by ``symbols build``, for a kernel of which
    no image is at hand.

    :param build_id: hexadecimal.
    """
    return f"{build_id}-built"


def table_path(key: str, folder: Path | None = None) -> Path:
    """Return the path of a table; it may not exist."""
    return (folder or cache_folder()) / f"{key}.{FORMAT}"


def open_table(key: str, folder: Path | None = None) -> LocationTable | None:
    """Return a table, None when there is none or it is damaged; building replaces a damaged one.

    :param key: from :func:`find_table_key` or :func:`make_build_key`.
    :param folder: its directory; None for the user's cache, and then the temporary directories.
    """
    cache = folder or cache_folder()
    folders: list[Path] = []
    if not _is_open(cache):
        folders.append(cache)
    if folder is None:
        folders += filter(_is_ours, _spare_folders())
    for tables in folders:
        try:
            return LocationTable(table_path(key, tables), key.partition("-")[0])
        except (OSError, TableError):
            continue
    return None


def link_table(table: LocationTable, keys: Iterable[str]) -> None:
    """Let other keys find a table that the user built.

    :raises OSError: when that cannot be written.
    """
    file = Path(os.path.realpath(table.path))
    for key in keys:
        path = table_path(key, file.parent)
        if path == file:
            continue
        temporary = path.with_name(f".kcovdbg-{os.urandom(6).hex()}")
        temporary.symlink_to(file.name)
        temporary.replace(path)


# A build ID, and the digest.
_TABLE_NAME: Final = re.compile(rf"[0-9a-f]+-[0-9a-f]{{64}}\.{FORMAT}")


def find_table_files() -> list[Path]:
    """Return the paths of all tables of this format in the user's cache."""
    try:
        return sorted(
            path
            for path in cache_folder().iterdir()
            if _TABLE_NAME.fullmatch(path.name) and not path.is_symlink()
        )
    except OSError:
        return []


def open_table_file(path: str | os.PathLike[str], build_id: str | None) -> LocationTable:
    """Return a table that the user named.

    :param build_id: of the kernel, hexadecimal; None for any.
    :raises TargetError: when it cannot be read, is no table, or is of another build.
    """
    try:
        return LocationTable(expand_user(path), build_id)
    except OSError as error:
        raise TargetError(f"{path}: {error.strerror or error}") from error
    except TableError as error:
        raise TargetError(
            str(error),
            hint="build it from this kernel's vmlinux: kcovdbg symbols build VMLINUX -o FILE",
            wrong_file=error.wrong_file,
        ) from error


def choose_table_file(paths: Iterable[str], build_id: str | None) -> str | None:
    """Return the first table of a build among some, None if there is none.

    :param build_id: of the kernel, hexadecimal; None when unknown.
    :raises TargetError: when one cannot be read, or is no table.
    """
    if build_id is None:
        return None
    for path in paths:
        if open_table_file(path, None).build_id == build_id:
            return path
    return None


class TableBuild:
    """A table that another process builds.

    The process outlives this one and has no terminal. If another process is building the table, the
    new process waits for it as long as this process runs, and builds the table if it is killed.

    :param image: a kernel image with debug info, or its file of debug info.
    :param key: the key of its table.
    :param folder: the directory of the table.
    :param code: the image, where the first one is its file of debug info.
    :param nice: whether to build it at low priority.
    :raises CapabilityError: when no process can be started.
    """

    def __init__(
        self,
        image: str | os.PathLike[str],
        key: str,
        folder: Path,
        *,
        code: str | os.PathLike[str] | None = None,
        nice: bool = True,
    ) -> None:
        self._key = key
        self._folder = folder
        # Kept in memory, so that no disk space is needed.
        self._errors = os.fdopen(os.memfd_create("kcovdbg-table-errors"), "rb")
        command = [
            *python_command("kcovdbg.symbols.table_builder"),
            "--folder",
            str(folder),
            *(("--nice",) if nice else ()),
        ]
        # Imported only here, as most tables exist.
        import subprocess

        try:
            debug_file, *shared = list_contents(image)
            inputs = {"": debug_file}
            if shared:
                inputs["--shared="] = shared[0]
            if code is not None:
                inputs["--code="] = code
            with ExitStack() as stack:
                # Open in the child as well: a decompressed image is removed when this process
                # exits, and only this process knows the folder of a link that names the image.
                files: list[int] = []
                words: list[str] = []
                for option, path in inputs.items():
                    file = stack.enter_context(open_input(path)).fileno()
                    files.append(file)
                    words.append(f"{option}/proc/self/fd/{file}")
                self.process = subprocess.Popen(
                    [*command, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors.fileno(),
                    start_new_session=True,
                    cwd="/",
                    env=child_environment(),
                    pass_fds=files,
                )
                """The process that builds it."""
        except OSError:
            raise CapabilityError("no process could be started", hint="install python3") from None

    def progress(self) -> Progress | None:
        """Return the progress of the build, None before its first part."""
        try:
            data = read_input(lock_path(table_path(self._key, self._folder)), owned=True)
        except (OSError, LimitError):
            return None
        found = Progress(*_PROGRESS.unpack(data)) if len(data) == _PROGRESS.size else None
        return found if found and 0 < found.done <= found.total else None

    def find(self) -> LocationTable | None:
        """Return the table, None while it is being built.

        :raises CapabilityError: when building it failed.
        """
        # The status is asked for before the table: a builder that ends in between has left a table.
        status = self.process.poll()
        table = open_table(self._key, self._folder)
        if table is not None or status is None:
            return table
        lines = os.pread(self._errors.fileno(), 1 << 16, 0).decode("utf-8", "replace").splitlines()
        # The contents that the builder has read have another key. SIGBUS: the file was cut.
        if status in (0, -signal.SIGBUS):
            raise CapabilityError(
                "the image was changed while it was read", hint="try again when nothing writes it"
            )
        if status == -signal.SIGXCPU:
            error = over_limit(WORK, "building the location table")
            raise CapabilityError(str(error), hint=error.hint)
        if not lines:
            raise CapabilityError(f"its process ended early, with status {status}", hint=CACHE_HINT)
        if len(lines) > 1 and lines[-1].startswith("  "):
            raise CapabilityError(lines[-2], hint=lines[-1].strip())
        raise CapabilityError(lines[-1])


def lock_path(path: Path) -> Path:
    """Return the path of the file that the builder of a table locks."""
    return path.with_name(f"{path.name}.lock")


def write_progress(lock: int, progress: Progress) -> None:
    """Write the progress of a build into the file that its process locked, unless the file has
    several names.

    :param lock: the descriptor of the file.
    :raises OSError: when it cannot be written.
    """
    # A hard link may have been put there to have another file overwritten.
    if os.fstat(lock).st_nlink == 1:
        os.pwrite(lock, _PROGRESS.pack(*progress), 0)
