# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect the coverage of a command with all its threads and children, each with a KCOV object of
its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import random
import signal
import struct
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from kcovdbg.abi import handle as handles
from kcovdbg.collect.requests import (
    DEFAULT_SIZE,
    CollectMode,
    Step,
    device_path,
    explain_errno,
    explain_not_followed,
    find_mode,
    find_refusal,
    find_remote_mode,
    kernel_word_size,
    make_native_mode,
)
from kcovdbg.compiled_module import load_native
from kcovdbg.model.buffer import Buffer

# Milliseconds that background work may take after the command has exited, as in syzkaller.
_SETTLE_MS: Final = 500
# Seconds that the command has to exit after a signal.
_PATIENCE: Final = 3.0
# Words of the area for one remote section.
_REMOTE_SIZE: Final = 1 << 16


class TaskKind(Enum):
    """Kind of a task of the command (``enum kcovdbg_kind``)."""

    COMMAND = 0
    PROCESS = 1
    THREAD = 2


@dataclass(frozen=True, slots=True)
class Request:
    """A command to run, and how to collect its coverage."""

    argv: tuple[str, ...]
    mode: CollectMode = field(default_factory=lambda: find_mode("pc"))
    size: int = DEFAULT_SIZE
    """Size of each task's buffer in words of the kernel."""
    syscalls: bool = False
    """Whether to stop at system calls, so that coverage is known per call."""
    handles: tuple[int, ...] = ()
    """Remote handles of subsystems to collect."""
    common_handle: int | None = None
    """Common handle that the command's tasks carry; 0 for any free one."""
    stdout: int | None = None
    """Descriptor for the command's standard output; None for our own."""
    path: str | None = None
    """Path of the device's file; None for the file of the mode's device."""
    device: Any = None
    """``struct kcovdbg_device *`` that tests use instead of the kernel."""

    @property
    def device_path(self) -> str:
        """Path of the device's file."""
        return self.path or device_path(self.mode)

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
    """The task that created it; 0 for the command itself."""
    kind: TaskKind
    comm: str
    status: int
    """Wait status, as from wait()."""
    stops: int
    """Number of ptrace stops; each leaves records of the kernel's ptrace code."""
    buffer: Buffer
    edges: Buffer | None = None
    problem: str | None = None
    """Why its coverage was not collected."""
    uses_kcov: bool = False
    """Whether the task itself opened the device, or had it open or mapped when it exited."""


@dataclass(frozen=True, slots=True)
class TracedSyscall:
    """One system call of a task."""

    tid: int
    number: int
    is_compat: bool
    """Whether the number belongs to the architecture's 32-bit table."""
    arguments: tuple[int, ...]
    text_argument: int | None
    """Index of the argument that points to text; None if there is none."""
    text: str | None
    """The text that the argument points to."""
    result: int | None
    """The returned value; None if the call did not return."""
    task: int
    """Index of the task in :attr:`Collected.tasks`."""
    first: int
    """Index of its first record in the task's buffer."""
    end: int
    """Index of the record after its last one."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Coverage of one run of a command."""

    request: Request
    status: int
    """Exit status of the command, as in a shell: 128 + signal."""
    seconds: float
    """Time from before the command's start to the exit of its last task."""
    tasks: tuple[TaskTrace, ...]
    calls: tuple[TracedSyscall, ...] = ()
    remote: Buffer | None = None
    common_handle: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def buffers(self) -> list[Buffer]:
        """All collected buffers, remote coverage last."""
        found = [task.buffer for task in self.tasks if task.problem is None]
        if self.remote is not None:
            found.append(self.remote)
        return found

    @property
    def is_full(self) -> bool:
        """Whether any buffer was full."""
        return any(buffer.full for buffer in self.buffers)


def collect_command(
    request: Request, find_holder: Callable[[int], str | None] | None = None
) -> Collected:
    """Run a command to its end and collect the coverage of all its threads and children.

    In the main thread, C-c and SIGTERM are passed on to the command, and the coverage up to its end
    is returned.

    :param find_holder: returns who holds a remote handle, for messages.
    :raises CapabilityError: without the compiled collector.
    :raises CollectError: when the command cannot be run, or its coverage cannot be collected.
    """
    if request.common_handle == 0:
        # Nobody else has the same of four billion. It need not be hard to guess.
        handle = random.randrange(1, handles.INSTANCE_MASK)  # noqa: S311
        request = replace(request, common_handle=handle)
    return _Run(request, find_holder).run()


