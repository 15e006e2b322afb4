# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collects coverage around a block of Python, in the thread that runs it."""

from __future__ import annotations

import errno
import os
import sys
import threading
from array import array
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kcovdbg.abi import record
from kcovdbg.abi.era import Feature
from kcovdbg.collect.diagnosing import find_cause
from kcovdbg.collect.explaining import Step, explain
from kcovdbg.collect.mode import CollectMode, find_mode
from kcovdbg.collect.native import DEFAULT_SIZE, DEVICE, kernel_word_size, load_native
from kcovdbg.errors import CollectError
from kcovdbg.model.buffer import Buffer
from kcovdbg.walk.buffers import full_remark

if TYPE_CHECKING:
    from typing_extensions import Self


def make_buffer(
    name: str,
    data: bytes | memoryview,
    mode: CollectMode,
    size: int,
    *,
    word_size: int,
    pid: int | None = None,
    comm: str | None = None,
    kaslr_offset: int = 0,
) -> Buffer:
    """Make a buffer of what was copied out of one, from its count word on.

    :param size: of the whole in words of the kernel, without a bitmap before the count.
    """
    encoding = record.make_encoding(mode.format, word_size)
    stored = record.decode_word(bytes(data[: encoding.word_size]), encoding) if data else 0
    capacity = record.find_capacity(mode.format, size, word_size)
    used = min(stored, capacity)
    start = encoding.records_offset
    words = record.decode_words(data[start : start + used * encoding.record_size], encoding)
    remarks: list[str] = []
    if stored > capacity:
        remarks.append(f"the count is {stored:#x}, {capacity} records fit: user space wrote it; it is cut to what fits")
    if used == capacity:
        remarks.append(full_remark(capacity))
    return Buffer(
        name=name,
        encoding=encoding,
        words=words,
        count=used,
        stored_count=stored,
        capacity=capacity,
        size=size,
        mode=mode.name,
        pid=pid,
        comm=comm,
        kaslr_offset=kaslr_offset,
        remarks=tuple(remarks),
    )


