# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that GDB has open. A core is opened again by this process; the memory and registers of
a machine are read through GDB.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.console.text import escape
from kcovdbg.elf.file import ElfFile
from kcovdbg.errors import CapabilityError, GoneError, ReadError, TargetError
from kcovdbg.target.connection import MachineState
from kcovdbg.target.rsp import Stub
from kcovdbg.target.stub_registers import StubRegisters, stub_registers_of
from kcovdbg.target.watchpoints import MemorySpan, RunEnd, Watchpoints

if TYPE_CHECKING:
    from kcovdbg.frontends.gdb.link import Fields, Link
    from kcovdbg.target.drgn.machines import StubMachine
    from kcovdbg.target.drgn.target import DrgnTarget

_KCORE: Final = "/proc/kcore"
# Bytes of memory that are read at once: few, as every byte takes time on a serial line.
_SERIAL_BLOCK: Final = 256
# Bytes in one packet of QEMU's stub, for the few reads between two hits of a breakpoint.
_QEMU_BLOCK: Final = 2048
# A static symbol of kernel/kcov.c, in every version.
_ANCHOR: Final = "kcov_fops"


class LentStub(Stub):
    """The stub that GDB is connected to. Like :class:`~kcovdbg.target.rsp.RspClient`, but all
    packets go through GDB.

    :param state: what GDB has open, as for :class:`OpenKernel`.
    :param decoder: decodes the registers of the machine's architecture.
    :param anchor: the address of :data:`_ANCHOR` in the vmlinux; None if it has no such symbol.
    """

    def __init__(
        self, link: Link, state: Fields, decoder: StubRegisters, anchor: int | None
    ) -> None:
        self._link = link
        self._decoder = decoder
        self._given: int | None = state["kaslr_offset"]
        self._anchor = anchor
        self._is_physical = False
        self.where: str = state["name"]
        self.block = PAGE_SIZE if state["stub"] == "qemu" else _SERIAL_BLOCK

    def state(self) -> MachineState:
        return MachineState.STOPPED

    def resume(self) -> NoReturn:
        raise TargetError("GDB controls the machine", hint="continue")

    @property
    def kaslr_offsets(self) -> Sequence[int]:
        """Possible KASLR offsets: the one that the user set, and the offset of GDB's symbols."""
        loaded = self._link.call("address", name=_ANCHOR).fields["address"]
        moved = None if loaded is None or self._anchor is None else loaded - self._anchor
        return [offset for offset in (self._given, moved) if offset is not None]

    def read(self, address: int, size: int) -> bytes:
        message = self._link.call("read", address=address, size=size, physical=self._is_physical)
        if len(message.data) != size:
            raise ReadError(
                f"could not read {address:#x} through the stub: {message.fields.get('error')}",
                address,
            )
        return message.data

    def use_physical_memory(self) -> bool:
        self._is_physical = bool(self._link.call("physical").fields["can"])
        return self._is_physical

    def use_virtual_memory(self) -> None:
        self._is_physical = False

    def monitor(self, command: str) -> str | None:
        text: str | None = self._link.call("monitor", command=command).fields.get("text")
        return text

    def registers(self, thread: int | None = None) -> bytes:
        values = self._find(thread, self._decoder.names)
        return self._decoder.pack([value or 0 for value in values]) if any(values) else b""

    def register(self, name: str) -> int | None:
        return next(iter(self._find(None, (name,))), None)

    def _find(self, thread: int | None, names: Sequence[str]) -> list[int | None]:
        answer = self._link.call("registers", thread=thread, names=names)
        found: list[int | None] = answer.fields["values"]
        return found


class LentWatchpoints(Watchpoints):
    """Hardware watchpoints, which GDB sets: it lets the machine run, and asks here after each
    write.

    While GDB decides whether to stop, no other CPU can be selected: there are no other stacks.
    """

    def __init__(self, link: Link, machine: StubMachine, stub: LentStub) -> None:
        target = machine.target
        super().__init__(stub, target.name, machine.forget, machine.registers, target.stacks.unwind)
        self._link = link

    def run(
        self, spans: Sequence[MemorySpan], is_wanted: Callable[[], bool], seconds: float | None
    ) -> RunEnd:
        failures: list[BaseException] = []

        def judge(hit: Fields) -> Fields:
            self._forget()
            self.cpu = hit["cpu"]
            try:
                return {"wanted": is_wanted()}
            # The error is kept, and raised below when GDB has stopped the machine.
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
                failures.append(error)
                return {"wanted": True}

        found = self._link.call("watch", judge, spans=spans, seconds=seconds).fields
        self._forget()
        for failure in failures:
            if isinstance(failure, KeyboardInterrupt):
                return RunEnd.INTERRUPT
            raise failure
        if found.get("gone"):
            raise GoneError(self._name)
        if "error" in found:
            raise CapabilityError(found["error"], hint=found.get("hint"))
        return RunEnd(found["end"])


