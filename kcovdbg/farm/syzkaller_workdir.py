# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the crashes in the working directory of a syz-manager, and the kernel's image by the
manager's configuration. The directory and the configuration are untrusted.

syzkaller's source for the formats: pkg/manager/crash.go (files of a crash; until 2024 in
syz-manager/manager.go), pkg/manager/diff_store.go and tools/syz-crush (other names),
pkg/mgrconfig/config.go (the configuration), pkg/rpcserver/last_executing.go (programs in a log),
syz-manager/manager.go (which crash has a dump).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ElfError
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.input_file import decode_utf16, is_file, is_folder, open_input, parse_json, unpack_data
from kcovdbg.records.crash_folder import (
    CRASHES,
    DESCRIPTION,
    DUMP_NAME,
    LOG_NAME,
    REPORT_NAME,
    REPRODUCER_NAME,
    is_crash_folder,
    is_workdir,
)
from kcovdbg.records.crash_report import find_tasks, find_title
from kcovdbg.records.input_kind import InputKind, find_path_kind
from kcovdbg.records.log_text import split_log
from kcovdbg.target.dump_file import path_hint
from kcovdbg.user_folder import expand_user, is_home

_C_REPRODUCER: Final = "repro.cprog"
_MAX_TITLE: Final = 4096
_MAX_CONFIGURATION: Final = 1 << 20
_MAX_LOG: Final = 16 << 20
# syzkaller removes lines that begin with this before it parses the rest as JSON.
_COMMENT: Final = b"#"
# The line before a program. Until 2024 it had no number of the program, and the program's lines
# could be mixed with lines of the console.
_EXECUTED: Final = re.compile(
    rb"executing program (?P<proc>\d{1,10})(?: \(id=(?P<id>\d{1,10})\):)?"
)
# Lines of a program in an old log.
_MAX_PROGRAM_LINES: Final = 400
# The start of a line of a program: a call or a comment.
_CALL: Final = re.compile(r"(r\d+ = )?[\w$]+\(|#")
# Bytes of a task's name in the kernel.
_MAX_COMM: Final = 15


class Dump(NamedTuple):
    """A dump of a crash."""

    path: Path
    log: Path | None
    """The log of the crash that was dumped."""


class Crash(NamedTuple):
    """A directory with all crashes of one title, or a single report or log."""

    path: Path
    title: str | None
    """The title, which comes from the fuzzed machine's console; None if it could not be read."""
    dumps: tuple[Dump, ...] = ()
    logs: tuple[Path, ...] = ()
    """Logs of crashes, then logs of reproducers, the newest first; reports are in the same order.
    """
    reports: tuple[Path, ...] = ()
    reproducer: Path | None = None
    """A program for syz-execprog."""
    c_reproducer: Path | None = None
    machine: Path | None = None
    """The manager's record of the machine."""
    remarks: tuple[str, ...] = ()
    """Files that are not read, with the reason."""

    @property
    def report(self) -> Path | None:
        """The report of the newest crash, or the log that has it."""
        return next(iter((*self.reports, *self.logs)), None)

    @property
    def log(self) -> Path | None:
        """The log of the newest crash that has a report."""
        if self.reports:
            number = _number(REPORT_NAME, self.reports[0].name)
            for log in self.logs:
                if number is not None and _number(LOG_NAME, log.name) == number:
                    return log
        return next(iter(self.logs), None)


class Manager(NamedTuple):
    """A manager's files."""

    workdir: Path
    images: tuple[Path, ...] = ()
    """The vmlinux in the configuration's ``kernel_obj``, and the modules with debug info there and
    in ``module_obj``, if images may be taken from these directories.
    """
    remarks: tuple[str, ...] = ()
    """Directories in the configuration that are not searched."""
    crash: Path | None = None
    """The crash directory, report or log that the user named in place of a working directory."""

    def crashes(self) -> Sequence[Crash]:
        """Return the crashes, by title, without links out of the directory of crashes.

        :raises KcovdbgError: when they cannot be listed.
        """
        real = Path(os.path.realpath(self.workdir))
        if self.crash is not None:
            if is_folder(self.crash):
                return (_read_crash(self.crash, real),)
            return (_read_report(self.crash),)
        top = self.workdir / CRASHES
        try:
            # A link must not choose other files to read. realpath() also accepts a loop of links,
            # at which Path.resolve() raises.
            inside = os.path.realpath(top)
            paths = [path for path in top.iterdir() if _is_inside(path, inside)]
        except OSError as error:
            raise KcovdbgError(f"could not read '{top}': {error.strerror or error}") from None
        crashes = [_read_crash(path, real) for path in paths if is_folder(path)]
        return sorted(crashes, key=lambda crash: ((crash.title or "").lower(), crash.path.name))


