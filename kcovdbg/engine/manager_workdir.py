# SPDX-License-Identifier: LGPL-2.1-or-later
"""The working directory of a syz-manager: its crashes, and the configuration that names the kernel's image.

In syzkaller's source: pkg/manager/crash.go (files of a crash), pkg/mgrconfig/config.go (the configuration),
pkg/rpcserver/last_executing.go (programs in a log), syz-manager/manager.go (which crash has a dump).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.target.dump_file import path_hint

ANSWERS: Final = ".kcovdbg"
"""Added to a dump's name, the name of the directory beside it with the answers about it."""
_CRASHES: Final = "crashes"
_DUMP: Final = "vmcore"
_IMAGE: Final = "vmlinux"
_MAX_TITLE: Final = 4096
_MAX_CONFIGURATION: Final = 1 << 20
_MAX_LOG: Final = 64 << 20
# syzkaller removes such lines before it parses the rest as JSON.
_COMMENT: Final = re.compile(rb"(^|\n)\s*#[^\n]*")
_EXECUTED: Final = re.compile(
    rb"executing program (?P<proc>\d+) \(id=(?P<id>\d+)\):[^\n]*\n(?P<program>.*?)(?:\n\n|\Z)", re.DOTALL
)
_EXECUTOR: Final = re.compile(r"syz\.(?P<proc>\d+)\.(?P<id>\d+)")
# The line about the task in the kernel's reports and panics.
_PRINTED: Final = re.compile(rb"PID: (?P<pid>\d+) Comm: (?P<comm>[^\n]{1,15})")
# A name in the kernel is cut off after 15 bytes.
_MAX_COMM: Final = 15


class Dump(NamedTuple):
    """A dump of a crash."""

    path: Path
    log: Path | None
    """The log of the crash that was dumped."""

    @property
    def answers(self) -> str:
        """The name of the directory with the answers about it."""
        return f"{self.path.name}{ANSWERS}"


class Crash(NamedTuple):
    """The directory of a crash: all crashes with one title."""

    path: Path
    title: str | None
    """None where it could not be read. It comes from the fuzzed machine's console."""
    dumps: tuple[Dump, ...]
    logs: int
    reports: int
    has_program: bool
    """Whether it was reproduced."""


class Manager(NamedTuple):
    """A manager's files."""

    workdir: Path
    configuration: Path | None
    images: tuple[Path, ...]
    """The vmlinux in the configuration's ``kernel_obj``, and the modules with debug info there and in ``module_obj``; none
    where there is no configuration."""

    def crashes(self) -> Iterator[Crash]:
        """Iterate over the crashes, by title.

        :raises KcovdbgError: when they cannot be listed.
        """
        top = self.workdir / _CRASHES
        try:
            folders = [path for path in top.iterdir() if path.is_dir()]
        except OSError as error:
            raise KcovdbgError(f"could not read '{top}': {error.strerror or error}") from None
        crashes = [_read_crash(path) for path in folders]
        return iter(sorted(crashes, key=lambda crash: ((crash.title or "").lower(), crash.path.name)))


def find_manager(place: str) -> Manager:
    """Return a manager's files.

    :param place: its working directory or its configuration.
    :raises KcovdbgError: when it is neither.
    """
    path = Path(place).expanduser()
    if path.is_dir():
        workdir = path.resolve()
        if not (workdir / _CRASHES).is_dir():
            raise UsageError(
                f"syzkaller: no crashes in '{place}'",
                hint="give the manager's working directory, which has a directory crashes",
            )
        configuration = next((found for found in _nearby(workdir) if workdir in _workdirs(found)), None)
        return Manager(workdir, configuration, () if configuration is None else _find_images(configuration))
    settings = _read_configuration(path)
    if not isinstance(settings.get("workdir"), str):
        raise UsageError(f"syzkaller: no workdir in '{place}'", hint="give a manager's working directory or configuration")
    workdirs = [found for found in _workdirs(path) if (found / _CRASHES).is_dir()]
    if not workdirs:
        raise UsageError(f"syzkaller: no crashes in '{settings['workdir']}'", hint="give the manager's working directory")
    return Manager(workdirs[0], path.resolve(), _find_images(path))


def read_log(path: Path) -> bytes:
    """Return the log of a crash.

    :raises OSError: when it cannot be read.
    """
    return _read_regular(path, _MAX_LOG)


def names_another_task(log: bytes, pid: int, comm: str) -> bool:
    """Return whether a log is of another crash: none of its reports is about this task.

    A manager keeps the first dump of a title, and overwrites the oldest of its logs when there are ``max_crash_logs``.
    """
    printed = [(int(found["pid"]), found["comm"].decode("utf-8", "replace")) for found in _PRINTED.finditer(log)]
    return bool(printed) and not any(number == pid and name.startswith(comm) for number, name in printed)


