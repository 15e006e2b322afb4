# SPDX-License-Identifier: LGPL-2.1-or-later
"""drgn Programs of dumps, kernels and guests, with their debug info."""

from __future__ import annotations

import atexit
import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import drgn

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import (
    EM_AARCH64,
    EM_RISCV,
    EM_S390,
    EM_X86_64,
    ET_CORE,
    ET_REL,
    PT_LOAD,
    VMCOREINFO,
    ElfError,
    Header,
    NotElfError,
    find_qemu_cpus,
    find_vmcoreinfo,
    parse_vmcoreinfo,
)
from kcovdbg.errors import CapabilityError, GoneError, LimitError, ReadError, TargetError
from kcovdbg.target import arm64_kernel, stub_kernel
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.connection import Connection, MachineState, keeps_running
from kcovdbg.target.debug_files import find_debug_file, read_stripped
from kcovdbg.target.drgn.drgn_warnings import collect_warnings
from kcovdbg.target.drgn.empty_program import PHYSICAL_SIZE, SLICE_MACHINES, open_empty_program, platform_of
from kcovdbg.target.drgn.image_target import ImageTarget
from kcovdbg.target.drgn.kernel_memory import add_kernel_memory, exclude_per_cpu_data
from kcovdbg.target.drgn.program_types import reading_debug_info
from kcovdbg.target.drgn.target import DrgnTarget, read_vmcoreinfo
from kcovdbg.target.dump_file import working_path
from kcovdbg.target.end_signals import give_back_signals, holds_signals, take_signals
from kcovdbg.target.kaslr import MismatchError, check_image, find_offset
from kcovdbg.target.kdump_file import KdumpFile
from kcovdbg.target.qmp import Qmp
from kcovdbg.target.riscv_pages import LINKED_SYMBOLS, add_kaslr_offset, search_vmcoreinfo
from kcovdbg.target.rsp import RspClient, Stub, StubReadError
from kcovdbg.target.slice_file import NOTE_INCONSISTENT, NOTE_NAME, NOTE_SLICE
from kcovdbg.target.socket_address import parse_address
from kcovdbg.target.stub_kernel import read_lowcore_vmcoreinfo
from kcovdbg.target.stub_registers import StubRegisters
from kcovdbg.target.watchpoints import StubWatchpoints

_VMLINUX_HINT: Final = (
    "give the vmlinux with debug info: -s VMLINUX; it is in the build directory or the distribution's debug package"
)
_VMCOREINFO_HINT: Final = (
    "QEMU needs -device vmcoreinfo, the guest CONFIG_FW_CFG_SYSFS and CONFIG_KEXEC; or give the vmlinux: -s VMLINUX"
)
# Enough for drgn to open a dump whose physical memory only is read.
_ANY_VMCOREINFO: Final = (
    f"OSRELEASE=6.0.0\nPAGESIZE={PAGE_SIZE}\nSYMBOL(swapper_pg_dir)={PAGE_SIZE:x}\nKERNELOFFSET=0\n".encode()
)
# In the VMCOREINFO of arm64 kernels only.
_ARM64_LINE: Final = b"\nNUMBER(kimage_voffset)="
# Seconds to wait for the kernel of a guest that boots, and between looks at it.
_BOOT_PATIENCE: Final = 30.0
_BOOT_INTERVAL: Final = 0.2


class DebugFile(NamedTuple):
    """A file with debug info that the user gave, or that is in the directory of the dump."""

    name: str
    """Its name in messages."""
    path: Path
    """Of its contents: a temporary file if it is compressed."""
    is_kernel: bool
    build_id: str | None
    header: Header
    code: str | None = None
    """Path of the stripped image of the same build, which the user gave as well."""


def open_core(
    path: str, symbols: Sequence[str], name: str | None = None, *, unpacked: dumpfile.UnpackedFile | None = None
) -> DrgnTarget:
    """Open a crash dump or a slice.

    :param name: what messages call it, the path by default; with a name given, there are no notes on unpacking.
    :param unpacked: the dump, where the caller has unpacked it.
    :raises TargetError: when it cannot be opened.
    """
    if unpacked is None:
        unpacked = dumpfile.unpack_dump(path)
    try:
        target = _open_unpacked(path, symbols, name, unpacked)
    except TargetError as error:
        if unpacked.problem is None:
            raise
        raise TargetError("; ".join((*unpacked.damage, str(error))), hint=error.hint) from error
    target.damage = unpacked.damage
    if unpacked.problem is not None and (assumed := target.assume_cpus()) is not None:
        target.damage = (*target.damage, assumed)
        target.notes = (*target.notes, assumed)
    return target


