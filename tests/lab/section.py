# SPDX-License-Identifier: LGPL-2.1-or-later
"""Stops a guest inside a remote section, and finds out from raw memory which section it is.

None of kcovdbg's own code takes part: what is found here is the truth that its walkers are tested
against. Offsets come from the debug info of vmlinux, addresses from its System.map, the KASLR
offset from what the guest said of its symbols, and bytes through the GDB stub. The guest has one
CPU, so at a stop nothing else moves.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import drgn

from tests.lab.errors import LabError
from tests.lab.guest import Guest
from tests.lab.kernel import Kernel
from tests.lab.rsp import Rsp

# At the start of this function a section of any kind is still whole, and about to end.
STOP_AT = "kcov_remote_stop"
# Bits of the task's mode word that are not its mode; KCOV_IN_CTXSW is the highest.
_MODE_FLAGS = 0xE0000000 | 1 << 30
# Bits of the preemption count: a softirq is being served (0x200 and up count those that disabled
# softirqs).
_SERVING_SOFTIRQ = 0x100
_HARDIRQ_OR_NMI = 0xFF0000
# Where a per-CPU variable counts NMIs (seen in 7.3), bits 16 to 23 count who has disabled
# interrupts.
_MOVED_HARDIRQ_OR_NMI, _NMI_COUNT = 0x1F000000, "nmi_nesting"
# Where a kernel with PREEMPT_RT counts softirqs instead: there they run in tasks, and can be
# preempted.
_SOFTIRQ_COUNT = "softirq_disable_cnt"
# On s390x each CPU sees its own at address 0, and what is there at the address that the kernel has
# of it.
_LOWCORES = "lowcore_ptr"
# A comparison takes four words, a PC one. Modes are numbered differently in posted series.
_WORDS_PER_RECORD = {"TRACE_PC": 1, "TRACE_CMP": 4, "TRACE_UNIQ_PC": 1, "UNIQUE_PC": 1}
# Where the fields are in kernels of the deduplication series.
_STATE_FIELDS = ("size", "area", "sequence", "trace")
_KCOV_FIELDS = ("refcount", "mode", "size", "area", "t", "remote", "remote_size", "sequence")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The facts about this kernel by which a stop is judged."""

    program: drgn.Program
    """Has its types, and no memory."""
    # Where each CPU keeps its task: a per-CPU symbol and a place in it.
    current: tuple[str, int]
    # Its preemption count likewise; without a symbol, in that task; in the lowcore where the symbol
    # is that of lowcores.
    preempt_count: tuple[str | None, int]
    # Words that a record takes, by the mode's number.
    record_words: dict[int, int]
    # Unrelocated addresses.
    symbols: dict[str, int]
    byte_order: str

    def task_offset(self, name: str) -> int | None:
        """Return where a member of ``struct task_struct`` lies."""
        task = self.program.type("struct task_struct")
        return drgn.offsetof(task, name) if task.has_member(name) else None


@dataclasses.dataclass(frozen=True)
class State:
    """A situation to stop in: the workload's line that brings it about, and how it is known."""

    name: str
    # Said to the workload before the hunt.
    commands: tuple[str, ...]
    wanted: Callable[[dict[str, Any]], bool]


def _in_task(section: dict[str, Any]) -> bool:
    return bool(section["context"] == "task" and section["collecting"] == "remote")


def _in_softirq(section: dict[str, Any], beneath: str | None) -> bool:
    return bool(
        section["context"] == "softirq"
        and section["collecting"] == "remote"
        and section["beneath"] == beneath
    )


STATES = {
    state.name: state
    for state in [
        State(
            "hub-section",
            ("traffic usb hub",),
            lambda s: _in_task(s) and s["comm"].startswith("kworker"),
        ),
        State(
            "vhost-section",
            ("traffic vhost",),
            lambda s: _in_task(s) and s["comm"].startswith("vhost"),
        ),
        State("softirq-over-local", ("traffic usb",), lambda s: _in_softirq(s, "local")),
        State(
            "softirq-over-none",
            ("traffic usb plain",),
            lambda s: _in_softirq(s, None) and s["pid"] != 0,
        ),
        State(
            "softirq-over-idle",
            ("traffic usb hub",),
            lambda s: _in_softirq(s, None) and s["pid"] == 0,
        ),
        State(
            "softirq-over-section",
            ("traffic usb hub", "traffic usb plain"),
            lambda s: _in_softirq(s, "remote"),
        ),
    ]
}


