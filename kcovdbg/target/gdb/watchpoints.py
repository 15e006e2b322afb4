# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hardware watchpoints by GDB."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

import gdb
from kcovdbg.errors import CapabilityError, GoneError, KcovdbgError
from kcovdbg.model.location import Frame
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.gdb.kernel import GdbKernel
from kcovdbg.target.protocol import Target
from kcovdbg.target.watchpoints import MemorySpan, RunEnd

_TYPES: Final = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long"}
_MAX_FRAMES: Final = 64


class GdbWatchpoints:
    """Watchpoints of the machine that GDB is connected to.

    :param target: the kernel.
    :param kernel: its symbols.
    :param frames_at: returns the functions that an instruction is in, innermost first.
    :param forget: forgets what was kept of memory, since the machine has run.
    :param find_callers: returns the callers of the function that GDB's thread is stopped in; None where GDB's frames have them.
    """

    def __init__(
        self,
        target: Target,
        kernel: GdbKernel,
        frames_at: Callable[[int], Sequence[Frame]],
        forget: Callable[[], None],
        find_callers: Callable[[], Sequence[StackFrame] | None],
    ) -> None:
        self._target = target
        self._kernel = kernel
        self._frames_at = frames_at
        self._forget = forget
        self._find_callers = find_callers

    def run(self, spans: Sequence[MemorySpan], is_wanted: Callable[[], bool], seconds: float | None) -> RunEnd:
        """Let the machine run until a wanted write; see :class:`~kcovdbg.target.watchpoints.Watchpoints`."""

        def judge() -> bool:
            self._forget()
            return is_wanted()

        run = _Run(judge)
        with ExitStack() as stack:
            for span in spans:
                watch = _Watch(span, run)
                stack.callback(watch.delete)
                if watch.type != gdb.BP_HARDWARE_WATCHPOINT:
                    raise CapabilityError(
                        "GDB would single-step the machine",
                        hint="let it use hardware watchpoints: set can-use-hw-watchpoints 1",
                    )
            gdb.events.stop.connect(run.note_stop)
            stack.callback(gdb.events.stop.disconnect, run.note_stop)
            if seconds is not None:
                stack.enter_context(_interrupting(seconds))
                run.deadline = time.monotonic() + seconds
            try:
                gdb.execute("continue", to_string=True)
            except gdb.error as error:
                self._check_alive()
                raise CapabilityError(" ".join(str(error).split())) from None
            except KeyboardInterrupt:
                run.end = run.end_of_interrupt()
            self._forget()
            self._check_alive()
        if run.error is not None:
            raise run.error
        return run.end

    def _check_alive(self) -> None:
        """Check that the machine is still there.

        :raises GoneError: when it is not.
        """
        if gdb.selected_inferior().connection is None or gdb.selected_thread() is None:
            raise GoneError(self._target.name)

    @property
    def cpu(self) -> int | None:
        """The CPU that stopped, None where that is unknown."""
        thread = gdb.selected_thread()
        # QEMU's stub numbers its threads, one for each CPU in order, from 1.
        return None if thread is None else thread.ptid[1] - 1

    @property
    def pc(self) -> int:
        """The address after the instruction that wrote."""
        return gdb.newest_frame().pc()

    def stack(self) -> Sequence[StackFrame]:
        """Return the stack of the CPU that stopped; without its callers where GDB's symbols are not where the kernel is."""
        writer = self.pc - 1
        inner = self._frames_at(writer)
        frames = [
            StackFrame(writer, frame.function, frame.file, frame.line, None, number < len(inner) - 1)
            for number, frame in enumerate(inner)
        ] or [StackFrame(writer, self._target.symbol_name(writer), None, None, None, False)]
        callers = self._find_callers()
        if callers is not None:
            return [*frames, *callers]
        if self._kernel.relocation != self._target.kaslr_offset:
            return frames
        return [*frames, *self._callers()]

    def stack_problem(self) -> str | None:
        """Return why :meth:`stack` lacks callers, None when it is complete."""
        offset = self._target.kaslr_offset
        if self._kernel.relocation == offset or self._find_callers() is not None:
            return None
        return f"GDB's symbols are not where the kernel is; symbol-file {self._kernel.image.path} -o {offset:#x} moves them"

    def _callers(self) -> Iterator[StackFrame]:
        low = self._target.kernel_range[0]
        frame: gdb.Frame | None = gdb.newest_frame()
        while frame is not None and frame.type() == gdb.INLINE_FRAME:
            frame = frame.older()
        frame = None if frame is None else frame.older()
        for _ in range(_MAX_FRAMES):
            if frame is None or not frame.is_valid() or frame.pc() < low:
                return
            place = frame.find_sal()
            file = None if place.symtab is None else place.symtab.filename
            yield StackFrame(frame.pc(), frame.name(), file, place.line or None, None, frame.type() == gdb.INLINE_FRAME)
            frame = frame.older()

    def other_stacks(self) -> Iterator[tuple[int, Sequence[StackFrame]]]:
        """Iterate over nothing: while GDB decides whether to stop, other threads cannot be selected."""
        return iter(())


class _Run:
    """One run of the machine."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        self.deadline: float | None = None
        self.end = RunEnd.OTHER
        self.error: Exception | None = None

    def is_over(self) -> bool:
        """Judge a write; return whether the machine stays stopped."""
        try:
            if self._is_wanted():
                self.end = RunEnd.WRITE
            elif self._is_late():
                self.end = RunEnd.TIME
            else:
                return False
        except KeyboardInterrupt:
            self.end = self.end_of_interrupt()
        except (KcovdbgError, gdb.error) as error:
            # GDB would print a traceback.
            self.error = error
        return True

    def note_stop(self, event: gdb.StopEvent) -> None:
        """Note why the machine stopped, for stops by something else than a write."""
        if self.end is RunEnd.OTHER and isinstance(event, gdb.SignalEvent) and event.stop_signal == "SIGINT":
            self.end = self.end_of_interrupt()

    def end_of_interrupt(self) -> RunEnd:
        """Return what a C-c means now: the end of the time sends one."""
        return RunEnd.TIME if self._is_late() else RunEnd.INTERRUPT

    def _is_late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


@contextmanager
def _interrupting(seconds: float) -> Iterator[None]:
    """Send C-c to GDB after a time, unless a block ends before.

    By another process: while the machine runs, GDB lets other threads of Python run only now and then.
    """
    script = f"sleep {seconds:.3f} && kill -INT {os.getpid()}"
    timer = subprocess.Popen(["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(timer.pid, signal.SIGKILL)
        timer.wait()


class _Watch(gdb.Breakpoint):
    """A watchpoint, not listed among the user's."""

    def __init__(self, span: MemorySpan, run: _Run) -> None:
        self._run = run
        super().__init__(f"*({_TYPES[span.size]} *) {span.address:#x}", gdb.BP_WATCHPOINT, gdb.WP_WRITE, True)
        self.silent = True

    def stop(self) -> bool:
        """Return whether the machine stays stopped after a write."""
        return self._run.is_over()