def _open_unpacked(path: str, symbols: Sequence[str], name: str | None, unpacked: dumpfile.UnpackedFile) -> DrgnTarget:
    files, notes = _unpack_symbols(symbols)
    files = _of_build(files, dumpfile.read_vmcoreinfo(unpacked.path).get("BUILD-ID"))
    notes = [] if name is not None else [*unpacked.notes, *notes]
    with collect_warnings() as warnings:
        found = _find_dumped_kernel(path, unpacked.path, files)
        if found is not None:
            files, notes = [found.image, *(file for file in files if not file.is_kernel)], [*notes, *found.notes]
            vmcoreinfo: bytes | None = found.vmcoreinfo
        else:
            vmcoreinfo = _complete_vmcoreinfo(path, unpacked.path, files)
        prog = _set_core(path, unpacked.path, files, vmcoreinfo)
        if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
            raise TargetError(f"{path} has no VMCOREINFO", hint=_VMCOREINFO_HINT)
        add_kernel_memory(prog)
        notes += _load_symbols(prog, files, directory=Path(path).parent)
    notes += [*warnings.notes, *_describe_slice(unpacked.path)]
    connection = Connection(lambda: dumpfile.read_notes(unpacked.path), files=(path, *(file.name for file in files)))
    return _make_target(prog, name or path, False, notes, connection, code=_find_code(files))


def _describe_slice(path: Path) -> list[str]:
    """Return notes for the user on a slice; none on other dumps."""
    kinds = {note.type for note in dumpfile.parse_dump_notes(path) if note.name == NOTE_NAME}
    found = []
    if NOTE_SLICE in kinds:
        found.append("this is a slice: it has only the memory that kcovdbg's commands read")
    if NOTE_INCONSISTENT in kinds:
        found.append("the slice was taken while the kernel ran: it may be inconsistent")
    return found


def open_kernel(symbols: Sequence[str]) -> DrgnTarget:
    """Open the running kernel.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = _unpack_symbols(symbols)
    prog = drgn.Program()
    with collect_warnings() as warnings:
        try:
            prog.set_kernel()
        except PermissionError:
            raise TargetError(
                "no permission to read /proc/kcore",
                hint="CAP_SYS_RAWIO is needed: run kcovdbg with sudo; a kernel in lockdown refuses root as well",
            ) from None
        except FileNotFoundError:
            raise TargetError(
                "no /proc/kcore",
                hint="CONFIG_PROC_KCORE=y is needed, and containers hide the file; --demo opens a dump that comes with kcovdbg",
            ) from None
        except Exception as error:  # noqa: BLE001 (drgn raises bare Exceptions)
            raise TargetError(f"could not open /proc/kcore: {_one_line(error)}") from None
        files = _of_build(files, read_vmcoreinfo(prog).get("BUILD-ID"))
        notes += _load_symbols(prog, files)
    notes += warnings.notes
    connection = Connection(pause=keeps_running, state=lambda: MachineState.RUNNING)
    return _make_target(prog, "the running kernel", True, notes, connection, code=_find_code(files))


def open_image(symbols: Sequence[str], notes: Sequence[str] = ()) -> ImageTarget:
    """Open a kernel image and modules without memory.

    :param symbols: their paths; one of them is an image.
    :param notes: for the user, before those on the files.
    :raises TargetError: when one cannot be opened.
    """
    files, found = _unpack_symbols(symbols)
    kernel = next(file for file in files if file.is_kernel)
    modules = [str(file.path) for file in files if not file.is_kernel]
    with collect_warnings() as warnings:
        target = ImageTarget(kernel.name, str(kernel.path), modules, code=kernel.code)
    target.notes = (*notes, *found, *warnings.notes)
    return target


def open_qemu(address: str, symbols: Sequence[str]) -> DrgnTarget:
    """Open a running QEMU guest through QMP.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = _unpack_symbols(symbols)
    qmp = Qmp(parse_address(address))
    try:
        with collect_warnings() as warnings:
            prog = drgn.Program()
            try:
                with qmp.limited():
                    prog.set_qemu_qmp(qmp.duplicate())
            except LimitError:
                raise
            except Exception as error:  # noqa: BLE001 (drgn raises bare Exceptions)
                raise TargetError(f"could not open the guest at {address}: {_one_line(error)}") from None
            is_direct = qmp.peer_memory_is_readable()
            read = prog.read if is_direct else _make_monitor_reader(qmp)
            if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
                prog = _make_found_program(prog.platform, read, _find_vmcoreinfo(qmp, files))
                notes.append("QEMU has no VMCOREINFO; the kernel was found by its interrupt descriptor table")
            elif not is_direct:
                prog = _make_found_program(prog.platform, read, prog["VMCOREINFO"].string_())
            if not is_direct:
                notes.append(
                    "memory is read through QEMU's monitor, which is a thousand times slower: run kcovdbg as root or as QEMU's "
                    "user, on the same machine, with a unix socket, to read it directly"
                )
            files = _of_build(files, read_vmcoreinfo(prog).get("BUILD-ID"))
            notes += _load_symbols(prog, files)
        notes += warnings.notes
        connection = Connection(
            qmp.read_notes,
            qmp.paused,
            qmp.state,
            qmp.is_gone,
            qmp.stop_note,
            qmp.resume,
            close=qmp.close,
        )
        return _make_target(
            prog,
            f"QEMU guest at {address}",
            True,
            notes,
            connection,
            lambda: _stopped_program(prog, qmp),
            code=_find_code(files),
        )
    except BaseException:
        qmp.close()
        raise


