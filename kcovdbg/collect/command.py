# SPDX-License-Identifier: LGPL-2.1-or-later
"""``collect``: run a command on this machine, and show or write its coverage."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi.record import CALL_LENGTHS
from kcovdbg.buffers.buffer_listing import list_buffer
from kcovdbg.collect import collected_traces as traces
from kcovdbg.collect.background_jobs import start_collect
from kcovdbg.collect.requests import DEFAULT_SIZE, find_mode, mode_names, plain_mode_name
from kcovdbg.collect.trace_writer import (
    find_loaded_modules,
    make_header,
    text_bytes,
    trace_bytes,
    write_text_file,
    write_trace,
)
from kcovdbg.compiled_module import load_native
from kcovdbg.console.argument import Argument, Value
from kcovdbg.console.buffer_arguments import FILTERS, LISTING
from kcovdbg.console.column import BOOL, COMM, NUMBER, PATH, PID, Column, RowType
from kcovdbg.console.command import Command, Example, Topic
from kcovdbg.console.context import Context
from kcovdbg.console.output_files import STDOUT, binary_stdout, refuse_input
from kcovdbg.console.renderable import Lines, Renderable, Table
from kcovdbg.console.terminal import write_remarks
from kcovdbg.console.writer import Format
from kcovdbg.errors import CollectError, KcovdbgError, WordError
from kcovdbg.inputs.user_inputs import keep
from kcovdbg.model.kcov import name_kcov, name_task
from kcovdbg.model.state import Part
from kcovdbg.output_file import find_output
from kcovdbg.records.run_counts import RunCounts
from kcovdbg.target.local_kernel import (
    is_this_machine,
    running_build_id,
    running_kaslr_offset,
    running_release,
)

if TYPE_CHECKING:
    from kcovdbg.collect.collected_traces import CollectedPart
    from kcovdbg.collect.command_run import Collected, Request

_GROWTH: Final = 4
# 512 MiB per task.
_MAX_GROWN: Final = 1 << 26
# KCOV_INIT_TRACE refuses more than INT_MAX bytes.
_MAX_SIZE: Final = ((1 << 31) - 1) // 8
_AUTO: Final = "common:auto"
_SIZE: Final = re.compile(r"(0[xX][0-9a-fA-F]+|\d+)([kKmM]?)")


def parse_size(text: str) -> int:
    """Read a buffer's size in words: ``65536``, ``512K``, ``1M``; rounded up to whole pages.

    :raises WordError: when it is not a size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        hint = "words of the kernel: 65536, 512K, 1M"
        raise WordError(f"'{text}' is not a buffer size", text, hint=hint)
    words = int(match[1], 0) << {"": 0, "k": 10, "m": 20}[match[2].lower()]
    page = os.sysconf("SC_PAGESIZE") // 8
    largest = _MAX_SIZE // page * page
    if words > largest:
        raise WordError(f"'{text}' is too large, at most {largest} words are possible", text)
    return max(1, -(-words // page)) * page


def parse_remote(words: Sequence[str]) -> tuple[tuple[int, ...], int | None]:
    """Read the handles of ``--remote usb:1,common:auto``.

    :return: handles of subsystems, and the common handle: 0 for any free one, None without.
    :raises WordError: when one is not a handle.
    """
    found: list[int] = []
    common: int | None = None
    for word in itertools.chain.from_iterable(option.split(",") for option in words):
        try:
            value = _parse_remote_handle(word)
        except ValueError:
            hint = f"usb:1, common:0x42, {_AUTO}"
            raise WordError(f"'{word}' is not a remote handle", word, hint=hint) from None
        if handles.decode_handle(value).subsystem != handles.COMMON:
            found.append(value)
        elif common is not None:
            hint = "add handles of USB buses: usb:1"
            raise WordError("collect: more than one common handle given", word, hint=hint)
        elif not value and word != _AUTO:
            hint = f"{_AUTO} uses a free one"
            raise WordError("'common:0' is not a remote handle", word, hint=hint)
        else:
            common = value
    return tuple(found), common


def _parse_remote_handle(word: str) -> int:
    """Return a handle; 0 for any free common one.

    :raises ValueError: when it is not a handle.
    """
    if word == _AUTO:
        return 0
    return handles.parse_handle(word)


def _make_request(context: Context, args: Namespace) -> Request:
    from kcovdbg.collect.command_run import Request

    if not args.command:
        hint = "collect -- COMMAND ARG…, for instance collect -- ls /"
        raise WordError("collect: missing command", None, hint=hint)
    features = None
    if plain_mode_name(args.mode) not in ("PC", "CMP"):
        # A posted series may be needed.
        features = context.running_features
    size = DEFAULT_SIZE
    if args.buffer_size is not None:
        size = parse_size(args.buffer_size)
    found, common = parse_remote(args.remote or ())
    stdout = None
    if context.format is not Format.TEXT or args.output == STDOUT:
        # A program reads standard output: only the answer goes there.
        stdout = 2
    return Request(
        argv=tuple(args.command),
        mode=find_mode(args.mode, features),
        size=size,
        syscalls=args.syscall,
        handles=found,
        common_handle=common,
        stdout=stdout,
    )


def _find_holder(context: Context, handle: int) -> str | None:
    """Return who holds a remote handle; None if nobody does, or this kernel cannot be inspected."""
    target = context.kernel.memory.optional_target
    if target is None or not is_this_machine(target):
        return None
    with contextlib.suppress(KcovdbgError):
        for entry in context.state(Part.REMOTE).handles:
            if entry.handle == handle:
                kcov = "an unknown object"
                if entry.kcov is not None:
                    kcov = name_kcov(entry.kcov)
                if entry.pid is None:
                    return f"{kcov} holds it"
                return f"{name_task(entry)} holds it with {kcov}"
    return None


def _collect(context: Context, args: Namespace, request: Request) -> tuple[Collected, list[str]]:
    """Run the command; with ``--grow``, run it again with larger buffers until none is full.

    :return: the coverage, and remarks on full buffers.
    """
    from kcovdbg.collect.command_run import collect_command

    remarks: list[str] = []
    while True:
        # The command writes to the same streams.
        sys.stdout.flush()
        sys.stderr.flush()
        collected = collect_command(request, lambda handle: _find_holder(context, handle))
        if not collected.is_full:
            return collected, remarks
        larger = request.size * _GROWTH
        full = f"a buffer of {request.size} words was full"
        if not args.grow:
            return collected, [
                f"{full}: later records are missing; use --buffer-size {larger} or --grow"
            ]
        if larger > _MAX_GROWN or collected.status >= 128:
            return collected, [*remarks, f"{full}: later records are missing"]
        remarks.append(f"{full}: running the command again with {larger} words")
        request = replace(request, size=larger)


def _run(context: Context, args: Namespace) -> Iterator[Renderable]:
    # Nothing is collected without the compiled module: report that before the kernel is opened.
    load_native()
    request = _make_request(context, args)
    if args.repeat is not None and args.repeat < 1:
        raise WordError("collect: --repeat needs at least one run", str(args.repeat))
    if args.output is not None:
        _check_parts(context, args, request)
    remarks: list[str] = []
    runs = RunCounts()
    for _ in range(args.repeat or 1):
        collected, full = _collect(context, args, request)
        # Keep the size of a buffer that has grown for the following runs.
        request = replace(request, size=collected.request.size)
        context.status = collected.status
        remarks += [remark for remark in (*full, *collected.remarks) if remark not in remarks]
        if args.repeat is not None:
            runs.add(traces.count_run(collected))
        if collected.status > 128:
            # A signal ended the run, most likely C-c: it also ends the remaining runs.
            break
    if collected.remote is not None and collected.common_handle:
        remarks.append(f"common handle: {handles.decode_handle(collected.common_handle)}")
    parts = traces.make_parts(collected, per_thread=args.per_thread)
    if not parts:
        raise CollectError("nothing was collected", hint="; ".join(remarks) or None)
    if args.keep is not None:
        context.workspace.inputs.kept[args.keep] = keep(
            parts[0].buffer, args.keep, " ".join(request.argv)
        )
    if args.output is not None:
        yield _write(context, args, collected, parts, remarks)
        return
    if args.keep is not None and not args.syscall and args.repeat is None:
        yield Lines(
            ((("", f"kept as {args.keep}: {parts[0].buffer.count} records"),),), remarks=remarks
        )
        return
    target = context.kernel.memory.optional_target
    if target is not None and not is_this_machine(target):
        remarks.append(f"names are from {target.name}, which is not the kernel that runs here")
    elif target is not None:
        offset = target.kaslr_offset
        parts = [part._replace(buffer=replace(part.buffer, kaslr_offset=offset)) for part in parts]
    if args.repeat is not None:
        yield traces.stability_table(context, runs, args, remarks)
    elif args.syscall:
        yield traces.calls_table(context, collected, args, remarks)
    elif context.format is not Format.TEXT:
        yield traces.records_table(context, parts, args, remarks)
    else:
        for part in parts:
            yield from list_buffer(context, part.buffer, args)
        yield Lines((), remarks=remarks)


_SEVERAL: Final = "it holds several tasks' records"
_FILE_COLUMNS: Final = (
    Column("file", PATH, value=lambda row: row[0], meaning="path of the written file"),
    Column(
        "tid", PID, value=lambda row: row[1].pid, meaning="thread id of the task", null=_SEVERAL
    ),
    Column("comm", COMM, value=lambda row: row[1].comm, meaning="name of the task", null=_SEVERAL),
    Column(
        "count",
        NUMBER,
        value=lambda row: row[1].count,
        title="RECORDS",
        meaning="number of records",
        unit="records",
    ),
    Column("capacity", NUMBER, value=lambda row: row[1].capacity),
    Column("full", BOOL, value=lambda row: row[1].full),
)


def _check_parts(context: Context, args: Namespace, request: Request) -> None:
    """Check before the run that it gives one trace, if only one can be written."""
    context.writes_stdout(args.output)
    has_remote = request.handles or request.common_handle is not None
    _check_number(args, has_several=bool(args.per_thread or has_remote))


def _check_number(args: Namespace, *, has_several: bool) -> None:
    if has_several and (args.output == STDOUT or not find_output(args.output).is_replaceable):
        raise CollectError(
            f"cannot write several traces to '{args.output}'", hint="-o takes the name of a file"
        )


def _write(
    context: Context,
    args: Namespace,
    collected: Collected,
    parts: Sequence[CollectedPart],
    remarks: Sequence[str],
) -> Renderable:
    length = 0
    if args.pc == "call" or (args.pc == "auto" and args.format == "syzkaller"):
        length = _find_call_length()
    _check_number(args, has_several=len(parts) > 1)

    def text(part: CollectedPart) -> bytes:
        return text_bytes(part.buffer, call_length=length, is_syzkaller=args.format == "syzkaller")

    remarks = list(remarks)
    is_trace = args.format == "kcov"
    if args.output == STDOUT:
        if is_trace:
            remarks.append("no side file: standard output has none")
            data = trace_bytes(parts[0].buffer)
        else:
            data = text(parts[0])
        stream = binary_stdout(context.terminal.stdout)
        stream.write(data)
        stream.flush()
        write_remarks(context.terminal, remarks)
        return Lines(())
    rows = []
    modules = find_loaded_modules()
    for part in parts:
        file = _name_part(Path(args.output), part.label)
        check = partial(refuse_input, str(file), context.input_files)
        check()
        if not is_trace:
            write_text_file(file, text(part), check=check)
        else:
            header = make_header(
                part.buffer,
                argv=collected.request.argv,
                pid=part.pid,
                release=running_release(),
                build_id=running_build_id(),
                kaslr_offset=running_kaslr_offset(),
                modules=modules,
            )
            if not write_trace(file, part.buffer, header, check=check):
                remarks.append(f"no side file: {file} is not a regular file")
        rows.append((str(file), part.buffer))
    return Table(_FILE_COLUMNS, rows, remarks=remarks)


def _find_call_length() -> int:
    machine = platform.machine()
    if machine not in CALL_LENGTHS:
        raise CollectError(
            f"the length of a call instruction on {machine} is unknown", hint="use --pc raw"
        )
    return CALL_LENGTHS[machine]


def _name_part(path: Path, label: str) -> Path:
    """Return the path of a part's file.

    :param label: the part's label; empty if there is only one part.
    """
    if not label:
        return path
    return path.with_name(f"{path.stem}.{label}{path.suffix}")


COMMAND: Final = Command(
    name="collect",
    summary="run a command and show the kernel code that it executed",
    topic=Topic.COLLECTION,
    run=_run,
    row_types=(
        *traces.COLLECT_ROWS,
        RowType(_FILE_COLUMNS, when="with `-o FILE`"),
    ),
    description=(
        "Coverage begins with the command's first instruction after exec. ptrace follows its "
        "threads and children, each with its own KCOV object; the command stops only when it "
        "creates one, at signals and at exec. Notes list tasks that cannot be followed: 32-bit "
        "tasks, tasks whose seccomp filter forbids the needed system calls, tasks created with "
        "CLONE_UNTRACED, and all tasks on kernels before 5.6. --remote also collects background "
        "work of the kernel that runs under a handle. A task that uses KCOV itself gets EBUSY "
        "from KCOV_ENABLE, and before 7.2 from KCOV_REMOTE_ENABLE; a note names it (without "
        "CONFIG_FANOTIFY or CAP_SYS_ADMIN only if it has KCOV's file open or mapped when it "
        "exits).\n\n"
        "The exit status is the command's: 128 plus the number of the signal that ended it; 125 "
        "if collecting failed, 126 if the command cannot be run, 127 if it was not found. C-c and "
        "SIGTERM end the command; records until then are kept.\n\n"
        "-o FILE writes the buffer as the kernel laid it out, with FILE.json beside it, and shows "
        "no records. With --json, --csv and -o - the command's own output goes to standard error."
    ),
    arguments=(
        Argument(
            "--mode MODE", Value.MODE, f"what to record: {', '.join(mode_names())}", default="PC"
        ),
        Argument(
            "--remote HANDLE…",
            Value.TEXT,
            "also collect background work: usb:BUS, common:INSTANCE, common:auto; separated by "
            "commas",
        ),
        Argument("--per-thread", Value.FLAG, "keep the records of tasks apart"),
        Argument("--syscall", Value.FLAG, "show what each system call covers"),
        Argument(
            "--repeat N",
            Value.NUMBER,
            "run it N times and separate stable points from flickering ones",
        ),
        Argument(
            "--buffer-size WORDS",
            Value.TEXT,
            f"buffer size of each task in words: 65536, 512K, 1M; default {DEFAULT_SIZE >> 10}K",
        ),
        Argument("--grow", Value.FLAG, "run the command again with larger buffers if one was full"),
        Argument(
            "-o, --output FILE",
            Value.FILE,
            "write a trace file instead of showing records; - for standard output",
            is_output=True,
        ),
        Argument(
            "--format",
            Value.CHOICE,
            "format of the file: kcov, or text with one address per line",
            choices=("kcov", "kcovtrace", "syzkaller"),
            default="kcov",
        ),
        Argument(
            "--pc",
            Value.CHOICE,
            "PCs in a text file: raw (as recorded) or call (the call before); auto is as the "
            "format's own tool writes them",
            choices=("auto", "raw", "call"),
            default="auto",
        ),
        Argument("--keep @NAME", Value.BUFFER_NAME, "keep the trace in memory under this name"),
        *LISTING,
        *FILTERS,
        Argument("command COMMAND…", Value.COMMAND, "the command to run", takes_rest=True),
    ),
    examples=(
        Example("collect -- ls /", "which kernel code does ls execute?"),
        Example("collect --syscall -- cat /etc/hostname", "what does each system call cover?"),
        Example("collect -o run.kcov --per-thread -- make", "a trace file for each process"),
        Example(
            "collect --mode cmp -- ./parser input", "what does the kernel compare its input with?"
        ),
        Example(
            "collect --remote usb:1,common:auto -- ./plug", "what do kernel threads execute for it?"
        ),
        Example("collect -- sleep 60 &", "collect in the background; jobs lists its buffers"),
        Example("collect --repeat 10 -- ./test", "which points are stable, and which flicker?"),
    ),
    needs=frozenset(),
    failed=125,
    start=start_collect,
    acts=True,
)
