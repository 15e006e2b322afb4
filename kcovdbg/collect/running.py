# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a command with coverage of all its threads and children, each with a KCOV instance of its own."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kcovdbg.abi import handle as handles
from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.collect.diagnosing import Cause, find_cause
from kcovdbg.collect.explaining import Step, explain, explain_not_followed
from kcovdbg.collect.mode import CollectMode, find_mode
from kcovdbg.collect.native import DEFAULT_SIZE, DEVICE, kernel_word_size, load_native
from kcovdbg.collect.trace import find_edges, make_buffer
from kcovdbg.errors import CollectError
from kcovdbg.model.buffer import Buffer

# What a task's background work may take after the command's end; syzkaller waits as long.
_SETTLE_MS: Final = 500
# After it was told to end, in seconds.
_PATIENCE: Final = 3.0
_TRIES: Final = 16
_REMOTE_SIZE: Final = 1 << 16


class Kind(Enum):
    """What a task of the command is: ``enum kcovdbg_kind``."""

    COMMAND = 0
    PROCESS = 1
    THREAD = 2


@dataclass(frozen=True, slots=True)
class Request:
    """What to run, and how to collect."""

    argv: tuple[str, ...]
    mode: CollectMode = field(default_factory=lambda: find_mode("pc"))
    size: int = DEFAULT_SIZE
    """Of each task's buffer, in words of the kernel."""
    syscalls: bool = False
    """Stop at system calls to tell what each one covers."""
    handles: tuple[int, ...] = ()
    """Remote handles of subsystems."""
    common_handle: int | None = None
    """A common handle that the command's tasks carry; 0: any free one."""
    remote_size: int = _REMOTE_SIZE
    """Words of the area of one remote section."""
    stdout: int | None = None
    """Descriptor that is the command's standard output; None: ours."""
    path: str = DEVICE
    device: Any = None
    """``struct kcovdbg_device *`` instead of the kernel, for tests."""
    enable_request: int | None = None
    """Instead of the mode's, for tests."""

    @property
    def has_remote(self) -> bool:
        """Whether background work is collected."""
        return bool(self.handles) or self.common_handle is not None


@dataclass(frozen=True, slots=True)
class TaskTrace:
    """One task of the command."""

    tid: int
    pid: int
    parent: int
    """The task that created it; 0 of the command itself."""
    kind: Kind
    comm: str
    status: int
    """As wait() says it."""
    stops: int
    """How often ptrace stopped it; each stop leaves records of the kernel's ptrace code."""
    buffer: Buffer
    edges: Buffer | None = None
    problem: str | None = None
    """Why it wasn't collected."""


@dataclass(frozen=True, slots=True)
class Call:
    """One system call."""

    tid: int
    number: int
    is_compat: bool
    """The number is of the architecture's 32-bit table."""
    arguments: tuple[int, ...]
    text_argument: int | None
    """Index of the argument that points to text."""
    text: bytes
    result: int | None
    """None: it didn't return."""
    task: int
    """Index of the task."""
    first: int
    """Index of its first record among the task's."""
    end: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What one run of a command gave."""

    request: Request
    status: int
    """The command's, as a shell has it: 128 + signal."""
    seconds: float
    """From before the command's start to when its last task had ended."""
    tasks: tuple[TaskTrace, ...]
    calls: tuple[Call, ...] = ()
    remote: Buffer | None = None
    common_handle: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def buffers(self) -> list[Buffer]:
        """All that was collected, remote coverage last."""
        found = [task.buffer for task in self.tasks if task.problem is None]
        return found if self.remote is None else [*found, self.remote]

    @property
    def is_full(self) -> bool:
        """Whether any buffer was full."""
        return any(buffer.full for buffer in self.buffers)


def run_command(request: Request, find_holder: Callable[[int], str | None] | None = None) -> Collected:
    """Run a command to its end and collect what it and its threads and children cover.

    It is to be called by the main thread where signals are to end the command; C-c and SIGTERM do then, and what was collected
    until then is returned.

    :param find_holder: says who holds a remote handle.
    :raises CapabilityError: without the compiled collector.
    :raises CollectError: when it can't be run or collected.
    """
    if request.common_handle != 0:
        return _Run(request, find_holder).run()
    # Any free one: two tries would do, if nobody else did the same.
    for _ in range(_TRIES):
        handle = random.randrange(1, handles.INSTANCE_MASK)  # noqa: S311 - it needn't be hard to guess
        try:
            return _Run(replace(request, common_handle=handle), None).run()
        except _TakenError:
            continue
    raise CollectError("no free common handle was found", hint="name one: --remote common:0x42")


class _TakenError(CollectError):
    pass


