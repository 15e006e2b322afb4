# SPDX-License-Identifier: LGPL-2.1-or-later
"""``collect``: coverage of a command on this machine."""

from __future__ import annotations

import os
import platform
import re
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi.call import CALL_LENGTHS
from kcovdbg.analysis.keeping import keep
from kcovdbg.collect.machine import is_this_machine, running_build_id, running_kaslr_offset, running_release
from kcovdbg.collect.mode import NAMES, find_mode
from kcovdbg.collect.native import DEFAULT_SIZE
from kcovdbg.collect.trace_writer import check_destination, make_header, write_text, write_trace
from kcovdbg.commands.argument import Argument, Count, Value, WordError
from kcovdbg.commands.buffer import FILTERS, SHOWING, show_buffer
from kcovdbg.commands.command import Command, Example, Need
from kcovdbg.commands.jobs import start_collect
from kcovdbg.commands.session import Context
from kcovdbg.errors import CollectError, KcovdbgError
from kcovdbg.render.column import Column
from kcovdbg.render.kind import BOOL, COMM, NUMBER, PATH, PID
from kcovdbg.render.renderable import Lines, Renderable, Table
from kcovdbg.render.writer import Format

if TYPE_CHECKING:
    from kcovdbg.collect.running import Collected, Request
    from kcovdbg.commands.collecting import Part

_GROWTH: Final = 4
# 512 MiB per task; whoever wants more says so.
_MAX_GROWN: Final = 1 << 26
_SIZE: Final = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)([kKmM]?)")