def _is_inside(path: Path, folder: str | Path) -> bool:
    """Return whether a path, with its links followed, is in a directory."""
    return Path(os.path.realpath(path)).is_relative_to(folder)


def find_manager(name: str, named: Sequence[str] = ()) -> Manager:
    """Return a manager's files.

    A configuration may come from somebody else, and must not choose the directories that are
    searched. Images are taken from the working directory, from the configuration's directory if the
    user named the configuration or it belongs to the user or root, and from what the user named.

    :param name: a working directory, a configuration, a crash directory, a report or a log.
    :param named: files and directories of images that the user named.
    :raises KcovdbgError: when the name leads to none of these.
    """
    places = [Path(os.path.realpath(place)) for place in named]
    path = expand_user(name)
    if is_folder(path):
        folder = path.resolve()
        if is_workdir(folder):
            return _find_beside(folder, places)
        if is_crash_folder(_list_names(folder)):
            return _find_around(folder, folder, places)
        raise UsageError(
            f"syzkaller: no crashes in '{name}'",
            hint="give the manager's working directory, which has a directory crashes, or the "
            "directory of one crash",
        )
    if is_file(path) and find_path_kind(str(path)).kind in (InputKind.LOG, InputKind.REPORT):
        report = path.resolve()
        return _find_around(report, report.parent, places)
    settings = _read_configuration(path)
    if not isinstance(settings.get("workdir"), str):
        raise UsageError(
            f"syzkaller: no workdir in '{name}'",
            hint="give a manager's working directory or configuration",
            wrong_file=str(path),
        )
    for workdir in _resolve(path, settings["workdir"]):
        if is_folder(workdir / CRASHES):
            return _add_images(Manager(workdir), path, settings, places)
    raise UsageError(
        f"syzkaller: no crashes in '{settings['workdir']}'",
        hint="give the manager's working directory",
    )


def _find_beside(workdir: Path, places: Sequence[Path]) -> Manager:
    """Return a manager's files by its working directory, and a configuration near the directory."""
    for near in _nearby(workdir):
        is_beside = near.parent != workdir
        with contextlib.suppress(KcovdbgError):
            settings = _read_configuration(near, owned=is_beside)
            if workdir in _resolve(near, settings.get("workdir")):
                return _add_images(Manager(workdir), near, settings, places)
    return Manager(workdir)


def _find_around(crash: Path, folder: Path, places: Sequence[Path]) -> Manager:
    """Return the manager's files for one crash, in the manager's working directory or elsewhere.

    :param crash: the directory of the crash, or its report or log.
    :param folder: the directory of the crash.
    """
    if folder.parent.name == CRASHES:
        return _find_beside(folder.parent.parent, places)._replace(crash=crash)
    return Manager(crash, crash=crash)


def read_log(path: Path, limit: int = _MAX_LOG) -> bytes:
    """Return the start of a crash's log or report.

    :raises OSError: when it cannot be read, is a pipe or a device, or a link out of the crash's
        directory: a link must not choose another file whose text an answer shows.
    """
    with open_input(path, folder=path.parent.resolve()) as file:
        data = file.read(limit)
    try:
        return decode_utf16(unpack_data(path, data))[:limit]
    except KcovdbgError as error:
        raise OSError(errno.EIO, str(error)) from None


def names_another_task(log: bytes, pid: int, comm: str) -> bool:
    """Return whether a log is of another crash, because none of its reports is about this task.

    A manager keeps the first dump of a title, and overwrites the oldest of its logs when there are
    ``max_crash_logs``.
    """
    printed = find_tasks(log.decode("utf-8", "replace"))
    is_named = any(task.pid == pid and task.comm.startswith(comm) for task in printed)
    return bool(printed) and not is_named


def find_program(log: bytes, comm: str | None) -> str | None:
    """Return the calls of the program that an executor ran last; None if the log does not have it.

    :param comm: the name of the crashed task, which has the numbers of the executor and the
        program; None for any program.
    """
    program = b""
    is_numbered = False
    for run in _find_runs(log):
        if run.number is not None and not is_numbered:
            program, is_numbered = b"", True
        if (run.number is not None) == is_numbered and (comm is None or comm in run.task_names):
            program = run.program
    lines = program.decode("utf-8", "replace").split("\n")
    # Lines of the console may be between the calls.
    calls = [line for line in lines if _CALL.match(line) and line.endswith(")")]
    return "\n".join(calls) or None


