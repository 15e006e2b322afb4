# SPDX-License-Identifier: LGPL-2.1-or-later
"""``doctor``: check whether kcovdbg can work on this machine, and say how to fix what cannot."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.abi.mode import EnableRequest, Mode
from kcovdbg.collect.requests import DEVICE, Step, explain_errno
from kcovdbg.collect.thread_trace import Trace
from kcovdbg.compiled_module import load_native
from kcovdbg.console.column import BOOL, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.renderable import Line, Lines, Table, wrap_line
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import KcovdbgError
from kcovdbg.series.table import device_modes
from kcovdbg.symbols.arch import ARCHITECTURES
from kcovdbg.symbols.coverage_points import PointKind, find_points, find_text_points
from kcovdbg.symbols.table_cache import CACHE_HINT, find_usable_cache
from kcovdbg.target.local_kernel import (
    is_this_machine,
    read_config,
    running_build_id,
    running_release,
)


class Diagnosis(NamedTuple):
    """The answer to one question about this machine."""

    ok: bool | None
    """Whether the answer is good; None if unknown."""
    answer: str
    fix: str | None = None
    question: str = ""


_COLUMNS: Final = (
    Column("ok", BOOL, meaning="whether the answer is good", null="it is unknown"),
    Column("question", meaning="what was checked"),
    Column("answer", meaning="what was found"),
    Column("fix", meaning="what to do about it", null="there is nothing to do"),
)
_SIGNS: Final = {True: ("good", "ok"), False: ("error", "NO"), None: ("warning", " ?")}
_INDENT: Final = 4

_COMPARISONS: Final = "CONFIG_KCOV_ENABLE_COMPARISONS"
_EVERYWHERE: Final = "CONFIG_KCOV_INSTRUMENT_ALL=y, or KCOV_INSTRUMENT := y in Makefiles"
# The compiler calls one of these at each coverage point.
_CALLBACKS: Final = (
    "__sanitizer_cov_trace_pc",
    "__sanitizer_cov_trace_pc_guard",
    "__sanitizer_cov_trace_pc_entry",
)
# Bytes of code that have a call if an image has any. Searching all of the code takes seconds.
_SAMPLE: Final = 1 << 20
# Machines whose system calls native/inject.c makes in another process.
_FOLLOWED_MACHINES: Final = ("x86_64", "aarch64")


def _check_kernel(_context: Context) -> Diagnosis:
    config = read_config()
    try:
        is_there: bool | None = Path(DEVICE).exists()
    except PermissionError:
        # Only root can search debugfs.
        is_there = None
    if is_there:
        answer = running_release()
        if config is not None and config.get(_COMPARISONS) != "y":
            answer += f", without {_COMPARISONS}: no cmp mode"
        return Diagnosis(True, answer)
    if config is None:
        fix = f"mount debugfs and check for {DEVICE}"
        if is_there is None:
            fix = "run kcovdbg as root"
        return Diagnosis(None, "no kernel configuration found", fix)
    if config.get("CONFIG_KCOV") == "y":
        return Diagnosis(True, f"{running_release()}: CONFIG_KCOV=y")
    return Diagnosis(
        False,
        f"no, {running_release()} is not",
        "build one with CONFIG_KCOV=y and CONFIG_KCOV_INSTRUMENT_ALL=y",
    )


def _check_points(context: Context) -> Diagnosis:
    target = context.kernel.memory.optional_target
    if target is not None and is_this_machine(target) and target.lines is not None:
        image = target.lines.image
        found = None if image is None else find_calls(image)
        if found is not None:
            calls, size = found
            if not calls:
                return Diagnosis(False, f"none: no call of {_CALLBACKS[0]} in {image}", _EVERYWHERE)
            return Diagnosis(
                True, f"{calls} calls of {_CALLBACKS[0]} in {size >> 10} KiB of code, {image}"
            )
    has_callback = has_symbol(_CALLBACKS)
    if has_callback is False:
        answer = f"none: the kernel has no {_CALLBACKS[0]}"
        return Diagnosis(False, answer, "build one with CONFIG_KCOV=y")
    config = read_config()
    if config is not None and config.get("CONFIG_KCOV_INSTRUMENT_ALL") != "y":
        return Diagnosis(
            None, "according to its configuration, only where a Makefile asks for them", _EVERYWHERE
        )
    suffix = f"; {_CALLBACKS[0]} exists" if has_callback else ""
    fix = "to verify, name its vmlinux: -s VMLINUX"
    if config is None:
        return Diagnosis(None, f"no kernel configuration found{suffix}", fix)
    return Diagnosis(True, f"everywhere, by its configuration{suffix}", fix)


def find_calls(image: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Count the calls of KCOV's callbacks for PCs in a linked kernel image.

    Search the first MiB of code; if it has no call, search all code.

    :return: number of calls, and of searched bytes; None if the file has no code or no symbols, or
        its architecture is not supported.
    """
    try:
        with ElfFile(image) as elf:
            texts = [text for text in elf.text_sections() if elf.read_section(text, 1)]
            if elf.header.machine not in ARCHITECTURES or not texts or not elf.symbols:
                return None
            largest = max(texts, key=lambda text: text.size)
            size = min(largest.size, _SAMPLE)
            points = find_text_points(elf.read(largest.address, size), largest.address, elf)
            found = sum(kind is PointKind.PC for _, kind in points)
            if found:
                return found, size
            return len(find_points(elf).pc), sum(text.size for text in texts)
    except KcovdbgError:
        return None