@contextlib.contextmanager
def _stopped_program(prog: drgn.Program, qmp: Qmp) -> Iterator[drgn.Program]:
    """Stop a guest for a block; yields a Program that has the registers of its CPUs, as a dump has.

    :raises CapabilityError: when QEMU does not return the registers.
    """
    platform = prog.platform
    assert platform is not None
    read = prog.read

    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        data: bytes = read(address, count, True)
        return data

    with qmp.paused():
        try:
            vmcoreinfo = prog["VMCOREINFO"].string_()
            found = open_empty_program(SLICE_MACHINES[platform.arch], qmp.read_notes(), vmcoreinfo)
        except (KeyError, TargetError) as error:
            raise CapabilityError(f"the registers of the guest's CPUs are unavailable: {error}") from None
        found.add_memory_segment(0, PHYSICAL_SIZE, answer, physical=True)
        add_kernel_memory(found)
        paths = [path for module in prog.modules() if (path := working_path(module.debug_file_path)) is not None]
        # The warnings are those given when the target was opened.
        with collect_warnings(), contextlib.suppress(drgn.MissingDebugInfoError):
            found.load_debug_info(paths, default=True)
        exclude_per_cpu_data(found)
        yield found


def _make_monitor_reader(qmp: Qmp) -> Callable[[int, int, bool], bytes]:
    """Return a reader of a guest's memory that keeps the limits of replies, which drgn's own talk to the monitor does not."""

    def read(address: int, count: int, physical: bool) -> bytes:
        del physical
        try:
            return qmp.read_physical(address, count)
        except StubReadError as error:
            raise drgn.FaultError(str(error), address) from None

    return read


def _make_found_program(
    platform: drgn.Platform | None, read: Callable[[int, int, bool], bytes], vmcoreinfo: bytes
) -> drgn.Program:
    """Return a Program of a kernel in a guest's memory; the Program that drgn makes of a guest takes no VMCOREINFO.

    :param read: reads physical memory.
    """
    prog = drgn.Program(platform)

    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        return read(address, count, True)

    prog.add_memory_segment(0, PHYSICAL_SIZE, answer, physical=True)
    prog.set_linux_kernel_custom(vmcoreinfo, True)
    return prog


def _find_vmcoreinfo(qmp: Qmp, files: Sequence[DebugFile]) -> bytes:
    """Return the VMCOREINFO in the guest's memory: QEMU may not have it, and does not send it over TCP.

    Waits for the kernel of a guest that boots.
    """
    if qmp.address.path is None:
        hint = "QEMU sends it over unix sockets only: use -qmp unix:PATH,server=on,wait=off, or give the vmlinux: -s VMLINUX"
    else:
        hint = _VMCOREINFO_HINT
    kernel = next((file for file in files if file.is_kernel and file.header.machine == EM_X86_64), None)
    if kernel is None:
        raise TargetError(f"the guest at {qmp.address.text} has no VMCOREINFO", hint=hint)
    deadline = time.monotonic() + _BOOT_PATIENCE
    while True:
        try:
            return _find_in_memory(qmp, kernel)
        except stub_kernel.NotBootedError as error:
            if time.monotonic() >= deadline or not qmp.is_running():
                raise TargetError(f"the guest at {qmp.address.text} has no VMCOREINFO: {error}", hint=error.hint) from None
        except (GoneError, MismatchError):
            raise
        except TargetError as error:
            raise TargetError(f"the guest at {qmp.address.text} has no VMCOREINFO, and {error}", hint=hint) from None
        time.sleep(_BOOT_INTERVAL)