def find_program(log: bytes, comm: str) -> str | None:
    """Return the program that an executor ran when the machine crashed; None where the log does not have it.

    :param comm: the name of the crashed task, which the executor makes of its number and the program's.
    """
    executor = _EXECUTOR.fullmatch(comm)
    if executor is None:
        return None
    cut = len(comm) >= _MAX_COMM
    found = None
    for match in _EXECUTED.finditer(log):
        number = match["id"].decode()
        is_same = number.startswith(executor["id"]) if cut else number == executor["id"]
        if match["proc"].decode() == executor["proc"] and is_same:
            found = match["program"]
    return None if found is None else found.decode("utf-8", "replace")


def _read_regular(path: Path, limit: int) -> bytes:
    """Return the start of a regular file; empty for any other kind.

    :raises OSError: when it cannot be read.
    """
    # A FIFO would wait for a writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        return file.read(limit) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def _read_crash(path: Path) -> Crash:
    title = None
    with contextlib.suppress(OSError):
        title = _read_regular(path / "description", _MAX_TITLE).decode("utf-8", "replace").strip()
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(path))  # noqa: PTH208 - names alone are needed
    logs = [name for name in names if re.fullmatch(r"log\d+", name)]
    dumps = [path / name for name in names if name.startswith(_DUMP) and (path / name).is_file()]
    return Crash(
        path,
        title,
        tuple(Dump(dump, _find_log(path, dump, logs)) for dump in dumps),
        len(logs),
        sum(bool(re.fullmatch(r"report\d+", name)) for name in names),
        "repro.prog" in names,
    )


def _find_log(path: Path, dump: Path, logs: Sequence[str]) -> Path | None:
    """Return the log of the crash that was dumped: it is written right after the dump is complete."""
    times: dict[str, float] = {}
    for name in logs:
        with contextlib.suppress(OSError):
            times[name] = (path / name).stat().st_mtime
    if not times:
        return None
    try:
        complete = dump.stat().st_mtime
    except OSError:
        return None
    later = {name: time for name, time in times.items() if time >= complete}
    name = min(later, key=later.__getitem__) if later else max(times, key=times.__getitem__)
    return path / name


def _nearby(workdir: Path) -> Iterator[Path]:
    """Iterate over files near a working directory that may be its configuration."""
    for folder in (workdir, workdir.parent):
        for pattern in ("*.cfg", "*.json"):
            with contextlib.suppress(OSError):
                yield from sorted(path for path in folder.glob(pattern) if path.is_file())


def _workdirs(configuration: Path) -> tuple[Path, ...]:
    """Return what a configuration's ``workdir`` can be: a relative one is relative to where the manager ran."""
    try:
        named = _read_configuration(configuration).get("workdir")
    except KcovdbgError:
        return ()
    return _resolve(configuration, named) if isinstance(named, str) else ()


def _resolve(configuration: Path, named: str) -> tuple[Path, ...]:
    return tuple(dict.fromkeys((base / named).resolve() for base in (Path.cwd(), configuration.resolve().parent)))


def _read_configuration(path: Path) -> dict[str, Any]:
    """Return a manager's configuration.

    :raises KcovdbgError: when it cannot be read.
    """
    try:
        text = _COMMENT.sub(b"", _read_regular(path, _MAX_CONFIGURATION)).decode("utf-8", "replace").lstrip()
        # Like Go's decoder, ignore what follows the first value.
        settings, _ = json.JSONDecoder().raw_decode(text)
    except FileNotFoundError:
        raise UsageError(f"syzkaller: no such file: '{path}'", hint=path_hint(path)) from None
    except OSError as error:
        raise KcovdbgError(f"could not read '{path}': {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(
            f"syzkaller: '{path}' is not a manager's configuration: {error}", hint="give a manager's working directory"
        ) from None
    if not isinstance(settings, dict):
        raise UsageError(f"syzkaller: '{path}' is not a manager's configuration", hint="give a manager's working directory")
    return settings


def _find_images(configuration: Path) -> tuple[Path, ...]:
    settings = _read_configuration(configuration)
    modules = settings.get("module_obj")
    named = [settings.get("kernel_obj"), *(modules if isinstance(modules, list) else [])]
    folders = [[*_resolve(configuration, name)] if isinstance(name, str) and name else [] for name in named]
    image = next((path for folder in folders[0] if (path := folder / _IMAGE).is_file()), None)
    found = {path for places in folders for place in places for path in place.rglob("*.ko") if _has_debug_info(path)}
    return (*(() if image is None else (image,)), *sorted(found))


def _has_debug_info(path: Path) -> bool:
    try:
        with ElfFile(path) as file:
            return file.has_debug_info
    except (ElfError, OSError):
        return False