@functools.lru_cache(maxsize=4)
def read_layout(kernel: Kernel) -> Layout:
    """Read the layout from vmlinux and System.map, which takes some tenths of a second."""
    program = drgn.Program(drgn.Platform(drgn.Architecture[kernel.recipe.architecture.upper()]))
    # Without a target there is no main module for vmlinux to match; types need none.
    module = program.extra_module("vmlinux", create=True)
    module.try_file(kernel.vmlinux, force=True)
    # The first of a name.
    symbols = {name: address for address, _, name in reversed(kernel.symbols)}
    record_words = {
        value: _WORDS_PER_RECORD[name.removeprefix("KCOV_MODE_")]
        for name, value in program.type("enum kcov_mode").enumerators or ()
        if name.removeprefix("KCOV_MODE_") in _WORDS_PER_RECORD
    }
    if "pcpu_hot" in symbols:
        hot = program.type("struct pcpu_hot")
        current = ("pcpu_hot", drgn.offsetof(hot, "current_task"))
        preempt_count: tuple[str | None, int] = ("pcpu_hot", drgn.offsetof(hot, "preempt_count"))
    elif "__preempt_count" in symbols:
        current, preempt_count = ("current_task", 0), ("__preempt_count", 0)
    else:
        # The CPU has its task in a register, and the scheduler knows it too.
        current = ("runqueues", drgn.offsetof(program.type("struct rq"), "curr"))
        preempt_count = _preempt_count(program, symbols)
    return Layout(
        program, current, preempt_count, record_words, symbols, kernel.recipe.platform.byte_order
    )


def _preempt_count(program: drgn.Program, symbols: dict[str, int]) -> tuple[str | None, int]:
    if _LOWCORES in symbols:
        return _LOWCORES, drgn.offsetof(program.type("struct lowcore"), "preempt_count")
    # arm64 has it in two halves.
    separator = "." if program.type("struct thread_info").has_member("preempt") else "_"
    return None, drgn.offsetof(
        program.type("struct task_struct"), f"thread_info.preempt{separator}count"
    )


def _member_names(kind: drgn.Type) -> Iterator[str]:
    """Return the names of members, also in anonymous structures: with RANDSTRUCT all members that
    may move are in one.
    """
    for member in kind.members or ():
        if member.name is not None:
            yield member.name
        else:
            yield from _member_names(member.type)


def _values(of: drgn.Object, names: Iterable[str]) -> dict[str, int]:
    """Return the members that there are of these, as numbers."""
    return {name: _number(of.member_(name)) for name in names if of.type_.has_member(name)}


def _number(value: drgn.Object) -> int:
    found = value.value_()
    if isinstance(found, dict):
        # As refcount_t is: a structure of one number.
        return _number(value.member_(next(iter(found))))
    return int(found)


def _state_values(of: drgn.Object, state: str, prefix: str) -> dict[str, int]:
    """Return the members of a struct kcov_state inside another struct, where there is one."""
    if not of.type_.has_member(state):
        return {}
    return {
        f"{prefix}{name}": value
        for name, value in _values(of.member_(state), _STATE_FIELDS).items()
    }


def kaslr_offset(guest: Guest, symbols: dict[str, int]) -> int:
    """Return how far the guest's kernel is from its link address, by its own /proc/kallsyms."""
    line = guest.wait_truth(lambda line: line.get("state") == "kernel")
    return int(line["symbols"]["_stext"], 16) - symbols["_stext"]