def _find_in_memory(qmp: Qmp, kernel: DebugFile) -> bytes:
    """Return the VMCOREINFO in the memory of an x86-64 guest.

    :raises NotBootedError: when there may be one later.
    :raises TargetError: when there is none.
    """
    registers = qmp.monitor("info registers")
    if stub_kernel.is_before_kernel(registers):
        raise stub_kernel.NotBootedError("no kernel runs yet", hint="let it run, then try again")
    cpu = stub_kernel.parse_registers(registers)
    if cpu is None:
        raise TargetError("its registers are not those of x86-64")
    return _find_kernel(qmp.address.text, cpu, qmp.read_physical, kernel).vmcoreinfo


def open_stub(address: str, symbols: Sequence[str]) -> DrgnTarget:
    """Open a machine through its GDB stub. It is stopped until the target is closed, at exit at the latest.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = _unpack_symbols(symbols)
    kernel = _find_kernel_file(files)
    client = RspClient(parse_address(address))
    # Until it is closed, as the machine is stopped so long.
    taken = take_signals()

    @holds_signals
    def close() -> None:
        client.close()
        give_back_signals(taken)

    atexit.register(close)
    try:
        client.attach()
        connection = Connection(
            state=client.state,
            is_gone=client.is_gone,
            stop_note=client.stop_note,
            resume=client.resume,
            leave_stopped=client.leave_stopped,
            close=close,
        )
        notes.append(_describe_run(client))
        machine = StubMachine(client, kernel, files, notes, f"GDB stub at {address}", connection)
        target = machine.target
        target.watchpoints = StubWatchpoints(client, target.name, machine.forget, machine.registers, target.stacks.unwind)
        return target
    except BaseException:
        close()
        raise


def open_lent_stub(stub: Stub, symbols: Sequence[str], name: str, connection: Connection) -> StubMachine:
    """Open the machine behind a stub that another debugger is connected to.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = _unpack_symbols(symbols)
    return StubMachine(stub, _find_kernel_file(files), files, notes, name, connection)


def _find_kernel_file(files: Sequence[DebugFile]) -> DebugFile:
    kernel = next((file for file in files if file.is_kernel), None)
    if kernel is None:
        raise TargetError("a GDB stub needs the kernel's vmlinux", hint=_VMLINUX_HINT)
    return kernel


def _describe_run(client: RspClient) -> str:
    if not client.was_running:
        return "the machine was stopped before kcovdbg attached, and remains so"
    note = "the machine is stopped while kcovdbg is attached"
    # QMP answers this.
    return f"{note}; its stub does not report whether it was running; it runs afterwards" if client.is_run_assumed else note


def _find_kernel(
    where: str, cpu: stub_kernel.CpuRegisters, physical: stub_kernel.ReadMemory, kernel: DebugFile
) -> stub_kernel.FoundKernel:
    """Find the kernel of a vmlinux in physical memory.

    :param where: what messages call the machine or the dump.
    :raises NotBootedError: when there may be one later.
    :raises MismatchError: when it is another kernel.
    :raises TargetError: when there is none.
    """
    with ElfFile(kernel.path, kernel.name) as image:
        return stub_kernel.find_kernel(
            where, cpu, physical, _read_addresses(kernel), lambda offset, read: check_image(image, offset, read, {})
        )


class _DumpedKernel(NamedTuple):
    """The kernel in a dump that has no VMCOREINFO."""

    vmcoreinfo: bytes
    image: DebugFile
    notes: tuple[str, ...]
    """For the user."""


def _find_dumped_kernel(name: str, path: Path, files: Sequence[DebugFile]) -> _DumpedKernel | None:
    """Return the kernel in a dump of QEMU whose VMCOREINFO is missing, or does not say where it is; None for other dumps.

    :param name: what messages call the dump.
    :raises TargetError: when it cannot be found.
    """
    notes = [*dumpfile.parse_dump_notes(path)]
    cpus = [stub_kernel.CpuRegisters(*cpu) for cpu in find_qemu_cpus(notes)]
    info = find_vmcoreinfo(notes)
    # That of every kernel with KCOV for x86-64 has it; without, drgn would take the offset to be 0.
    lack = "VMCOREINFO" if not info else "KERNELOFFSET in its VMCOREINFO" if "KERNELOFFSET" not in info else None
    if lack is None or not (cpus or (info and _is_x86_core(path))):
        return None
    given = [file for file in files if file.is_kernel]
    images = [file for file in given or _find_images(Path(name).parent) if file.header.machine == EM_X86_64]
    if not images or not cpus:
        raise TargetError(f"{name} has no {lack}", hint=_VMCOREINFO_HINT)
    read = _make_physical_reader(_open_physical(name, path, images[:1]))
    failure: TargetError | None = None
    for image in images:
        for cpu in cpus:
            try:
                vmcoreinfo = _find_kernel(name, cpu, read, image).vmcoreinfo
            except MismatchError as error:
                failure = TargetError(str(error), hint=f"give the vmlinux of the same build; {image.name} is of another")
            except TargetError as error:
                failure = failure or TargetError(
                    f"{name} has no {lack}, and no kernel was found in it: {error}",
                    hint="dump the guest again when its kernel has booted",
                )
            else:
                note = f"{name} has no {lack}; the kernel was found by its interrupt descriptor table"
                return _DumpedKernel(vmcoreinfo, image, (note,) if given else (note, _beside_dump(image)))
    assert failure is not None
    raise failure