def has_symbol(names: Collection[str], path: str | Path = "/proc/kallsyms") -> bool | None:
    """Return whether the running kernel has a symbol with one of these names; None if its symbols
    are hidden.
    """
    is_empty = True
    try:
        with Path(path).open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                is_empty = False
                words = line.split()
                if len(words) > 2 and words[2] in names:
                    return True
    except OSError:
        return None
    return None if is_empty else False


def _check_debugfs(_context: Context) -> Diagnosis:
    folder = Path(DEVICE).parent
    if os.path.ismount(folder):
        return Diagnosis(True, str(folder))
    return Diagnosis(False, f"not at {folder}", f"mount -t debugfs none {folder}")


def _try_open(path: Path) -> Diagnosis:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        status = path.stat()
    except OSError as error:
        problem = explain_errno(Step.OPEN, error.errno or 0, path=str(path))
        return Diagnosis(False, str(problem), problem.hint)
    return Diagnosis(
        True, f"{path}, {stat.filemode(status.st_mode)}, owned by user {status.st_uid}"
    )


def check_devices(
    folder: Path = Path(DEVICE).parent, features: Collection[str] | None = None
) -> Iterator[Diagnosis]:
    """Check the devices of posted series that the running kernel has.

    :param folder: the folder of KCOV's file.
    :param features: features of the running kernel; None if they are unknown.
    """
    for device, mode in device_modes():
        request = mode.request
        if request is None or request.device is None:
            continue
        path = folder / request.device.file
        try:
            path.stat()
        except OSError as error:
            # Only root can search debugfs, but everybody can read the kernel's symbols.
            if has_symbol((device.operations,)):
                fix = f"mount -t debugfs none {folder}"
                if isinstance(error, PermissionError):
                    fix = "run kcovdbg as root"
                yield Diagnosis(False, f"{path}: {error.strerror}", fix, f"can I open {path.name}?")
            continue
        opened = _try_open(path)
        yield opened._replace(question=f"can I open {path.name}?")
        if opened.ok:
            yield _check_records(path, mode, request, features)._replace(
                question=f"does {path.name} record?"
            )


def _check_records(
    path: Path, mode: Mode, request: EnableRequest, features: Collection[str] | None
) -> Diagnosis:
    if features is not None and request.feature not in (None, *features):
        # The device is of an earlier form of the series, which can stay enabled for an ended task.
        return Diagnosis(
            None,
            f"not tried: collect needs the {path.name} of {request.since}",
            "tasks and buffer show what other programs record",
        )
    try:
        # Enabling is safe on any kernel that has the file: it belongs to the series alone.
        needed = () if request.feature is None else (request.feature,)
        with Trace(mode.user_name, size=4096, features=needed, path=str(path)) as trace:
            os.getpriority(os.PRIO_PROCESS, 0)
    except KcovdbgError as error:
        return Diagnosis(False, str(error), error.hint)
    if trace.count:
        return Diagnosis(
            True, f"getpriority() left {trace.count} words; collect with --mode {mode.user_name}"
        )
    return Diagnosis(
        None,
        f"{path.name} was enabled, but getpriority() left nothing",
        "only code that was compiled with its instrumentation is recorded",
    )


def _check_kcore(_context: Context) -> Diagnosis:
    try:
        with Path("/proc/kcore").open("rb", buffering=0) as memory:
            memory.read(4096)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            fix = "CONFIG_PROC_KCORE=y"
        elif os.geteuid() == 0:
            fix = "check for lockdown: cat /sys/kernel/security/lockdown"
        else:
            fix = "run kcovdbg as root"
        return Diagnosis(False, f"{error.strerror}", fix)
    return Diagnosis(True, "the running kernel's state can be read")


