# SPDX-License-Identifier: LGPL-2.1-or-later
"""Collect coverage of a block of Python code, in the thread that runs it."""

from __future__ import annotations

import errno
import os
import sys
import threading
from array import array
from collections.abc import Collection
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kcovdbg.collect.requests import (
    DEFAULT_SIZE,
    Step,
    device_path,
    explain_errno,
    find_mode,
    find_refusal,
    kernel_word_size,
    make_native_mode,
    request_number,
)
from kcovdbg.compiled_module import load_native
from kcovdbg.errors import CollectError
from kcovdbg.model.buffer import Buffer

if TYPE_CHECKING:
    from typing_extensions import Self


class Trace:
    """Coverage of the calling thread, from ``with`` to the block's end.

    ::

        with kcovdbg.collect.Trace() as trace:
            os.getppid()
        print(trace.pcs)

    It can be used several times, by one thread at a time. Other threads and child processes are not
    collected; ``kcovdbg collect`` does that. Python makes few system calls of its own, most of them
    for memory.

    :param mode: ``pc`` or ``cmp``, or another one that the kernel has.
    :param size: size of the buffer in words of the kernel.
    :param features: features of the running kernel, which other modes need.
    :param path: path of the device's file; by default the mode's.
    :param device: ``struct kcovdbg_device *`` to use instead of the kernel.
    :raises CapabilityError: without the compiled collector.
    :raises CollectError: when coverage cannot be collected.
    """

    def __init__(
        self,
        mode: str = "pc",
        *,
        size: int = DEFAULT_SIZE,
        features: Collection[str] | None = None,
        path: str | None = None,
        device: Any = None,
    ) -> None:
        self._ffi, self._lib = load_native()
        self._mode = find_mode(mode, features)
        self._size = size
        self._word_size = kernel_word_size()
        self._path = path or device_path(self._mode)
        self._device = device or self._ffi.NULL
        self._kcov: Any = None
        self._enable = make_native_mode(self._mode, size)
        self._thread: int | None = None
        self._pid = 0
        self._data = b""
        self._edges = b""

    def open(self) -> None:
        """Create the buffer; entering the block does so if it was not done."""
        if self._kcov is not None:
            return
        kcov = self._ffi.new("struct kcovdbg_kcov *")
        error = self._lib.kcovdbg_open(kcov, self._device, os.fsencode(self._path), self._word_size)
        if error:
            raise explain_errno(Step.OPEN, -error, path=self._path)
        self._lib.kcovdbg_use(kcov, self._enable)
        step, error = Step.INIT, self._lib.kcovdbg_init(kcov, self._size)
        if not error:
            step, error = Step.MAP, self._lib.kcovdbg_map(kcov, self._enable.second)
        if error:
            self._lib.kcovdbg_close(kcov)
            raise explain_errno(step, -error, path=self._path, size=self._size)
        self._kcov = self._ffi.gc(kcov, self._lib.kcovdbg_close)

    def close(self) -> None:
        """Release the buffer; the collected records stay readable."""
        self._check_thread("close")
        if self._kcov is not None:
            self._ffi.gc(self._kcov, None)
            self._lib.kcovdbg_close(self._kcov)
            self._kcov = None

    @property
    def fd(self) -> int:
        """The descriptor of KCOV's file; -1 while there is none."""
        if self._kcov is None:
            return -1
        return int(self._kcov.fd)

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise CollectError(
                "this trace collects already",
                hint="use one block at a time: a task can use one object",
            )
        self.open()
        self._thread, self._pid = threading.get_native_id(), os.getpid()
        error = self._lib.kcovdbg_enable(self._kcov, self._enable)
        if error:
            self._thread = None
            refusal = None
            if error == -errno.EINVAL:
                refusal = find_refusal(self._path, self._enable, self._size, self._device)
            raise explain_errno(
                Step.ENABLE,
                -error,
                path=self._path,
                size=self._size,
                refusal=refusal,
                mode=self._mode,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._check_thread("end")
        kcov, mode, lib = self._kcov, self._enable, self._lib
        # Read the count first, because the calls below are also recorded.
        count = lib.kcovdbg_count(kcov, kcov.area, mode.count_at)
        edges = lib.kcovdbg_count(kcov, kcov.second, 0) if mode.second else 0
        error = lib.kcovdbg_disable(kcov)
        self._thread = None
        self._data = self._copy(kcov.area, mode.count_at, mode.record_words, count)
        self._edges = self._copy(kcov.second, 0, 1, edges) if mode.second else b""
        if error and kind is None:
            raise explain_errno(Step.DISABLE, -error, path=self._path)

    def reset(self, *, by_kernel: bool = False) -> None:
        """Discard the records collected so far, inside the block.

        :param by_kernel: whether to ask the kernel, in modes that have such a request. The end of
            the request is then recorded. Without ``by_kernel`` there is no system call, and nothing
            is recorded.
        :raises CollectError: outside the block, in another thread, or when the kernel has no such
            call.
        """
        self._check_thread("reset")
        if self._thread is None:
            raise CollectError("reset: nothing is being collected", hint="call it inside the block")
        if not by_kernel:
            self._lib.kcovdbg_reset(self._kcov, self._enable.count_at)
            return
        reset = self._mode.request.reset
        if reset is None:
            # Its number may mean something else on other kernels.
            raise explain_errno(Step.RESET, errno.ENOTTY, path=self._path)
        error = self._lib.kcovdbg_reset_trace(self._kcov, request_number(reset))
        if error:
            raise explain_errno(Step.RESET, -error, path=self._path)

    def _check_thread(self, verb: str) -> None:
        if self._thread is None:
            return
        if self._pid != os.getpid():
            raise CollectError(
                f"a child process cannot {verb} its parent's trace",
                hint="create a trace in the child",
            )
        if self._thread != threading.get_native_id():
            raise CollectError(
                f"thread {threading.get_native_id()} cannot {verb} the trace of thread "
                f"{self._thread}",
                hint="leave the block in the thread that entered it",
            )

    def _copy(self, area: Any, count_at: int, record_words: int, count: int) -> bytes:
        word = 8 if record_words > 1 else self._word_size
        start = count_at * self._word_size
        room = (int(self._kcov.length) - start) // word - 1
        length = word + min(count, room // record_words) * record_words * word
        data = bytearray(self._ffi.buffer(self._ffi.cast("char *", area) + start, length))
        # The count at the block's end: more was recorded since.
        data[:word] = count.to_bytes(word, sys.byteorder)
        return bytes(data)

    @property
    def buffer(self) -> Buffer:
        """The collected coverage, as kcovdbg's commands take it."""
        size = self._size - int(self._enable.count_at)
        return self._mode.decode("trace", self._data, size, self._pid or None)

    @property
    def edges(self) -> Buffer | None:
        """The edges, in a mode that collects some."""
        second = self._mode.second
        if second is None:
            return None
        return second.decode("edges", self._edges, self._size, self._pid or None)

    @property
    def pcs(self) -> array[int]:
        """The recorded PCs in order: return addresses minus the KASLR offset."""
        buffer = self.buffer
        return array("Q", buffer.pc_words)

    @property
    def count(self) -> int:
        """The count word at the block's end: records, or words if records differ in length."""
        return int.from_bytes(
            self._data[: 8 if self._mode.codec.word_size == 8 else self._word_size], sys.byteorder
        )

    @property
    def full(self) -> bool:
        """Whether the buffer was full: then records may be missing."""
        return bool(self.buffer.full)