class _Run:
    """One run of a command. Keeps alive the memory that the C code points to."""

    def __init__(self, request: Request, find_holder: Callable[[int], str | None] | None) -> None:
        self.request = request
        self.ffi, self.lib = load_native()
        self.find_holder = find_holder
        self.device = request.device or self.ffi.NULL
        self.keep: list[Any] = []
        self.command = self._make_command()
        self.native = self.ffi.gc(self.lib.kcovdbg_run_new(self.command), self.lib.kcovdbg_run_free)
        if self.native == self.ffi.NULL:
            raise MemoryError
        self.error = 0
        self.seconds = 0.0
        self.openers: frozenset[int] = frozenset()

    def _strings(self, words: Sequence[str]) -> Any:
        strings = [self.ffi.new("char[]", os.fsencode(word)) for word in words]
        array = self.ffi.new("char *[]", [*strings, self.ffi.NULL])
        self.keep += [strings, array]
        return array

    def _make_command(self) -> Any:
        request, ffi = self.request, self.ffi
        command = ffi.new("struct kcovdbg_command *")
        path = ffi.new("char[]", os.fsencode(request.device_path))
        listed = ffi.new("uint64_t[]", list(request.handles) or [0])
        self.keep += [path, listed]
        command.path = path
        command.device = self.device
        command.argv = self._strings(request.argv)
        command.envp = self._strings([f"{key}={value}" for key, value in os.environ.items()])
        mode = request.mode
        command.mode = make_native_mode(mode, request.size)[0]
        command.size = request.size
        command.word_size = kernel_word_size()
        command.syscalls = request.syscalls
        command.stdout_fd = -1 if request.stdout is None else request.stdout
        if request.has_remote:
            command.remote_mode = find_remote_mode(mode).request.argument
            command.remote_area_size = min(_REMOTE_SIZE, request.size)
            command.handle_count = len(request.handles)
            command.handles = listed
            command.common_handle = request.common_handle or 0
            command.settle_ms = _SETTLE_MS
        return command

    def run(self) -> Collected:
        started = time.monotonic()
        self.lib.kcovdbg_make_room()
        with _watch_opens(self.request.device_path) as opens, _signals_held() as (mask, wanted):
            self.command.signal_mask = sum(1 << number - 1 for number in mask)
            waiter = threading.get_ident() if wanted else None

            def work() -> None:
                self.error = self.lib.kcovdbg_run_follow(self.native)
                self.seconds = time.monotonic() - started
                if waiter is not None:
                    signal.pthread_kill(waiter, _WAKE)

            # A thread of its own has no other children to wait for, and does not block C-c while it
            # waits.
            worker = threading.Thread(target=work, name="kcovdbg-follow", daemon=True)
            worker.start()
            if wanted:
                self._wait(worker, wanted)
            worker.join()
            self.openers = frozenset(_read_openers(opens))
        return self._gather()

    def _wait(self, worker: threading.Thread, wanted: frozenset[int]) -> None:
        """Wait for the command's end, and pass signals on to it. Kill it after a second signal, or
        if it does not end in time.
        """
        deadline: float | None = None
        count = 0
        while worker.is_alive():
            got = signal.sigtimedwait(wanted, 0.5)
            if got is None or got.si_signo == _WAKE:
                if deadline is not None and time.monotonic() > deadline:
                    self.lib.kcovdbg_run_signal(self.native, signal.SIGKILL)
                continue
            count += 1
            is_from_terminal = got.si_signo == signal.SIGINT and got.si_code > 0
            if count > 1:
                self.lib.kcovdbg_run_signal(self.native, signal.SIGKILL)
            elif not is_from_terminal:
                self.lib.kcovdbg_run_signal(self.native, got.si_signo)
                deadline = time.monotonic() + _PATIENCE
            # Otherwise the terminal has sent C-c to the command as well, which may handle it.

    def _gather(self) -> Collected:
        request, lib = self.request, self.lib
        if self.error:
            step = lib.kcovdbg_run_step(self.native)
            requested = list(request.handles)
            if request.common_handle:
                requested.append(request.common_handle)
            refusal = None
            if step == Step.ENABLE and -self.error == errno.EINVAL:
                refusal = find_refusal(
                    request.device_path, self.command.mode, request.size, self.device
                )
            raise explain_errno(
                step,
                -self.error,
                path=request.device_path,
                size=request.size,
                handles=requested,
                find_holder=self.find_holder,
                command=request.argv[0],
                refusal=refusal,
                mode=request.mode,
            )
        tasks = tuple(
            self._task(lib.kcovdbg_run_task(self.native, index))
            for index in range(lib.kcovdbg_run_task_count(self.native))
        )
        calls = tuple(
            self._call(lib.kcovdbg_run_call(self.native, index), tasks)
            for index in range(lib.kcovdbg_run_call_count(self.native))
        )
        remote = None
        if request.has_remote:
            data = self._copy(lib.kcovdbg_run_remote(self.native))
            remote = find_remote_mode(request.mode).decode("remote", data, request.size)
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

    def _copy(self, copy: Any) -> bytes:
        return bytes(self.ffi.buffer(copy.data, copy.length)) if copy.length else b""

    def _text(self, raw: Any) -> str:
        text: bytes = self.ffi.string(raw)
        return text.decode("utf-8", "backslashreplace")

    def _task(self, raw: Any) -> TaskTrace:
        mode, size, second = self.request.mode, self.request.size, self.request.mode.second
        comm = self._text(raw.comm)
        tid = int(raw.tid)
        records = size - mode.prefix_words(size)
        edges = None
        if second is not None:
            edges = second.decode(f"{tid} edges", self._copy(raw.edges), size, tid, comm)
        return TaskTrace(
            tid=tid,
            pid=int(raw.tgid),
            parent=int(raw.parent),
            kind=TaskKind(raw.kind),
            comm=comm,
            status=int(raw.status),
            stops=int(raw.stops),
            buffer=mode.decode(str(tid), self._copy(raw.trace), records, tid, comm),
            edges=edges,
            problem=explain_not_followed(raw.step, raw.error) if raw.error else None,
            uses_kcov=bool(raw.uses_kcov) or tid in self.openers,
        )

    def _call(self, raw: Any, tasks: Sequence[TaskTrace]) -> TracedSyscall:
        task = tasks[raw.task]
        text_argument, text = None, None
        if raw.text_argument:
            text_argument, text = raw.text_argument - 1, self._text(raw.text)
        return TracedSyscall(
            tid=task.tid,
            number=int(raw.number),
            is_compat=bool(raw.compat),
            arguments=tuple(raw.arguments),
            text_argument=text_argument,
            text=text,
            result=int(raw.result) if raw.returned else None,
            task=int(raw.task),
            first=_record_index(task.buffer, int(raw.first)),
            end=_record_index(task.buffer, int(raw.end)),
        )


