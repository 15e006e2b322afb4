# SPDX-License-Identifier: LGPL-2.1-or-later
"""``doctor``: what keeps kcovdbg from working on this machine, and how to mend it."""

from __future__ import annotations

import contextlib
import os
import platform
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.collect.machine import is_this_machine, read_config, running_build_id, running_release
from kcovdbg.collect.native import DEVICE, load_native
from kcovdbg.commands.command import Command, Example
from kcovdbg.commands.session import Context
from kcovdbg.errors import KcovdbgError
from kcovdbg.render.column import Column
from kcovdbg.render.kind import BOOL, TEXT
from kcovdbg.render.renderable import Table
from kcovdbg.symbols.elf import ElfFile
from kcovdbg.symbols.points import can_find_points, find_points, find_points_between


class Check(NamedTuple):
    """One thing that was looked at."""

    question: str
    ok: bool | None
    """None: it can't be told."""
    answer: str
    fix: str | None = None


_COLUMNS: Final = (
    Column(
        "ok",
        BOOL,
        title="",
        text=lambda check: "?" if check.ok is None else "ok" if check.ok else "NO",
        style=lambda check: "" if check.ok else "warning" if check.ok is None else "error",
    ),
    Column("question", TEXT),
    Column("answer", TEXT, elastic=20),
    Column("fix", TEXT, elastic=20, text=lambda check: check.fix or ""),
)


def _check_kernel(_context: Context) -> Check:
    question = "is this kernel built with KCOV?"
    config = read_config()
    try:
        is_there: bool | None = Path(DEVICE).exists()
    except PermissionError:
        # Only root may look into debugfs.
        is_there = None
    if is_there:
        lacking = [] if config is None else [name for name in ("CONFIG_KCOV_ENABLE_COMPARISONS",) if config.get(name) != "y"]
        return Check(question, True, running_release() + (f", without {lacking[0]}: no cmp mode" if lacking else ""))
    if config is None:
        fix = "run kcovdbg as root" if is_there is None else f"mount debugfs, and look for {DEVICE}"
        return Check(question, None, "its configuration can't be found", fix)
    if config.get("CONFIG_KCOV") == "y":
        return Check(question, True, f"{running_release()}: CONFIG_KCOV=y")
    return Check(question, False, f"{running_release()} isn't", "build one with CONFIG_KCOV=y and CONFIG_KCOV_INSTRUMENT_ALL=y")


_EVERYWHERE: Final = "CONFIG_KCOV_INSTRUMENT_ALL=y, or KCOV_INSTRUMENT := y in Makefiles"


def _check_points(context: Context) -> Check:
    question = "are there instrumented points?"
    target = context.session.optional_target
    lines = None if target is None or not is_this_machine(target) else getattr(target, "lines", None)
    image = None if lines is None else lines.image
    if image is not None:
        found = find_calls(image)
        if found is not None:
            if found[0]:
                amount = f"{found[0]} calls of __sanitizer_cov_trace_pc in {found[1] >> 10} KiB of code"
                return Check(question, True, f"{amount}, {image}")
            return Check(question, False, f"none: nothing in {image} calls __sanitizer_cov_trace_pc", _EVERYWHERE)
    has_callback = has_symbol(_CALLBACKS)
    if has_callback is False:
        return Check(question, False, "none: the kernel has no __sanitizer_cov_trace_pc", "build one with CONFIG_KCOV=y")
    config = read_config()
    if config is not None and config.get("CONFIG_KCOV_INSTRUMENT_ALL") != "y":
        return Check(question, None, "only where a Makefile asks for them, by its configuration", _EVERYWHERE)
    there = "" if has_callback is None else ", and __sanitizer_cov_trace_pc is there"
    said = "its configuration can't be found" if config is None else "everywhere, by its configuration"
    return Check(question, None if config is None else True, said + there, "the kernel's vmlinux tells: -s VMLINUX")


_CALLBACKS: Final = ("__sanitizer_cov_trace_pc", "__sanitizer_cov_trace_pc_guard", "__sanitizer_cov_trace_pc_entry")


# Enough of the code to see calls in, if there are any; all of it would take seconds.
_SAMPLE: Final = 1 << 20


