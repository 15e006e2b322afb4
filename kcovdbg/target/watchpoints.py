# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hardware watchpoints: a machine runs until memory is written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from kcovdbg.errors import CapabilityError, GoneError, TargetError
from kcovdbg.model.memory import StackFrame
from kcovdbg.target.connection import time_left
from kcovdbg.target.end_signals import holds_signals
from kcovdbg.target.rsp import RspClient, StopReply, Stub
from kcovdbg.target.stub_registers import PtRegs, StubRegisters


class MemorySpan(NamedTuple):
    """Memory that one hardware watchpoint covers."""

    address: int
    size: int
    """Size in bytes: 1, 2, 4 or 8; the address is a multiple of it."""


class RunEnd(str, Enum):
    """Reason of a stop of a machine that ran until a write."""

    WRITE = "write"
    """The write that was waited for."""
    TIME = "time"
    """The time has passed."""
    INTERRUPT = "interrupt"
    """C-c."""
    OTHER = "other"
    """Something else stopped it: another debugger, a breakpoint, its end in a panic."""


class Watchpoints:
    """Hardware watchpoints of a machine. Nothing is written to its memory.

    :param stub: the machine's stub.
    :param name: the machine's name in messages.
    :param forget: called whenever the machine has run: memory that was read may have changed.
    :param registers: decodes the registers of its CPUs.
    :param unwind: returns the stack of a CPU by its registers.
    """

    def __init__(
        self,
        stub: Stub,
        name: str,
        forget: Callable[[], None],
        registers: StubRegisters,
        unwind: Callable[[PtRegs], Sequence[StackFrame]],
    ) -> None:
        self._stub = stub
        self._name = name
        self._forget = forget
        self._registers = registers
        self._unwind_registers = unwind
        self._thread: int | None = None
        self.cpu: int | None = None
        """The CPU that stopped, None if it is unknown."""

    def run(
        self, spans: Sequence[MemorySpan], is_wanted: Callable[[], bool], seconds: float | None
    ) -> RunEnd:
        """Let the machine run until a wanted write to some memory, then stop it. The watchpoints
        are removed however it ends.

        :param spans: the memory.
        :param is_wanted: called after each write, while the machine is stopped; False lets it go
            on.
        :param seconds: the time after which the machine is stopped without a write; None for no
            limit.
        :raises CapabilityError: when the machine has no hardware watchpoints for the memory.
        :raises GoneError: when the machine ends.
        """
        raise NotImplementedError

    @property
    def pc(self) -> int:
        """The address after the instruction that wrote, in the running kernel."""
        return self._registers.find_pc(self._stub.registers(self._thread))

    def stack(self) -> Sequence[StackFrame]:
        """Return the stack of the CPU that stopped, innermost frame first; at least the frame of
        :attr:`pc`.
        """
        return self._unwind(self._stub.registers(self._thread))

    def stack_problem(self) -> str | None:
        """Return why :meth:`stack` lacks callers, None when it is complete."""
        return None if self._stub.registers(self._thread) else "the registers are unknown"

    def other_stacks(self) -> Iterator[tuple[int, Sequence[StackFrame]]]:
        """Iterate over the other CPUs, each with its stack, which is empty in user mode."""
        return iter(())

    def _unwind(self, registers: bytes) -> Sequence[StackFrame]:
        # The last instruction wrote.
        found = self._registers.parse_before(registers)
        return self._unwind_registers(found) if found else ()


_SIGTRAP: Final = 5
_MAX_CPUS: Final = 4096
# Limit for the execution of one instruction.
_STEP_SECONDS: Final = 0.1