class _Run(NamedTuple):
    """A program in a log."""

    executor: str
    """The executor's number."""
    number: str | None
    """The program's number; None in an old log."""
    program: bytes

    @property
    def task_names(self) -> Sequence[str]:
        """The names that the executor's task may have."""
        if self.number is not None:
            # The kernel cuts the name.
            return (f"syz.{self.executor}.{self.number}"[:_MAX_COMM],)
        return (f"syz-executor{self.executor}", f"syz-executor.{self.executor}")


def _find_runs(log: bytes) -> Iterator[_Run]:
    """Iterate over the programs in a log. In an old log, they include lines of the console."""
    last: re.Match[bytes] | None = None
    for match in _EXECUTED.finditer(log):
        if last is not None:
            yield _make_run(last, log[last.end() : match.start()])
        last = match
    if last is not None:
        yield _make_run(last, log[last.end() :])


def _make_run(match: re.Match[bytes], text: bytes) -> _Run:
    """Return the program after a line that announces one.

    :param match: the line.
    :param text: the log from there to the next such line.
    """
    program = text.partition(b"\n")[2]
    executor = match["proc"].decode()
    if match["id"] is not None:
        return _Run(executor, match["id"].decode(), program.partition(b"\n\n")[0])
    lines = program.split(b"\n", _MAX_PROGRAM_LINES)
    return _Run(executor, None, b"\n".join(lines[:_MAX_PROGRAM_LINES]))