class _Run:
    """One run: keeps what the C side points to."""

    def __init__(self, request: Request, find_holder: Callable[[int], str | None] | None) -> None:
        self.request = request
        self.ffi, self.lib = load_native()
        self.find_holder = find_holder
        self.word_size = kernel_word_size()
        self.keep: list[Any] = []
        self.command = self._make_command()
        self.native = self.ffi.gc(self.lib.kcovdbg_run_new(self.command), self.lib.kcovdbg_run_free)
        if self.native == self.ffi.NULL:
            raise MemoryError
        self.error = 0
        self.seconds = 0.0

    def _strings(self, words: Sequence[str]) -> Any:
        strings = [self.ffi.new("char[]", os.fsencode(word)) for word in words]
        array = self.ffi.new("char *[]", [*strings, self.ffi.NULL])
        self.keep += [strings, array]
        return array

    def _make_command(self) -> Any:
        request, ffi = self.request, self.ffi
        command = ffi.new("struct kcovdbg_command *")
        path = ffi.new("char[]", os.fsencode(request.path))
        listed = ffi.new("uint64_t[]", list(request.handles) or [0])
        self.keep += [path, listed]
        command.path = path
        command.device = ffi.NULL if request.device is None else request.device
        command.argv = self._strings(request.argv)
        command.envp = self._strings([f"{key}={value}" for key, value in os.environ.items()])
        mode = request.mode
        bitmap = mode.bitmap_words(request.size)
        command.mode.request = self.lib.kcovdbg_request(mode.request.encode(), self.word_size)
        if request.enable_request is not None:
            command.mode.request = request.enable_request
        command.mode.argument = bitmap or mode.argument
        command.mode.count_at = bitmap
        command.mode.record_words = record.make_encoding(mode.format, self.word_size).record_words
        command.mode.second = mode.second
        command.size = request.size
        command.word_size = self.word_size
        command.syscalls = request.syscalls
        command.stdout_fd = -1 if request.stdout is None else request.stdout
        if request.has_remote:
            # Remote sections know no mode but these two.
            command.remote_mode = 1 if mode.name == "TRACE_CMP" else 0
            command.remote_area_size = min(request.remote_size, request.size)
            command.handle_count = len(request.handles)
            command.handles = listed
            command.common_handle = request.common_handle or 0
            command.settle_ms = _SETTLE_MS
        return command

    def run(self) -> Collected:
        started = time.monotonic()
        self.lib.kcovdbg_make_room()
        with _signals_held() as (mask, wanted):
            self.command.signal_mask = sum(1 << number - 1 for number in mask)
            waiter = threading.get_ident() if wanted else None

            def work() -> None:
                self.error = self.lib.kcovdbg_run_follow(self.native)
                self.seconds = time.monotonic() - started
                if waiter is not None:
                    signal.pthread_kill(waiter, _WAKE)

            # A thread of its own: the tracer may have no other children, and nothing that it waits for keeps C-c waiting.
            worker = threading.Thread(target=work, name="kcovdbg-follow", daemon=True)
            worker.start()
            if wanted:
                self._wait(worker, wanted)
            worker.join()
        return self._gather()

    def _wait(self, worker: threading.Thread, wanted: frozenset[int]) -> None:
        """Wait for the command's end, and hand on what tells us to end."""
        deadline: float | None = None
        presses = 0
        while worker.is_alive():
            got = signal.sigtimedwait(wanted, 0.5)
            if got is not None and got.si_signo != _WAKE:
                from_terminal = got.si_signo == signal.SIGINT and got.si_code > 0
                presses += 1
                if from_terminal and presses == 1:
                    # The terminal has sent it to the command as well, which may go on after it as it likes.
                    continue
                if presses > 1:
                    self.lib.kcovdbg_run_signal(self.native, signal.SIGKILL)
                    continue
                self.lib.kcovdbg_run_signal(self.native, got.si_signo)
                deadline = time.monotonic() + _PATIENCE
            if deadline is not None and time.monotonic() > deadline:
                self.lib.kcovdbg_run_signal(self.native, signal.SIGKILL)

    def _gather(self) -> Collected:
        request, lib = self.request, self.lib
        if self.error:
            step = lib.kcovdbg_run_step(self.native)
            asked = [*request.handles, *([request.common_handle] if request.common_handle else [])]
            error = explain(
                step,
                -self.error,
                path=request.path,
                size=request.size,
                handles=asked,
                find_holder=self.find_holder,
                command=request.argv[0],
                cause=self._find_cause() if step == Step.ENABLE and -self.error == errno.EINVAL else None,
                mode=request.mode.name,
            )
            if step == Step.REMOTE_ENABLE and -self.error == errno.EEXIST and not request.handles and self.find_holder is None:
                raise _TakenError(str(error), hint=error.hint)
            raise error
        tasks = tuple(self._task(lib.kcovdbg_run_task(self.native, i)) for i in range(lib.kcovdbg_run_task_count(self.native)))
        calls = tuple(
            self._call(lib.kcovdbg_run_call(self.native, index), tasks)
            for index in range(lib.kcovdbg_run_call_count(self.native))
        )
        remote = None
        if request.has_remote:
            name = "TRACE_CMP" if request.mode.name == "TRACE_CMP" else "TRACE_PC"
            remote = make_buffer(
                "remote",
                self._bytes(lib.kcovdbg_run_remote(self.native)),
                find_mode(name),
                request.size,
                word_size=self.word_size,
            )
        return Collected(
            request=request,
            status=_exit_status(tasks[0].status),
            seconds=self.seconds,
            tasks=tasks,
            calls=calls,
            remote=remote,
            common_handle=request.common_handle,
            remarks=tuple(_remarks(tasks, request)),
        )

    def _find_cause(self) -> Cause:
        mode = self.command.mode
        return find_cause(
            self.request.path,
            request=mode.request,
            argument=mode.argument,
            size=self.request.size,
            word_size=self.word_size,
            is_unique=bool(mode.count_at),
            device=self.request.device,
        )

    def _bytes(self, copy: Any) -> bytes:
        return bytes(self.ffi.buffer(copy.data, copy.length)) if copy.length else b""

    def _task(self, told: Any) -> TaskTrace:
        request = self.request
        comm = self.ffi.string(told.comm).decode("utf-8", "backslashreplace")
        tid = int(told.tid)

        def buffer(name: str, copy: Any, mode: CollectMode, size: int) -> Buffer:
            return make_buffer(name, self._bytes(copy), mode, size, word_size=self.word_size, pid=tid, comm=comm)

        return TaskTrace(
            tid=tid,
            pid=int(told.tgid),
            parent=int(told.parent),
            kind=Kind(told.kind),
            comm=comm,
            status=int(told.status),
            stops=int(told.stops),
            buffer=buffer(str(tid), told.trace, request.mode, request.size - request.mode.bitmap_words(request.size)),
            edges=buffer(f"{tid} edges", told.edges, find_edges(), request.size) if request.mode.second else None,
            problem=explain_not_followed(told.step, told.error) if told.error else None,
        )

    def _call(self, told: Any, tasks: Sequence[TaskTrace]) -> Call:
        task = tasks[told.task]
        limit = task.buffer.count
        return Call(
            tid=task.tid,
            number=int(told.number),
            is_compat=bool(told.compat),
            arguments=tuple(told.arguments),
            text_argument=told.text_argument - 1 if told.text_argument else None,
            text=self.ffi.string(told.text),
            result=int(told.result) if told.returned else None,
            task=int(told.task),
            first=min(int(told.first), limit),
            end=min(int(told.end), limit),
        )