class StubWatchpoints(Watchpoints):
    """Watchpoints that kcovdbg sets.

    On arm64, a watchpoint stops a CPU before the instruction that writes, and would stop it again
    at once: so this instruction is executed without watchpoints.
    """

    _stub: RspClient

    def run(
        self, spans: Sequence[MemorySpan], is_wanted: Callable[[], bool], seconds: float | None
    ) -> RunEnd:
        start = time.monotonic()
        with self._watching(spans):
            try:
                while True:
                    end = self._run(spans, time_left(start, seconds))
                    if end is not RunEnd.WRITE or is_wanted():
                        return end
            except KeyboardInterrupt:
                return RunEnd.INTERRUPT

    @contextlib.contextmanager
    def _watching(self, spans: Sequence[MemorySpan]) -> Iterator[None]:
        """Watch memory during a block; however the block ends, the machine is stopped then."""
        inserted: list[MemorySpan] = []
        try:
            for span in spans:
                inserted.append(span)
                self._stub.insert_watchpoint(*span)
            yield
        finally:
            self._unwatch(inserted)

    @holds_signals
    def _unwatch(self, inserted: Sequence[MemorySpan]) -> None:
        with self._naming_end():
            self._stop(inserted)
            for span in inserted:
                self._stub.remove_watchpoint(*span)
            self._forget()

    def _run(self, spans: Sequence[MemorySpan], seconds: float | None) -> RunEnd:
        with self._naming_end():
            reply = self._stub.run(seconds)
            if reply is None:
                # A write may have happened before the stop.
                reply = self._stop(spans)
                if reply is None or not _is_hit(reply, spans):
                    return RunEnd.TIME
            else:
                self._note_stop(reply)
            if not _is_hit(reply, spans):
                return RunEnd.OTHER
            is_before = self._registers.stops_before_write and reply.watch is not None
            if is_before and reply.thread is not None:
                self._execute_write(spans, reply.thread)
            return RunEnd.WRITE

    def _stop(self, spans: Sequence[MemorySpan]) -> StopReply | None:
        """Stop the machine if it runs; return how it stopped, or an unreported hit; None when it
        did not run.

        If a CPU of QEMU is stopped between a hit and its report, ``cpu->watchpoint_hit`` stays set,
        and the first hit of the next watchpoint is lost (seen in v7.2). The report, which comes
        with the CPU's next instruction, clears it.
        """
        stop = self._stub.stop()
        self._note_stop(stop)
        if stop is None or _is_hit(stop, spans):
            return stop
        # Stubs of real machines may be unable to step one CPU, but do not report late.
        with contextlib.suppress(CapabilityError):
            for thread in range(1, _MAX_CPUS + 1):
                reply = self._stub.step(thread, _STEP_SECONDS)
                # An instruction that stops before the write has now either written or not.
                if reply.watch is not None and not self._registers.stops_before_write:
                    stop = reply._replace(thread=thread)
        self._note_stop(stop)
        return stop

    def _execute_write(self, spans: Sequence[MemorySpan], thread: int) -> None:
        """Execute the instruction at which a CPU is stopped, without watchpoints."""
        for span in spans:
            self._stub.remove_watchpoint(*span)
        reply = self._stub.step(thread)
        for span in spans:
            self._stub.insert_watchpoint(*span)
        self._note_stop(reply._replace(thread=thread))

    def _note_stop(self, reply: StopReply | None) -> None:
        if reply is None:
            return
        if reply.has_ended:
            raise GoneError(self._name)
        self._thread = reply.thread
        # Stubs number CPUs from 1.
        self.cpu = None if reply.thread is None else reply.thread - 1
        self._forget()

    @contextlib.contextmanager
    def _naming_end(self) -> Iterator[None]:
        """Name the end of the machine as the cause of a lost connection."""
        try:
            yield
        except (TargetError, OSError) as error:
            if isinstance(error, GoneError) or not self._stub.is_gone():
                raise
            raise GoneError(self._name) from error

    def other_stacks(self) -> Iterator[tuple[int, Sequence[StackFrame]]]:
        for thread in range(1, _MAX_CPUS + 1):
            registers = self._stub.registers(thread)
            if not registers:
                return
            if thread != self._thread:
                yield thread - 1, self._unwind(registers)


def _is_hit(reply: StopReply, spans: Sequence[MemorySpan]) -> bool:
    """Return whether the stub reports that a watchpoint was hit."""
    # If two CPUs hit watchpoints at once, the second hit is reported as a trap when the machine
    # goes on; its watchpoint may have been removed by then.
    is_span = reply.watch is not None and any(
        span.address <= reply.watch < span.address + span.size for span in spans
    )
    return is_span or reply.signal == _SIGTRAP