class Trace:
    """Coverage of the calling thread, from ``with`` to the block's end.

    ::

        with kcovdbg.collect.Trace() as trace:
            os.getppid()
        print(trace.pcs)

    It can be used several times, by one thread at a time; other threads and child processes aren't collected (``kcovdbg
    collect`` does that). Python makes few system calls of its own, but its memory management may make some.

    :param mode: ``pc`` or ``cmp``; others where the kernel has them.
    :param size: of the buffer, in words of the kernel.
    :param features: what the running kernel is known to have, for other modes.
    :param path: of KCOV's file.
    :param device: ``struct kcovdbg_device *`` instead of the kernel.
    :raises CapabilityError: without the compiled collector.
    :raises CollectError: when it can't collect; says why, and the hint what to do.
    """

    def __init__(
        self,
        mode: str = "pc",
        *,
        size: int = DEFAULT_SIZE,
        features: Collection[str] | None = None,
        path: str = DEVICE,
        device: Any = None,
    ) -> None:
        self._ffi, self._lib = load_native()
        self._mode = find_mode(mode, features)
        self._size = size
        self._word_size = kernel_word_size()
        self._path = path
        self._device = self._ffi.NULL if device is None else device
        self._kcov: Any = None
        self._enable = self._ffi.new("struct kcovdbg_mode *")
        bitmap = self._mode.bitmap_words(size)
        self._enable.request = self._lib.kcovdbg_request(self._mode.request.encode(), self._word_size)
        self._enable.argument = bitmap or self._mode.argument
        self._enable.count_at = bitmap
        self._enable.record_words = record.make_encoding(self._mode.format, self._word_size).record_words
        self._enable.second = self._mode.second
        self._thread: int | None = None
        self._pid = 0
        self._data = b""
        self._edges = b""

    def open(self) -> None:
        """Make the buffer; entering the block does it where it wasn't done."""
        if self._kcov is not None:
            return
        kcov = self._ffi.new("struct kcovdbg_kcov *")
        error = self._lib.kcovdbg_open(kcov, self._device, os.fsencode(self._path), self._word_size)
        if error:
            raise explain(Step.OPEN, -error, path=self._path)
        step, error = Step.INIT, self._lib.kcovdbg_init(kcov, self._size)
        if not error:
            step, error = Step.MAP, self._lib.kcovdbg_map(kcov, self._mode.second)
        if error:
            self._lib.kcovdbg_close(kcov)
            raise explain(step, -error, path=self._path, size=self._size)
        self._kcov = self._ffi.gc(kcov, self._lib.kcovdbg_close)

    def close(self) -> None:
        """Give the buffer back; what was collected stays readable."""
        self._check_thread("close")
        if self._kcov is not None:
            self._ffi.gc(self._kcov, None)
            self._lib.kcovdbg_close(self._kcov)
            self._kcov = None

    @property
    def fd(self) -> int:
        """The descriptor of KCOV's file, -1 while there is none."""
        return -1 if self._kcov is None else int(self._kcov.fd)

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise CollectError("this trace collects already", hint="one block at a time: a task has one KCOV instance")
        self.open()
        self._thread, self._pid = threading.get_native_id(), os.getpid()
        error = self._lib.kcovdbg_enable(self._kcov, self._enable)
        if error:
            self._thread = None
            raise self._explain_enable(-error)
        return self

    def _explain_enable(self, number: int) -> CollectError:
        cause = None
        if number == errno.EINVAL:
            cause = find_cause(
                self._path,
                request=self._enable.request,
                argument=self._enable.argument,
                size=self._size,
                word_size=self._word_size,
                is_unique=bool(self._enable.count_at),
                device=self._device,
            )
        return explain(Step.ENABLE, number, path=self._path, size=self._size, cause=cause, mode=self._mode.name)

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._check_thread("end")
        kcov, mode, lib = self._kcov, self._enable, self._lib
        # First the count: what is called from here on is recorded too.
        count = lib.kcovdbg_count(kcov, kcov.area, mode.count_at)
        edges = lib.kcovdbg_count(kcov, kcov.second, 0) if mode.second else 0
        error = lib.kcovdbg_disable(kcov)
        self._thread = None
        self._data = self._copy(kcov.area, mode.count_at, mode.record_words, count)
        self._edges = self._copy(kcov.second, 0, 1, edges) if mode.second else b""
        if error and kind is None:
            raise explain(Step.DISABLE, -error, path=self._path)

    def reset(self, *, by_kernel: bool = False) -> None:
        """Inside the block: forget what was collected so far.

        :param by_kernel: by KCOV_RESET_TRACE, which kernels with KCOV_UNIQUE_ENABLE have. What the call executes after it has
            cleared the trace is recorded; without it nothing is, as this is no system call.
        :raises CollectError: outside the block, in another thread, or when the kernel has no such call.
        """
        self._check_thread("reset")
        if self._thread is None:
            raise CollectError("nothing is being collected", hint="call it inside the block")
        if not by_kernel:
            self._lib.kcovdbg_reset(self._kcov, self._enable.count_at)
            return
        if self._mode.request != "UNIQUE_ENABLE":
            # Its number isn't tried where it may mean something else.
            raise explain(Step.RESET, errno.ENOTTY, path=self._path)
        error = self._lib.kcovdbg_reset_trace(self._kcov)
        if error:
            raise explain(Step.RESET, -error, path=self._path)

    def _check_thread(self, verb: str) -> None:
        if self._thread is None:
            return
        if self._pid != os.getpid():
            raise CollectError(f"a child process can't {verb} its parent's trace", hint="make a trace of its own in the child")
        if self._thread != threading.get_native_id():
            raise CollectError(
                f"thread {threading.get_native_id()} can't {verb} the trace of thread {self._thread}",
                hint="KCOV belongs to the thread that enabled it: leave the block there",
            )

    def _copy(self, area: Any, count_at: int, record_words: int, count: int) -> bytes:
        word = 8 if record_words > 1 else self._word_size
        start = count_at * self._word_size
        room = (int(self._kcov.length) - start) // word - 1
        length = word + min(count, room // record_words) * record_words * word
        data = bytearray(self._ffi.buffer(self._ffi.cast("char *", area) + start, length))
        # The count as it was at the block's end; by now there are more.
        data[:word] = count.to_bytes(word, sys.byteorder)
        return bytes(data)

    @property
    def buffer(self) -> Buffer:
        """What was collected, as kcovdbg's commands take it."""
        size = self._size - int(self._enable.count_at)
        return make_buffer("trace", self._data, self._mode, size, word_size=self._word_size, pid=self._pid or None)

    @property
    def edges(self) -> Buffer | None:
        """The edges, in a mode that collects some."""
        if not self._mode.second:
            return None
        return make_buffer("edges", self._edges, find_edges(), self._size, word_size=self._word_size, pid=self._pid or None)

    @property
    def pcs(self) -> array[int]:
        """The recorded PCs in order: return addresses minus the KASLR offset."""
        buffer = self.buffer
        return array("Q", record.pc_words(buffer.words, buffer.encoding))

    @property
    def full(self) -> bool:
        """Whether the buffer was full, so that something may be missing."""
        return bool(self.buffer.full)


def find_edges() -> CollectMode:
    """Return the mode in which the second buffer of a pair is to be read."""
    return find_mode("UNIQ_EDGE", {Feature.UNIQUE_MAPS})