def _is_x86_core(path: Path) -> bool:
    if dumpfile.identify(path) is not dumpfile.FileKind.CORE:
        return False
    with ElfFile(path) as core:
        return core.header.machine == EM_X86_64


def _complete_vmcoreinfo(name: str, path: Path, files: Sequence[DebugFile]) -> bytes | None:
    """Return the VMCOREINFO of a dump with what drgn needs and the dump's notes lack; None where they lack nothing.

    :param name: what messages call the dump.
    :raises TargetError: when it cannot be found.
    """
    if dumpfile.identify(path) is not dumpfile.FileKind.CORE:
        return None
    with ElfFile(path, name) as core:
        machine = core.header.machine
        if machine not in (EM_RISCV, EM_S390):
            return None
        found = next((note.desc for note in dumpfile.parse_dump_notes(path) if note.name == VMCOREINFO), None)
        if found is None:
            read = _make_physical_reader(_open_physical(name, path, files))
            found = read_lowcore_vmcoreinfo(read) if machine == EM_S390 else search_vmcoreinfo(core, read)
    return _with_kaslr_offset(found, files, Path(name).parent) if found is not None and machine == EM_RISCV else found


def _with_kaslr_offset(vmcoreinfo: bytes, files: Sequence[DebugFile], directory: Path | None = None) -> bytes:
    """Return the VMCOREINFO of a RISC-V kernel with its KASLR offset, which is in the vmlinux only.

    :param directory: one to look for a vmlinux in.
    """
    info = parse_vmcoreinfo(vmcoreinfo)
    kernel = next((file for file in files if file.is_kernel), None)
    if kernel is None and directory is not None:
        kernel = _find_vmlinux(directory, info.get("OSRELEASE", "unknown"), info.get("BUILD-ID"))
    if kernel is None:
        return vmcoreinfo
    with ElfFile(kernel.path, kernel.name) as image:
        found = {symbol.name: symbol.address for symbol in map(image.symbols.find, LINKED_SYMBOLS) if symbol is not None}
    return add_kaslr_offset(vmcoreinfo, found)


def _open_physical(name: str, path: Path, files: Sequence[DebugFile]) -> drgn.Program:
    """Return a Program that reads the physical memory of a dump; drgn opens QEMU's only with a VMCOREINFO."""
    return _set_core(name, path, files, _ANY_VMCOREINFO)


def _make_physical_reader(prog: drgn.Program) -> stub_kernel.ReadMemory:
    def read(address: int, size: int) -> bytes:
        try:
            data: bytes = prog.read(address, size, True)
        except drgn.FaultError as error:
            raise StubReadError(str(error)) from None
        return data

    return read


def _read_addresses(kernel: DebugFile) -> dict[str, int]:
    """Return the addresses in a vmlinux of the symbols that a kernel is found by."""
    with ElfFile(kernel.path, kernel.name) as image:
        found = (image.symbols.find(name) for name in {*stub_kernel.SYMBOLS, *arm64_kernel.SYMBOLS})
        return {symbol.name: symbol.address for symbol in found if symbol is not None}