def parse_size(text: str) -> int:
    """Read a buffer's size in words: ``65536``, ``512K``, ``1M``; rounded up to whole pages.

    :raises WordError: when it is none.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise WordError(f"{text} is no size of a buffer", text, hint="in words of the kernel: 65536, 512K, 1M")
    words = int(match[1], 0) << {"": 0, "k": 10, "m": 20}[match[2].lower()]
    page = os.sysconf("SC_PAGESIZE") // 8
    return max(1, -(-words // page)) * page


def parse_remote(words: Sequence[str]) -> tuple[tuple[int, ...], int | None]:
    """Read the handles of ``--remote usb:1,common:auto``.

    :return: those of subsystems, and the common one: 0 for any free one, None without.
    :raises WordError: when one is none.
    """
    found: list[int] = []
    common: int | None = None
    for word in ",".join(words).split(",") if words else ():
        if word == "common:auto":
            value = 0
        else:
            try:
                value = handles.parse_handle(word)
            except ValueError:
                raise WordError(f"{word} is no remote handle", word, hint="usb:1, common:0x42, common:auto") from None
        if handles.decode_handle(value).subsystem != handles.COMMON:
            found.append(value)
        elif common is not None:
            raise WordError("a task has one common handle", word, hint="other handles are those of USB buses: usb:1")
        elif not value and word != "common:auto":
            raise WordError("common:0 is no handle", word, hint="common:auto finds a free one")
        else:
            common = value
    return tuple(found), common


def _make_request(context: Context, args: Namespace) -> Request:
    from kcovdbg.collect.running import Request

    if not args.command:
        raise WordError("collect what?", None, hint="collect -- COMMAND ARG…, for instance collect -- ls /")
    features = None
    plain = args.mode.removeprefix("KCOV_").removeprefix("TRACE_")
    if plain not in ("PC", "CMP"):
        target = context.session.optional_target
        if target is not None and is_this_machine(target):
            features = context.layout.generation.features
    found, common = parse_remote(args.remote or ())
    is_data = context.format is not Format.TEXT
    return Request(
        argv=tuple(args.command),
        mode=find_mode(args.mode, features),
        size=DEFAULT_SIZE if args.buffer_size is None else parse_size(args.buffer_size),
        syscalls=args.syscall,
        handles=found,
        common_handle=common,
        # What programs read must be the answer alone.
        stdout=2 if is_data else None,
    )


def _find_holder(context: Context, handle: int) -> str | None:
    """Say who holds a remote handle, where this kernel can be inspected."""
    target = context.session.optional_target
    if target is None or not is_this_machine(target):
        return None
    try:
        for entry in context.census.remote:
            if entry.handle == handle:
                if entry.pid is None:
                    return f"kcov {entry.kcov:#x} holds it"
                return f"task {entry.pid} ({entry.comm}) holds it, with kcov {entry.kcov:#x}"
    except KcovdbgError:
        return None
    return None


def _collect(context: Context, args: Namespace, request: Request, remarks: list[str]) -> Collected:
    """Run the command, again with larger buffers if that is wished."""
    from kcovdbg.collect.running import run_command
    from kcovdbg.commands.collecting import flush_streams

    while True:
        flush_streams()
        collected = run_command(request, lambda handle: _find_holder(context, handle))
        if not collected.is_full:
            return collected
        larger = request.size * _GROWTH
        if not args.grow:
            remarks.append(
                f"a buffer of {request.size} words was full: what came later is missing; "
                f"--buffer-size {larger} or --grow runs with more"
            )
            return collected
        if larger > _MAX_GROWN or collected.status >= 128:
            remarks.append(f"a buffer of {request.size} words was full, and isn't made larger")
            return collected
        remarks.append(f"a buffer of {request.size} words was full: the command was run again with {larger}")
        request = replace(request, size=larger)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    from kcovdbg.commands import collecting

    request = _make_request(context, args)
    if args.repeat is not None and args.repeat < 1:
        raise WordError("--repeat needs at least one run", str(args.repeat))
    if args.output is not None:
        check_destination(Path(args.output).expanduser())
    remarks: list[str] = []
    runs: list[Collected] = []
    for _ in range(args.repeat or 1):
        collected = _collect(context, args, replace(request, size=runs[-1].request.size) if runs else request, remarks)
        runs.append(collected)
        context.status = collected.status
        if collected.status > 128:
            # It was ended: by C-c most likely, which means the runs that were to follow as well.
            break
    for run in runs:
        remarks += [remark for remark in run.remarks if remark not in remarks]
    if collected.remote is not None and collected.common_handle:
        remarks.append(f"the common handle was {handles.decode_handle(collected.common_handle)}")
    parts = collecting.make_parts(collected, per_thread=args.per_thread)
    if not parts:
        raise CollectError("nothing was collected", hint="; ".join(remarks) or None)
    if args.keep is not None:
        context.session.kept[args.keep] = keep(parts[0].buffer, args.keep, " ".join(request.argv))
    if args.output is not None:
        yield _write(context, args, collected, parts, remarks)
        return
    if args.keep is not None and not args.syscall and args.repeat is None:
        yield Lines(((("", f"kept as {args.keep}: {parts[0].buffer.count} records"),),), remarks=remarks)
        return
    parts = [_as_seen(context, part, remarks) for part in parts]
    if args.repeat is not None:
        yield collecting.stability_table(context, runs, args, remarks)
    elif args.syscall:
        yield collecting.calls_table(context, collected, args, remarks)
    elif context.format is not Format.TEXT:
        yield collecting.records_table(context, parts, args, remarks)
    else:
        for part in parts:
            yield from show_buffer(context, part.buffer, args)
        yield Lines((), remarks=remarks)


def _as_seen(context: Context, part: Part, remarks: list[str]) -> Part:
    """Return a part with the addresses of the target's kernel, where that is the one that runs here."""
    target = context.session.optional_target
    if target is None:
        return part
    if not is_this_machine(target):
        told = f"names are those of {target.name}, which isn't the kernel that runs here"
        remarks.extend([told] if told not in remarks else [])
        return part
    return part._replace(buffer=replace(part.buffer, kaslr_offset=target.kaslr_offset))


_FILE_COLUMNS: Final = (
    Column("file", PATH),
    Column("tid", PID),
    Column("comm", COMM),
    Column("count", NUMBER, title="RECORDS"),
    Column("capacity", NUMBER),
    Column("full", BOOL),
)