def _read_text(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return read_log(path, _MAX_TITLE).decode("utf-8", "replace").strip()
    return None


def _list_names(folder: Path) -> Sequence[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names alone are needed
    except OSError:
        return ()


def _read_crash(path: Path, workdir: Path) -> Crash:
    """Return a crash.

    :param workdir: path of the working directory, without links. A dump that is a link out of it is
        not read.
    """
    names = _list_names(path)
    logs, reports = _sort(path, LOG_NAME, names), _sort(path, REPORT_NAME, names)
    dumps: list[Dump] = []
    remarks: list[str] = []
    for name in filter(DUMP_NAME.fullmatch, names):
        dump = path / name
        if is_file(dump) and _is_inside(dump, workdir):
            dumps.append(Dump(dump, _find_log(dump, logs)))
        elif is_file(dump):
            remarks.append(f"{name}: a link out of the working directory, not read")
    c_reproducer = None
    if _C_REPRODUCER in names:
        c_reproducer = path / _C_REPRODUCER
    title = _read_text(path / DESCRIPTION)
    if title is None and reports:
        # Without a description, as after patch fuzzing, the report has the title.
        text = _read_text(reports[0]) or ""
        first = next((line.message.strip() for line in split_log(text)), "")
        title = find_title(text) or first or None
    return Crash(
        path,
        title,
        tuple(dumps),
        logs,
        reports,
        next(iter(_sort(path, REPRODUCER_NAME, names)), None),
        c_reproducer,
        next(iter(_sort(path, re.compile(r"machineInfo(?P<number>\d+)"), names)), None),
        tuple(remarks),
    )


def _read_report(path: Path) -> Crash:
    """Return the crash of a report or a log that has no other files."""
    text = ""
    with contextlib.suppress(OSError):
        text = read_log(path).decode("utf-8", "replace")
    title = find_title(text)
    if "executing program" in text:
        return Crash(path, title, logs=(path,))
    return Crash(path, title, reports=(path,))


def _number(pattern: re.Pattern[str], name: str) -> str | None:
    match = pattern.fullmatch(name)
    if match is None:
        return None
    return match["number"]


def _sort(folder: Path, pattern: re.Pattern[str], names: Sequence[str]) -> tuple[Path, ...]:
    """Return the files whose names match a pattern: files with the number of a crash come first,
    and newer files before older ones.
    """
    found: list[tuple[bool, float, Path]] = []
    for name in names:
        match = pattern.fullmatch(name)
        with contextlib.suppress(OSError):
            if match is not None:
                path = folder / name
                found.append((match.groupdict().get("number") is None, -path.stat().st_mtime, path))
    return tuple(path for _, _, path in sorted(found))


def _find_log(dump: Path, logs: Sequence[Path]) -> Path | None:
    """Return the log of a dump's crash: the log with the dump's number, or the first one written
    after the dump.
    """
    number = _number(DUMP_NAME, dump.name)
    times: dict[Path, float] = {}
    try:
        complete = dump.stat().st_mtime
        for log in logs:
            found = _number(LOG_NAME, log.name)
            if found is not None and found == number:
                return log
            if found is not None:
                times[log] = log.stat().st_mtime
    except OSError:
        return None
    later = [log for log in times if times[log] >= complete]
    if later:
        return min(later, key=times.__getitem__)
    return next(iter(times), None)


def _nearby(workdir: Path) -> Iterator[Path]:
    """Iterate over files near a working directory that may be its configuration."""
    for folder in (workdir, workdir.parent):
        for pattern in ("*.cfg", "*.json"):
            with contextlib.suppress(OSError):
                yield from sorted(path for path in folder.glob(pattern) if is_file(path))


def _resolve(configuration: Path, named: object) -> Sequence[Path]:
    """Return the paths that a path in a configuration can mean. A relative path is relative to the
    directory in which the manager ran, which is unknown.
    """
    if not isinstance(named, str) or not named:
        return ()
    found: dict[Path, None] = {}
    for base in (Path.cwd(), Path(os.path.realpath(configuration)).parent):
        # A name with a null character is no path.
        with contextlib.suppress(ValueError):
            found[Path(os.path.realpath(base / named))] = None
    return tuple(found)


def _read_configuration(path: Path, *, owned: bool = False) -> dict[str, Any]:
    """Return a manager's configuration.

    :param owned: refuse a file of another user, and a link.
    :raises KcovdbgError: when it cannot be read.
    """
    try:
        with open_input(path, owned=owned) as file:
            lines = file.read(_MAX_CONFIGURATION).split(b"\n")
        text = b"\n".join(line for line in lines if not line.lstrip().startswith(_COMMENT))
        # Ignore text after the first value, as Go's decoder does.
        settings = parse_json(text.decode("utf-8", "replace"), is_prefix=True)
    except FileNotFoundError:
        raise UsageError(f"syzkaller: no such file: '{path}'", hint=path_hint(path)) from None
    except OSError as error:
        raise KcovdbgError(f"could not read '{path}': {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(
            f"syzkaller: '{path}' is not a manager's configuration: {error}",
            hint="give a manager's working directory",
            wrong_file=str(path),
        ) from None
    if not isinstance(settings, dict):
        raise UsageError(
            f"syzkaller: '{path}' is not a manager's configuration",
            hint="give a manager's working directory",
            wrong_file=str(path),
        )
    return settings


def _add_images(
    manager: Manager, configuration: Path, settings: Mapping[str, Any], named: Sequence[Path]
) -> Manager:
    """Return a manager with the images that its configuration names.

    :param named: directories that the user allows to search for images, without links.
    """
    home = Path(os.path.realpath(configuration)).parent
    places = [Path(os.path.realpath(manager.workdir)), *named]
    if not is_home(home):
        places.append(home)
    objects = _resolve(configuration, settings.get("kernel_obj"))
    folders = dict.fromkeys(objects)
    modules = settings.get("module_obj")
    if isinstance(modules, list):
        for name in modules:
            folders |= dict.fromkeys(_resolve(configuration, name))
    searched: list[Path] = []
    remarks: list[str] = []
    for folder in folders:
        if any(folder.is_relative_to(place) for place in places):
            searched.append(folder)
        elif is_folder(folder):
            remarks.append(
                f"'{folder}' is not searched; if you trust '{configuration}', which names it: -s "
                f"{shlex.quote(str(folder))}"
            )
    images = [folder / "vmlinux" for folder in objects if folder in searched]
    found: set[Path] = set()
    for folder in searched:
        found.update(filter(_has_debug_info, _list_modules(folder)))
    image = list(filter(_is_plain, images))[:1]
    return manager._replace(images=(*image, *sorted(found)), remarks=tuple(remarks))


def _is_plain(path: Path) -> bool:
    """Return whether a path leads to a regular file, and is no link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _list_modules(folder: Path) -> Iterator[Path]:
    """Iterate over the files of modules below a directory, without following links."""
    for parent, _, names in os.walk(folder):
        paths = (Path(parent, name) for name in names if name.endswith(".ko"))
        yield from filter(_is_plain, paths)


def _has_debug_info(path: Path) -> bool:
    try:
        with ElfFile(path) as file:
            return file.has_debug_info
    except (ElfError, OSError):
        return False