def _check_symbols(context: Context) -> Diagnosis:
    build_id = running_build_id()
    target = context.kernel.memory.optional_target
    if target is None:
        # Whether debug info matches is decided by the kernel's memory.
        if not os.access("/proc/kcore", os.R_OK):
            return Diagnosis(None, context.kernel.memory.problem, "see the line above")
        fix = "install the kernel's debug symbols, or name its vmlinux: -s VMLINUX"
        return Diagnosis(False, context.kernel.memory.problem, fix)
    if not is_this_machine(target):
        return Diagnosis(
            None, f"no, {target.name} is another kernel", "kcovdbg -k -s VMLINUX doctor"
        )
    image = None if target.lines is None else target.lines.image
    if image is None:
        return Diagnosis(
            False,
            "no vmlinux found: no names and lines",
            "name the vmlinux of this kernel: -s VMLINUX",
        )
    return Diagnosis(True, f"{image}, build-id {(target.build_id or build_id or '?')[:12]}…")


def _check_collector(_context: Context) -> Diagnosis:
    try:
        load_native()
        with Trace(size=4096) as trace:
            os.getppid()
    except KcovdbgError as error:
        return Diagnosis(False, str(error), error.hint)
    if not trace.pcs:
        return Diagnosis(
            False, "getppid() left no record", "was kernel/sys.c built with instrumentation?"
        )
    return Diagnosis(True, f"getppid() left {len(trace.pcs)} records")


def _check_following(_context: Context) -> Diagnosis:
    if platform.machine() not in _FOLLOWED_MACHINES:
        return Diagnosis(False, "only on x86-64 and arm64", "collect works for the command itself")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    with contextlib.suppress(OSError):
        if scope.read_text().strip() == "3":
            return Diagnosis(
                False, "Yama forbids ptrace", "boot with kernel.yama.ptrace_scope below 3"
            )
    return Diagnosis(True, "yes, by ptrace")


def _check_cache(_context: Context) -> Diagnosis:
    cache = find_usable_cache()
    if cache.problem is None:
        return Diagnosis(True, str(cache.folder))
    if cache.folder is None:
        return Diagnosis(False, f"nowhere: {cache.problem}", CACHE_HINT)
    return Diagnosis(None, f"only in {cache.folder}: {cache.problem}", CACHE_HINT)


_CHECKS: Final[tuple[tuple[str, Callable[[Context], Diagnosis | Iterator[Diagnosis]]], ...]] = (
    ("is this kernel built with KCOV?", _check_kernel),
    ("are there instrumented points?", _check_points),
    ("is debugfs mounted?", _check_debugfs),
    ("can I open KCOV?", lambda _context: _try_open(Path(DEVICE))),
    ("is /proc/kcore readable?", _check_kcore),
    ("does the debug info match?", _check_symbols),
    ("does the collector work?", _check_collector),
    # Each device has questions of its own.
    ("", lambda context: check_devices(features=context.running_features)),
    ("can threads and children be followed?", _check_following),
    ("can location tables be kept?", _check_cache),
)


def _diagnose(context: Context) -> Iterator[Diagnosis]:
    for question, check in _CHECKS:
        found = check(context)
        if isinstance(found, Diagnosis):
            yield found._replace(question=question)
        else:
            yield from found


def _run(context: Context, args: Namespace) -> Lines:  # noqa: ARG001
    diagnoses = list(_diagnose(context))
    if any(diagnosis.ok is False for diagnosis in diagnoses):
        context.status = 1
    lines = [line for diagnosis in diagnoses for line in _diagnosis_lines(diagnosis, context.width)]
    remarks = []
    target = context.kernel.memory.optional_target if context.kernel.options.is_named else None
    if target is not None and not is_this_machine(target):
        remarks.append(f"this is about the machine that kcovdbg runs on, not about {target.name}")
    return Lines(lines, data=Table(_COLUMNS, diagnoses), remarks=remarks)


def _diagnosis_lines(diagnosis: Diagnosis, width: int | None) -> Iterator[Line]:
    style, sign = _SIGNS[diagnosis.ok]
    question = f"{diagnosis.question} " if diagnosis.question else ""
    yield from wrap_line(
        ((style, f"{sign}  "), ("key", question), ("", diagnosis.answer)), width, _INDENT
    )
    if diagnosis.fix is not None:
        yield from wrap_line(
            (("", " " * _INDENT), ("hint", f"→ {diagnosis.fix}")), width, _INDENT + 2
        )


COMMAND: Final = Command(
    name="doctor",
    summary="check whether kcovdbg can work on this machine",
    topic=Topic.COLLECTION,
    run=_run,
    row_types=(RowType(_COLUMNS),),
    description=(
        "Checks the running kernel and this installation. Each line says what is missing and how "
        "to fix it. The exit status is 1 if anything is missing."
    ),
    examples=(Example("doctor", "why does collect fail?"),),
    needs=frozenset(),
)