def _record_index(buffer: Buffer, count_word: int) -> int:
    """Return the index of the record that was next when the count word had a value: it counts
    records, or words if records differ in length.
    """
    starts = buffer.encoding.starts
    if starts is None:
        return min(count_word, buffer.count)
    return bisect_left(starts, count_word)


def _remarks(tasks: Sequence[TaskTrace], request: Request) -> Iterator[str]:
    for task in tasks:
        name = f"{task.kind.name.lower()} {task.tid} ({task.comm})"
        if task.problem is not None:
            yield f"{name}: not collected: {task.problem}"
        if task.uses_kcov:
            yield (
                f"{name} uses {request.device_path} itself: as collect has enabled KCOV for it, "
                "KCOV_ENABLE fails with EBUSY, and before 7.2 KCOV_REMOTE_ENABLE as well; run it "
                "without collect for its own coverage"
            )
    if request.mode.request.remark is not None:
        yield request.mode.request.remark
    stops = sum(task.stops for task in tasks)
    if stops == 1:
        yield "the first records are of the ptrace stop at exec"
    elif stops:
        where = "new tasks, signals and exec"
        if request.syscalls:
            where = "system calls, new tasks and signals"
        yield (
            f"ptrace stopped the command {stops} times (at {where}); each stop adds records of the "
            f"kernel's ptrace code"
        )


def _exit_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return 128 - code
    return code


# linux/fanotify.h and linux/fcntl.h
_FAN_OPEN: Final = 0x20
_FAN_MARK_ADD: Final = 1
_FAN_CLOEXEC: Final = 1
_FAN_NONBLOCK: Final = 2
_FAN_REPORT_TID: Final = 0x100
_AT_FDCWD: Final = -100
# struct fanotify_event_metadata
_FAN_EVENT: Final = struct.Struct("=IBBHQii")


@contextlib.contextmanager
def _watch_opens(path: str) -> Iterator[io.FileIO | None]:
    """Have fanotify(7) note the tasks that open a file; yield the file with the events.

    Yield None without CAP_SYS_ADMIN or CONFIG_FANOTIFY, and on kernels before 4.20.
    """
    libc = ctypes.CDLL(None)
    descriptor = libc.fanotify_init(_FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_TID, os.O_CLOEXEC)
    if descriptor < 0:
        yield None
        return
    with io.FileIO(descriptor) as events:
        marked = libc.fanotify_mark(
            descriptor, _FAN_MARK_ADD, ctypes.c_uint64(_FAN_OPEN), _AT_FDCWD, os.fsencode(path)
        )
        yield events if marked == 0 else None


def _read_openers(events: io.FileIO | None) -> Iterator[int]:
    """Yield the thread ids of tasks that opened the file, in this process's namespace."""
    with contextlib.suppress(OSError):
        # A read has 170 events at most. Each has an open descriptor.
        while events is not None and (data := events.read(4096)):
            for *_, descriptor, tid in _FAN_EVENT.iter_unpack(data):
                if descriptor >= 0:
                    os.close(descriptor)
                yield tid


_WAKE: Final = signal.SIGRTMIN + 3
_ENDING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


@contextlib.contextmanager
def _signals_held() -> Iterator[tuple[set[int], frozenset[int]]]:
    """Block the signals that end a program, so that sigtimedwait() can return them. Outside of the
    main thread, change nothing.

    :return: the signals that were blocked before, and the signals to wait for.
    """
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}
    if threading.current_thread() is not threading.main_thread():
        yield mask, frozenset()
        return
    # Ignored signals stay ignored, for instance under nohup.
    wanted = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted | {_WAKE})
    try:
        yield mask, frozenset({*map(int, wanted), _WAKE})
    finally:
        # A signal that arrived after the command's exit must not end this process: its coverage
        # would be lost.
        while signal.sigtimedwait({*wanted, _WAKE}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