def find_calls(image: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Count the calls of KCOV's callbacks for PCs in a linked kernel image.

    In its first MiB of code; if there are none, in all of it.

    :return: calls, and bytes of code that were looked at; None where calls can't be seen: the file has no code or no symbols,
        or its architecture's calls aren't known.
    """
    try:
        with contextlib.closing(ElfFile(image)) as elf:
            texts = [text for text in elf.text_sections() if elf.read(text, 1)]
            if not can_find_points(elf.machine) or not texts or not elf.symbols():
                return None
            largest = max(texts, key=lambda text: text.size)
            size = min(largest.size, _SAMPLE)
            found = len(find_points_between(elf, largest.address, largest.address + size).pc)
            if found:
                return found, size
            return len(find_points(elf).pc), sum(text.size for text in texts)
    except KcovdbgError:
        return None


def has_symbol(names: Collection[str], path: str | Path = "/proc/kallsyms") -> bool | None:
    """Tell whether the running kernel has a symbol with one of these names; None where it doesn't tell its symbols."""
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


def _check_debugfs(_context: Context) -> Check:
    folder = Path(DEVICE).parent
    question = "is debugfs mounted?"
    try:
        mounted = os.path.ismount(folder)
    except OSError:
        mounted = False
    if mounted:
        return Check(question, True, str(folder))
    return Check(question, False, f"not at {folder}", f"mount -t debugfs none {folder}")


def _check_open(_context: Context) -> Check:
    question = "may I open KCOV?"
    try:
        descriptor = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        fix = "run kcovdbg as root" if isinstance(error, PermissionError) else "see the lines above"
        return Check(question, False, f"{DEVICE}: {error.strerror}", fix)
    os.close(descriptor)
    return Check(question, True, DEVICE)


def _check_kcore(_context: Context) -> Check:
    question = "is /proc/kcore readable?"
    try:
        descriptor = os.open("/proc/kcore", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.pread(descriptor, 4096, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            fix = "CONFIG_PROC_KCORE=y"
        elif os.geteuid() == 0:
            fix = "is the kernel locked down? cat /sys/kernel/security/lockdown"
        else:
            fix = "run kcovdbg as root"
        return Check(question, False, f"{error.strerror}", fix)
    return Check(question, True, "the kernel's state can be looked at while it runs")


def _check_symbols(context: Context) -> Check:
    question = "is the debug info the right one?"
    build_id = running_build_id()
    target = context.session.optional_target
    if target is None:
        # Without the kernel's memory no debug info can be compared with it.
        is_readable = os.access("/proc/kcore", os.R_OK)
        fix = "install the kernel's debug symbols, or name its vmlinux: -s VMLINUX" if is_readable else "see the line above"
        return Check(question, False if is_readable else None, context.session.target_problem, fix)
    if not is_this_machine(target):
        return Check(question, None, f"{target.name} isn't the kernel that runs here", "kcovdbg -k -s VMLINUX doctor")
    lines = getattr(target, "lines", None)
    image = None if lines is None else lines.image
    if image is None:
        return Check(question, False, "no vmlinux was found: no names and lines", "name the vmlinux of this kernel: -s VMLINUX")
    return Check(question, True, f"{image}, build-id {(target.build_id or build_id or '?')[:12]}…")


def _check_collector(_context: Context) -> Check:
    question = "does the collector work?"
    try:
        load_native()
        from kcovdbg.collect.trace import Trace

        with Trace(size=4096) as trace:
            os.getppid()
    except KcovdbgError as error:
        return Check(question, False, str(error), error.hint)
    if not trace.pcs:
        return Check(question, False, "getppid() left no record", "was kernel/sys.c built with instrumentation?")
    return Check(question, True, f"getppid() left {len(trace.pcs)} records")


def _check_following(_context: Context) -> Check:
    question = "can commands be followed?"
    if platform.machine() != "x86_64":
        return Check(question, False, "threads and children are followed on x86-64 only", "the command itself is collected")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    with contextlib.suppress(OSError):
        if scope.read_text().strip() == "3":
            return Check(question, False, "Yama forbids ptrace altogether", "boot with kernel.yama.ptrace_scope below 3")
    return Check(question, True, "threads and children too, by ptrace")


_CHECKS: Final[tuple[Callable[[Context], Check], ...]] = (
    _check_kernel,
    _check_points,
    _check_debugfs,
    _check_open,
    _check_kcore,
    _check_symbols,
    _check_collector,
    _check_following,
)


def _run(context: Context, args: Namespace) -> Table:  # noqa: ARG001
    def rows() -> Iterator[Check]:
        for check in _CHECKS:
            yield check(context)

    return Table(_COLUMNS, rows())


DOCTOR = Command(
    name="doctor",
    summary="can kcovdbg work on this machine, and if not, why?",
    run=_run,
    description="Looks at the running kernel and at this installation, a line each, with what mends it.",
    examples=(Example("doctor", "why does collect fail?"),),
    needs=frozenset(),
)