class StubMachine:
    """The kernel of a machine behind a GDB stub. What was read of it is kept until it has run.

    :param kernel: its image.
    :param files: all debug info.
    :param notes: for the user, on these.
    :raises TargetError: when it cannot be opened.
    """

    def __init__(
        self,
        stub: Stub,
        kernel: DebugFile,
        files: Sequence[DebugFile],
        notes: Sequence[str],
        name: str,
        connection: Connection,
    ) -> None:
        self._stub = stub
        self._kernel = kernel
        self._paths = [file.path for file in files]
        self.registers = StubRegisters(kernel.header.machine)
        self._memory = stub_kernel.CachedMemory(stub.read, stub.block)
        found = self._find_physical() if stub.use_physical_memory() else None
        self._is_physical = found is not None
        if found is not None:
            self._vmcoreinfo = found.vmcoreinfo
            prog = self._open_physical()
        else:
            stub.use_virtual_memory()
            self._memory.forget()
            self._vmcoreinfo = self._find_virtual()
            prog = self._open_virtual()
            notes = [*notes, "the stub reads virtual memory only, as mapped by the stopped CPU"]
        with collect_warnings() as warnings:
            notes = [*notes, *_load_symbols(prog, files)]
        connection = replace(connection, read_notes=self._read_notes if self._is_physical else bytes)
        self.target = _make_target(prog, name, False, [*notes, *warnings.notes], connection, code=_find_code(files))
        if not self._is_physical:
            self._use_registers()

    def forget(self, block: int | None = None) -> None:
        """Read memory and registers anew: the machine has run.

        :param block: bytes to read at once from now on; by default what serves a walk.
        """
        self._memory.forget(block or self._stub.block)
        self.target.forget()
        self._use_registers()

    def is_same_kernel(self) -> bool:
        """Return whether the machine still runs the kernel that was opened."""
        try:
            if not self._is_physical:
                return self._find_virtual() == self._vmcoreinfo
            found = self._find_physical()
            return found is not None and found.vmcoreinfo == self._vmcoreinfo
        except TargetError:
            return False

    def load_modules(self) -> bool:
        """Load the debug info of modules that were loaded since; return whether any module came or went."""
        prog = self.target.prog

        def find() -> set[tuple[str, tuple[tuple[int, int], ...]]]:
            return {(module.name, tuple(module.address_ranges or ())) for module in prog.modules()}

        before = find()
        with collect_warnings(), contextlib.suppress(drgn.MissingDebugInfoError):
            prog.load_debug_info(self._paths, default=True)
        return find() != before

    def _use_registers(self) -> None:
        """Unwind running tasks by the registers that their CPUs have now; the Program has those of when it was opened."""
        if self.registers.are_known:
            self.target.stacks.current_registers = lambda cpu: self.registers.parse(self._stub.registers(cpu + 1)) or None

    def _read_notes(self) -> bytes:
        return stub_kernel.make_notes(self._stub, self.registers, self._vmcoreinfo)

    def _open_physical(self) -> drgn.Program:
        ram = stub_kernel.find_ram(self._stub.monitor("info mtree -f") or "")
        prog = open_empty_program(self._kernel.header.machine, self._read_notes())
        for start, end in ram or [stub_kernel.RamRange(0, PHYSICAL_SIZE)]:
            prog.add_memory_segment(start, end - start, _make_reader(self._memory.read), physical=True)
        add_kernel_memory(prog)
        return prog

    def _open_virtual(self) -> drgn.Program:
        header = self._kernel.header
        prog = drgn.Program(platform_of(header))
        prog.set_linux_kernel_custom(self._vmcoreinfo, False)
        # Added last: setting the kernel adds a segment that translates virtual addresses, which needs physical memory.
        prog.add_memory_segment(0, WORD_MASK if header.is_64bit else 1 << 32, _make_reader(self._memory.read))
        return prog

    def _find_physical(self) -> stub_kernel.FoundKernel | None:
        """Find the kernel in physical memory; return None where the stub lacks the registers for that.

        :raises TargetError: when it cannot be found.
        """
        kernel, stub = self._kernel, self._stub
        if kernel.header.machine == EM_X86_64:
            text = stub.monitor("info registers")
            cpu = stub_kernel.parse_registers(text) if text else None
            return None if cpu is None else _find_kernel(stub.where, cpu, self._memory.read, kernel)
        if kernel.header.machine == EM_AARCH64:
            translation = arm64_kernel.read_registers(stub.register)
            if translation is not None:
                with ElfFile(kernel.path, kernel.name) as image:
                    return arm64_kernel.find_kernel(
                        stub.where,
                        translation,
                        self._memory.read,
                        _read_addresses(kernel),
                        lambda offset, read: check_image(image, offset, read, {}),
                    )
        return None

    def _find_virtual(self) -> bytes:
        """Return the VMCOREINFO of the kernel in virtual memory, where its KASLR offset is one that the machine can have.

        :raises TargetError: when it cannot be found.
        """

        def read(address: int, size: int) -> bytes:
            try:
                return self._memory.read(address, size)
            except StubReadError as error:
                raise ReadError(f"could not read the kernel's memory: {error}", address) from None

        with ElfFile(self._kernel.path, self._kernel.name) as image:
            offset = find_offset(image, read, self._stub.kaslr_offsets)
        return stub_kernel.describe_virtual(self._memory.read, _read_addresses(self._kernel), offset)


def _make_reader(read: Callable[[int, int], bytes]) -> Callable[[int, int, int, bool], bytes]:
    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        try:
            return read(address, count)
        except StubReadError as error:
            raise drgn.FaultError(f"could not read through the stub: {error}", address) from None

    return answer