class OpenKernel:
    """An open kernel. Its debug info stays loaded while GDB lets the machine run.

    :param state: what GDB has open, as gdb/ describes it.
    :raises TargetError: when it cannot be opened.
    """

    def __init__(self, link: Link, state: Fields) -> None:
        self._link = link
        self._key = _identify(state)
        # When the kernel was last read: GDB counts the times that it let the machine run. And
        # whether that read was a brief one.
        self._read_at = (state["generation"], False)
        self._machine: StubMachine | None = None
        from kcovdbg.target.drgn import programs

        symbols = _find_debug_files(state["symbols"])
        core = state.get("core")
        self.target: DrgnTarget
        if core == _KCORE:
            self.target = programs.open_kernel(symbols)
        elif core is not None:
            self.target = programs.open_core(core, symbols)
        else:
            self._machine = _open_machine(link, state, symbols)
            self.target = self._machine.target
        given, found = state["kaslr_offset"], self.target.kaslr_offset
        if given not in (None, found):
            raise TargetError(
                f"the KASLR offset is {found:#x}, not {given:#x}", hint="set kcov kaslr-offset auto"
            )
        # Modules and types stay: looking for garbage among them would take longer than a command.
        gc.freeze()
        self._notes: tuple[str, ...] = tuple(self.target.notes)
        self._note_symbols()

    def describe(self) -> str:
        """Return a line about where the kernel is, and whether GDB's symbols are there."""
        target = self.target
        text = f"Linux {target.release}, KASLR offset {target.kaslr_offset:#x}"
        if self.has_symbols:
            return text
        return (
            f"{text}; GDB's symbols, and so its breakpoints, are elsewhere: kcov-show symbols "
            f"--apply moves them"
        )

    def refresh(self, state: Fields, *, is_brief: bool = False) -> bool:
        """Forget memory that was read if the machine has run since; return whether GDB still has
        this kernel open.

        :param is_brief: assume that the kernel and its modules are the same, as between two hits of
            a breakpoint.
        """
        if _identify(state) != self._key:
            return False
        if not is_brief:
            self._note_symbols()
        if self._machine is None:
            return True
        key = (state["generation"], is_brief)
        # In the condition of a breakpoint ("moves"), the machine has run without being counted.
        if key == self._read_at and not state["moves"]:
            return True
        self._machine.forget(_QEMU_BLOCK if is_brief else None)
        is_same = is_brief or (self._machine.is_same_kernel() and not self._machine.load_modules())
        # Set after the reads, which C-c may end.
        self._read_at = key
        return is_same

    def find_symbol_file(self) -> tuple[str, int] | None:
        """Return the file and the offset with which GDB would have the kernel's symbols; None if it
        already has them.
        """
        image = self.target.lines.image
        if image is None or self.has_symbols:
            return None
        return image, self.target.kaslr_offset

    @property
    def has_symbols(self) -> bool:
        """Whether GDB's symbols are where the kernel is."""
        address = self.target.symbol(_ANCHOR).address
        return bool(self._link.call("symbol", address=address).fields["name"] == _ANCHOR)

    def address_in_gdb(self, address: int) -> int:
        """Return the address in GDB's symbols of one in the running kernel."""
        is_of_module = self.target.lines.name_at(address) is not None
        # The user loads symbols of modules at the addresses of the modules.
        if self.has_symbols or is_of_module:
            return address
        return address - self.target.kaslr_offset

    def _note_symbols(self) -> None:
        self.target.notes = self._notes
        found = self.find_symbol_file()
        if found is not None:
            command = symbol_file_command(*found)
            self.target.notes += (
                f"GDB's symbols are not where the kernel is; kcov-show symbols --apply runs "
                f"{command}",
            )


def _identify(state: Fields) -> Any:
    return [state[key] for key in ("connection", "symbols", "kaslr_offset")] + [state.get("core")]


def _open_machine(link: Link, state: Fields, symbols: Sequence[str]) -> StubMachine:
    from kcovdbg.target.debug_files import unpack_symbols
    from kcovdbg.target.drgn.machines import StubMachine

    if not symbols:
        raise TargetError(
            "no kernel is loaded",
            hint="load the vmlinux of the kernel, with debug info: symbol-file VMLINUX",
        )
    with ElfFile(Path(symbols[0])) as image:
        decoder = stub_registers_of(image.header.machine)
        anchor = image.symbols.find(_ANCHOR)
    stub = LentStub(link, state, decoder, None if anchor is None else anchor.address)
    machine = StubMachine(stub, *unpack_symbols(symbols))
    machine.target.watchpoints = LentWatchpoints(link, machine, stub)
    return machine


def _find_debug_files(names: Sequence[str]) -> list[str]:
    """Return GDB's symbol files of the kernel and its modules, the kernel first.

    :param names: names of all that GDB has symbols of; some, as the vdso, are no files.
    """
    found: dict[str, bool] = {}
    for name in names:
        with suppress(TargetError, OSError), ElfFile(Path(name), name) as file:
            is_kernel = file.symbols.find("init_task") is not None
            if not file.is_core and (is_kernel or file.has_debug_info):
                found[name] = is_kernel
    return sorted(found, key=lambda name: not found[name])


def symbol_file_command(image: str, offset: int) -> str:
    """Return the command that moves GDB's symbols, in one line whatever the path is."""
    return f"symbol-file {escape(image)} -o {offset:#x}"