def _remarks(tasks: Sequence[TaskTrace], request: Request) -> Iterator[str]:
    for task in tasks:
        if task.problem is not None:
            yield f"{task.kind.name.lower()} {task.tid} ({task.comm}) isn't in it: {task.problem}"
    if request.mode.feature is Feature.UNIQUE_MAPS:
        # kcov-abi.md 5: a map isn't emptied, whatever is done to the count.
        yield "what exec covered before the command's first instruction isn't recorded again: the kernel keeps what it has seen"
    stops = sum(task.stops for task in tasks)
    if stops == 1:
        yield "the first records are the end of the stop at exec, by which ptrace follows the command"
    elif stops:
        what = "at each system call, new task and signal" if request.syscalls else "at new tasks, signals and exec"
        yield f"following adds coverage: ptrace stopped the command {stops} times, {what}; each leaves records of ptrace's own"


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


_WAKE: Final = signal.SIGRTMIN + 3
_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


@contextlib.contextmanager
def _signals_held() -> Iterator[tuple[set[int], frozenset[int]]]:
    """Hold back the signals that end a program, to be asked for one by one; outside the main thread leave them as they are.

    :return: what was blocked before, and what to ask for.
    """
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}
    if threading.current_thread() is not threading.main_thread():
        yield mask, frozenset()
        return
    # What is ignored, under nohup for instance, stays so.
    wanted = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted | {_WAKE})
    try:
        yield mask, frozenset({*map(int, wanted), _WAKE})
    finally:
        # One that came too late for the command must not end us now; what was collected is kept.
        while signal.sigtimedwait({*wanted, _WAKE}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