class Probe:
    """Looks at the one CPU of a stopped guest."""

    def __init__(self, stub: Rsp, layout: Layout, kaslr: int) -> None:
        self._stub = stub
        self._layout = layout
        self.kaslr = kaslr

    def address(self, symbol: str) -> int:
        """Return the address of a symbol of the image in this guest."""
        return self._layout.symbols[symbol] + self.kaslr

    @functools.cached_property
    def _percpu(self) -> int:
        # Not before a stop in the kernel: while user space runs, the kernel may not be mapped.
        return self._stub.word(self.address("__per_cpu_offset"))

    def _percpu_address(self, symbol: str, offset: int) -> int:
        """Return the address of the CPU's instance of a per-CPU symbol."""
        linked = self._layout.symbols[symbol]
        # x86-64 links these symbols from 0 on, others into the image, which KASLR moves.
        at = linked + self.kaslr if linked >= self._layout.symbols["_text"] else linked
        return self._percpu + at + offset & (1 << 64) - 1

    def _preempt_address(self, task: int) -> int:
        where, offset = self._layout.preempt_count
        if where is None:
            return task + offset
        return offset if where == _LOWCORES else self._percpu_address(where, offset)

    def look(self) -> dict[str, Any]:
        """The section that the CPU is in: context, what it collects for, and what it
        interrupted.
        """
        stub, layout = self._stub, self._layout
        address = stub.word(self._percpu_address(*layout.current))
        order: Literal["big", "little"] = "big" if layout.byte_order == ">" else "little"
        preempt = int.from_bytes(stub.read(self._preempt_address(address), 4), order)
        task = self._read("struct task_struct", address)
        names = [
            name
            for name in _member_names(task.type_)
            if name.startswith("kcov") and name != "kcov_state"
        ]
        fields = _values(task, names) | _state_values(task, "kcov_state", "kcov_")
        saved = self._saved(fields)
        serving = _values(task, [_SOFTIRQ_COUNT]).get(_SOFTIRQ_COUNT, preempt)
        interrupted = _MOVED_HARDIRQ_OR_NMI if _NMI_COUNT in layout.symbols else _HARDIRQ_OR_NMI
        softirq = bool(serving & _SERVING_SOFTIRQ) and not preempt & interrupted
        if bool(fields["kcov_softirq"]) and not softirq:
            raise LabError(
                f"kcov_softirq is set outside a softirq: {fields}, preempt_count {preempt:#x}"
            )
        # A softirq may run while its task's own session goes on: then there is no section of the
        # softirq's.
        own = bool(fields["kcov_softirq"]) == softirq
        return {
            "context": "softirq" if softirq else "task",
            "preempt_count": preempt,
            "pc": stub.registers()["pc"],
            "cpu": 0,
            "task": address,
            **_values(task, ("pid", "tgid")),
            "comm": task.comm.string_().decode("latin-1"),
            **fields,
            "collecting": self._kind(fields["kcov_mode"], fields["kcov"]) if own else None,
            "saved": saved,
            "beneath": self._kind(saved["mode"], saved["kcov"]) if fields["kcov_softirq"] else None,
        }

    def describe(self, section: dict[str, Any]) -> dict[str, Any]:
        """Return a section with the objects and the buffers that it refers to, as truth to keep."""
        objects = {}
        saved = section["saved"]
        for address in (section["kcov"], saved["kcov"]):
            if address:
                objects[f"{address:#x}"] = _shown(self._object(address))
        buffers = {
            "kcov_area": self._buffer(
                section["kcov_area"],
                section["kcov_mode"],
                section["kcov_size"],
                section.get("kcov_trace"),
            ),
            "saved_area": self._buffer(
                saved["area"], saved["mode"], saved["size"], saved.get("trace")
            ),
        }
        symbol = STOP_AT if section["pc"] == self.address(STOP_AT) else None
        shown = _shown(section)
        return shown | {
            "stopped_at": symbol,
            "kaslr_offset": hex(self.kaslr),
            "objects": objects,
            "buffers": buffers,
        }

    def _read(self, kind: str, address: int) -> drgn.Object:
        """Read a structure in one packet."""
        program = self._layout.program
        data = self._stub.read(address, drgn.sizeof(program.type(kind)))
        return drgn.Object.from_bytes_(program, kind, data)

    def _saved(self, fields: dict[str, int]) -> dict[str, int]:
        """Under one set of names, wherever this kernel keeps it."""
        names = ("mode", "size", "area", "kcov", "sequence")
        if "kcov_saved_mode" in fields:
            return {name: fields[f"kcov_saved_{name}"] for name in names}
        percpu = self._read("struct kcov_percpu_data", self._percpu_address("kcov_percpu_data", 0))
        found = _values(percpu, [f"saved_{name}" for name in names]) | _state_values(
            percpu, "saved_state", "saved_"
        )
        return {name.removeprefix("saved_"): value for name, value in found.items()}

    def _kind(self, mode: int, kcov: int) -> str | None:
        """What a session collects for: its own task, or the holder of a remote handle."""
        if mode & ~_MODE_FLAGS not in self._layout.record_words or not kcov:
            return None
        return "remote" if self._object(kcov)["remote"] else "local"

    def _object(self, address: int) -> dict[str, int]:
        kcov = self._read("struct kcov", address)
        return _values(kcov, _KCOV_FIELDS) | _state_values(kcov, "state", "")

    def _buffer(self, area: int, mode: int, size: int, trace: int | None) -> dict[str, Any] | None:
        words = self._layout.record_words.get(mode & ~_MODE_FLAGS)
        if not area or words is None:
            return None
        # Behind the bitmap, where there is one.
        start = area if trace is None else trace
        count = self._stub.word(start)
        # The count in a user's buffer is the user's to write.
        records = min(count, (size - (start - area) // 8 - 1) // words)
        data = self._stub.read(start + 8, 8 * words * records)
        first = [
            f"{word:#x}"
            for (word,) in struct.iter_unpack(f"{self._layout.byte_order}Q", data[: 8 * 16])
        ]
        return {
            "area": hex(area),
            "count": count,
            "first_words": first,
            "records_sha256": hashlib.sha256(data).hexdigest(),
        }


# Addresses are hex strings, as in what kcovdbg prints; other numbers are numbers.
_ADDRESSES = {
    *(
        "task",
        "pc",
        "kcov",
        "kcov_area",
        "area",
        "t",
        "kcov_handle",
        "kcov_saved_area",
        "kcov_saved_kcov",
    ),
    *("kcov_remote", "kcov_trace", "trace"),
}


def _shown(content: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            shown[name] = _shown(value)
        else:
            shown[name] = hex(value) if name in _ADDRESSES else value
    return shown


@contextlib.contextmanager
def stopped_in(
    guest: Guest, name: str, timeout: float = 180, *, say: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Stop the guest in a state; inside the block it stands there, and afterwards it goes on.
    Yields the truth.

    :param say: further commands for the workload, behind those that the state needs.
    """
    state = STATES[name]
    if guest.machine.cpus != 1:
        raise LabError("sections in flight are hunted with one CPU only")
    layout = read_layout(guest.kernel)
    offset = kaslr_offset(guest, layout.symbols)
    for command in (*state.commands, *say):
        _require_made(guest.ask(command), command)
    with guest.gdb() as stub:
        probe = Probe(stub, layout, offset)
        section, stops = _hunt(stub, probe, state, timeout)
        yield {"state": name, "stops": stops} | probe.describe(section)


def _require_made(lines: list[dict[str, Any]], command: str) -> None:
    for line in lines:
        if line.get("missing"):
            raise LabError(f"the workload could not do {command!r}: {line['missing']}")


def _hunt(stub: Rsp, probe: Probe, state: State, timeout: float) -> tuple[dict[str, Any], int]:
    """Go from stop to stop until one is in the wanted state."""
    deadline = time.monotonic() + timeout
    seen: collections.Counter[str] = collections.Counter()
    stop_at = probe.address(STOP_AT)
    while (left := deadline - time.monotonic()) > 0:
        # Past the instruction where it stands: the stub would stop there again at once.
        stub.step()
        stub.set_breakpoint(stop_at)
        stub.resume()
        if stub.wait_stop(left) is None:
            stub.interrupt()
        # The breakpoint is the CPU's and in no memory; a dump taken now doesn't show it either way.
        stub.clear_breakpoint(stop_at)
        if stub.registers()["pc"] != stop_at:
            continue
        section = probe.look()
        if state.wanted(section):
            return section, seen.total() + 1
        seen[
            f"{section['context']}: {section['collecting']} over {section['beneath']}, "
            f"{section['comm']}"
        ] += 1
    raise LabError(f"{state.name} was not reached within {timeout} s; the stops were {dict(seen)}")