def _write(context: Context, args: Namespace, collected: Collected, parts: Sequence[Part], remarks: Sequence[str]) -> Table:
    path = Path(args.output).expanduser()
    call = args.pc == "call" or (args.pc == "auto" and args.format == "syzkaller")
    length = CALL_LENGTHS.get(platform.machine(), 0) if call else 0
    if call and not length:
        raise CollectError(f"where the call before a PC begins isn't known for {platform.machine()}", hint="--pc raw")
    rows = []
    for part in parts:
        file = _name_part(path, part.label)
        if args.format == "kcov":
            header = make_header(
                part.buffer,
                argv=collected.request.argv,
                pid=part.pid,
                release=running_release(),
                build_id=running_build_id(),
                kaslr_offset=running_kaslr_offset(),
            )
            write_trace(file, part.buffer, header)
        else:
            write_text(file, part.buffer, call_length=length, is_syzkaller=args.format == "syzkaller")
        rows.append(
            {
                "file": str(file),
                "tid": part.buffer.pid,
                "comm": part.buffer.comm,
                "count": part.buffer.count,
                "capacity": part.buffer.capacity,
                "full": part.buffer.full,
            }
        )
    del context
    return Table(_FILE_COLUMNS, rows, remarks=remarks)


def _name_part(path: Path, label: str) -> Path:
    return path.with_name(f"{path.stem}.{label}{path.suffix}") if label else path


COLLECT = Command(
    name="collect",
    summary="run a command and show what of the kernel it executed",
    run=_run,
    description=(
        "Coverage begins with the command's first instruction after exec. Its threads and children are followed by ptrace, "
        "each with a KCOV instance of its own; the command is stopped only when it creates one, at signals and at exec. What "
        "can't be followed is said: 32-bit tasks, tasks that a seccomp filter keeps from the calls it takes, tasks created "
        "with CLONE_UNTRACED, and kernels before 5.6. Work that the kernel does in the background belongs to none of these "
        "tasks: --remote collects what runs under a handle.\n\n"
        "The exit status is the command's: 128 and the signal's number when one ended it; 125 when collecting failed, 126 when "
        "the command can't be run, 127 when there is none. C-c and SIGTERM end the command; what was collected until then is "
        "kept.\n\n"
        "-o FILE writes the buffer as the kernel laid it out, with FILE.json beside it, and shows nothing else. With --json "
        "and --csv the command's own output goes to standard error."
    ),
    arguments=(
        Argument(("--mode",), Value.MODE, f"what to collect: {', '.join(NAMES)}", metavar="MODE", default="PC"),
        Argument(
            ("--remote",),
            Value.TEXT,
            "background work as well: usb:BUS, common:INSTANCE, common:auto; several with commas",
            count=Count.ANY,
            metavar="HANDLE",
        ),
        Argument(("--per-thread",), Value.FLAG, "keep each task's records apart"),
        Argument(("--syscall",), Value.FLAG, "show each system call beside what it covers"),
        Argument(("--repeat",), Value.NUMBER, "run it N times: which points are stable, which flicker?", metavar="N"),
        Argument(
            ("--buffer-size",),
            Value.TEXT,
            f"of each task, in words: 65536, 512K, 1M; {DEFAULT_SIZE >> 10}K by default",
            metavar="WORDS",
        ),
        Argument(("--grow",), Value.FLAG, "when a buffer was full, run the command again with larger ones"),
        Argument(("-o", "--output"), Value.FILE, "write a trace file instead of showing records", metavar="FILE"),
        Argument(
            ("--format",),
            Value.CHOICE,
            "of the file: kcov, or text with one address per line",
            choices=("kcov", "kcovtrace", "syzkaller"),
            default="kcov",
        ),
        Argument(
            ("--pc",),
            Value.CHOICE,
            "in text: what the kernel recorded, or the call before it; auto is what the other tool does",
            choices=("auto", "raw", "call"),
            default="auto",
        ),
        Argument(("--keep",), Value.BUFFER_NAME, "keep it in memory under this name", metavar="@NAME"),
        *SHOWING,
        *FILTERS,
        Argument(("command",), Value.COMMAND, "what to run", count=Count.REST, metavar="COMMAND"),
    ),
    examples=(
        Example("collect -- ls /", "what does ls make the kernel do?"),
        Example("collect --syscall -- cat /etc/hostname", "which system call does what?"),
        Example("collect -o run.kcov --per-thread -- make", "a trace file for each process"),
        Example("collect --mode cmp -- ./parser input", "what are its inputs compared with?"),
        Example("collect --remote usb:1,common:auto -- ./plug", "what do kernel threads do for it?"),
        Example("collect -- sleep 60 &", "go on meanwhile: jobs tells which buffers it has"),
        Example("collect --repeat 10 -- ./test", "what can one rely on, what flickers?"),
    ),
    needs=frozenset({Need.NATIVE}),
    failed=125,
    start=start_collect,
)