def _set_core(name: str, path: Path, files: Sequence[DebugFile], vmcoreinfo: bytes | None = None) -> drgn.Program:
    """Return the Program of a dump.

    :param vmcoreinfo: of a dump that has none.
    """
    try:
        prog = drgn.Program(vmcoreinfo=vmcoreinfo)
        prog.set_core_dump(path)
        _add_memory_at_zero(prog, path, name)
        return prog
    except Exception as error:  # noqa: BLE001 (drgn raises bare Exceptions for errors of libkdumpfile)
        # QEMU's kdump-compressed dumps do not have their machine.
        if "ARCH_NAME" not in str(error):
            raise _describe_core_error(name, error) from None
    notes = dumpfile.read_notes(path)
    if _ARM64_LINE in notes:
        return _open_by_pages(path, name, notes)
    kernel = next((file for file in files if file.is_kernel), None)
    try:
        prog = drgn.Program(platform_of(kernel.header) if kernel is not None else drgn.host_platform, vmcoreinfo=vmcoreinfo)
        prog.set_core_dump(path)
        return prog
    except Exception as error:  # noqa: BLE001 (as above)
        raise _describe_core_error(name, error) from None


def _add_memory_at_zero(prog: drgn.Program, path: Path, name: str) -> None:
    """Add the physical memory of a dump that QEMU made of an s390x guest.

    All of it is one segment at address 0, which drgn takes for a segment without a physical address.
    """
    if prog.platform is None or prog.platform.arch != drgn.Architecture.S390X:
        return
    # Open as long as the Program exists.
    core = ElfFile(path, name)
    segments = [segment for segment in core.segments if segment.type == PT_LOAD]
    if len(segments) != 1 or segments[0].paddr:
        core.close()
        return
    (memory,) = segments

    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del address, physical
        try:
            return core.read_at(memory.offset + offset, count)
        except ElfError as error:
            raise drgn.FaultError(str(error), offset) from None

    prog.add_memory_segment(0, memory.filesz, answer, physical=True)


def _open_by_pages(path: Path, name: str, notes: bytes) -> drgn.Program:
    """Return the Program of a kdump-compressed dump that QEMU made of an arm64 guest.

    Its blocks are of 64 KiB whatever the page size is, and libkdumpfile then has no page size.
    """
    # Open as long as the Program exists.
    dump = KdumpFile(path.open("rb"), name)

    @holds_signals
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        try:
            return dump.read_physical(address, count)
        except ReadError as error:
            raise drgn.FaultError(str(error), address) from None

    prog = open_empty_program(EM_AARCH64, notes)
    prog.add_memory_segment(0, PHYSICAL_SIZE, answer, physical=True)
    return prog


def _describe_core_error(name: str, error: Exception) -> TargetError:
    if isinstance(error, PermissionError):
        return TargetError(
            f"{name}: no permission to read", hint="dumps are often readable by root only: run kcovdbg with sudo"
        )
    return TargetError(
        f"could not open {name} as a dump: {_one_line(error)}", hint="it may be truncated or damaged: copy it again"
    )


def _unpack_symbols(symbols: Sequence[str]) -> tuple[list[DebugFile], list[str]]:
    """Unpack and check the files given with -s, before anything that takes long; return them and notes for the user."""
    files: list[DebugFile] = []
    images: list[tuple[str, Path, str, str | None]] = []
    notes: list[str] = []
    for name in symbols:
        unpacked = dumpfile.unpack(name)
        notes += unpacked.notes
        stripped = read_stripped(unpacked.path)
        if stripped is None:
            files.append(_check_debug_file(name, unpacked.path))
        else:
            images.append((name, unpacked.path, *stripped))
    for name, path, build_id, link in images:
        found = next((file for file in files if file.build_id == build_id), None)
        if found is None:
            debug_file = find_debug_file(Path(name), build_id, link)
            # Without one, the error of the image.
            found = _check_debug_file(name, path) if debug_file is None else _check_debug_file(str(debug_file), debug_file)
            files.append(found)
        files = [file._replace(code=str(path)) if file is found else file for file in files]
        notes.append(f"debug info: {found.name}; {name} has none, its code is read for coverage points")
    return files, notes


def _of_build(files: list[DebugFile], wanted: str | None) -> list[DebugFile]:
    """Leave out the images of other builds, where a folder has those of several.

    :param wanted: the kernel's build ID, None if unknown.
    """
    is_there = any(file.is_kernel and file.build_id == wanted for file in files)
    return [file for file in files if not file.is_kernel or not is_there or file.build_id == wanted]


def _find_code(files: Iterable[DebugFile]) -> str | None:
    """Return the stripped image that has the kernel's code, None where the image with debug info has it."""
    return next((file.code for file in files if file.is_kernel), None)


def _check_debug_file(name: str, path: Path) -> DebugFile:
    try:
        with ElfFile(path, name) as file:
            header = file.header
            if header.type == ET_CORE:
                raise TargetError(f"{name} is a dump, not debug info", hint="give dumps with -c, or both: kcovdbg VMLINUX DUMP")
            if not file.has_debug_info:
                raise TargetError(
                    f"{name} has no debug info (DWARF)",
                    hint="build with CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y, or install the distribution's debug package",
                )
            return DebugFile(name, path, header.type != ET_REL, file.build_id, header)
    except NotElfError:
        raise TargetError(
            f"{name} is not a vmlinux: not an ELF file",
            hint="vmlinuz and bzImage, which machines boot, have no debug info; vmlinux is in the build directory",
        ) from None


def _load_symbols(prog: drgn.Program, files: Sequence[DebugFile], *, directory: Path | None = None) -> list[str]:
    """Load the debug info that the user gave, or else what is found; return notes for the user.

    :param directory: one to look for a vmlinux in.
    :raises TargetError: when there is none for the kernel.
    """
    notes: list[str] = []
    info = read_vmcoreinfo(prog)
    release = info.get("OSRELEASE", "unknown")
    wanted = info.get("BUILD-ID")
    kernel = next((file for file in files if file.is_kernel), None)
    if kernel is not None:
        _check_match(kernel, release, wanted)
    elif directory is not None:
        kernel = _find_vmlinux(directory, release, wanted)
        if kernel is not None:
            files = [*files, kernel]
            notes.append(_beside_dump(kernel))
    with reading_debug_info(), contextlib.suppress(drgn.MissingDebugInfoError):
        prog.load_debug_info([file.path for file in files], default=True)
    main = prog.main_module()
    if main.wants_debug_file() and kernel is not None:
        # drgn does not match them when VMCOREINFO has no build ID; they were matched above.
        main.try_file(kernel.path, force=True)
    if main.wants_debug_file():
        detail = f" (build ID {wanted})" if wanted else ""
        raise TargetError(f"no vmlinux for kernel {release}{detail}", hint=_VMLINUX_HINT)
    return notes


def _check_match(kernel: DebugFile, release: str, wanted: str | None) -> None:
    hint = f"the kernel's release is {release}: give the vmlinux of the same build"
    if wanted is not None and kernel.build_id is not None:
        # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in v5.9).
        if wanted != kernel.build_id:
            raise TargetError(
                f"{kernel.name} does not match: its build ID is {kernel.build_id}, the kernel's {wanted}", hint=hint
            )
    elif not dumpfile.find_text(kernel.path, f"Linux version {release} ".encode()):
        raise TargetError(f"{kernel.name} does not match: not of release {release}", hint=hint)


def _find_vmlinux(directory: Path, release: str, wanted: str | None) -> DebugFile | None:
    for found in _find_images(directory, f"-{release}"):
        try:
            _check_match(found, release, wanted)
        except TargetError:
            # The user did not give it: that it is another kernel's is no error.
            continue
        return found
    return None


def _find_images(directory: Path, suffix: str = "") -> Iterator[DebugFile]:
    """Yield the images with debug info in the directory of a dump.

    :param suffix: of further names to look for.
    """
    for name in dict.fromkeys(("vmlinux", "vmlinux.zst", f"vmlinux{suffix}", f"vmlinux{suffix}.zst", "vmlinux.debug")):
        path = directory / name
        if path.is_file():
            # The user did not give it: that it is something else is no error.
            with contextlib.suppress(TargetError):
                yield _check_debug_file(str(path), dumpfile.unpack(path).path)


def _beside_dump(kernel: DebugFile) -> str:
    return f"debug info: {kernel.name}, from the directory of the dump"


def _make_target(
    prog: drgn.Program,
    name: str,
    live: bool,
    notes: list[str],
    connection: Connection,
    stopped: Callable[[], AbstractContextManager[drgn.Program]] | None = None,
    *,
    code: str | None = None,
) -> DrgnTarget:
    try:
        return DrgnTarget(prog, name, live, notes, connection, stopped, code)
    except (drgn.FaultError, LookupError, OSError) as error:
        if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EPERM:
            raise TargetError(f"{name}: no permission to read", hint="run kcovdbg with sudo") from None
        raise TargetError(f"could not read {name}: {_one_line(error)}", hint=_reading_hint(error)) from None


def _reading_hint(error: Exception) -> str:
    # libkdumpfile does not find the page size of the kdump-compressed dumps that QEMU writes of arm64 guests.
    if "No way to translate" in str(error):
        return (
            "libkdumpfile cannot walk this machine's page tables: dump it as ELF, which is QEMU's dump-guest-memory without -z"
        )
    return "it may be truncated or damaged"


def _one_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
