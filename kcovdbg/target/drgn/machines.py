# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens QEMU guests through QMP, and machines behind a GDB stub, as drgn Programs and targets."""

from __future__ import annotations

import atexit
import contextlib
import re
import time
from collections.abc import Sequence
from typing import Final

import drgn

from kcovdbg.abi.address import PAGE_SIZE, WORD_MASK, page_align, page_align_down
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import EM_AARCH64, EM_X86_64, NT_PRSTATUS, VMCOREINFO, make_note
from kcovdbg.errors import GoneError, LimitError, TargetError
from kcovdbg.target import arm64_kernel, missing_vmcoreinfo
from kcovdbg.target.connection import parse_socket_address
from kcovdbg.target.debug_files import DebugFile, find_kernel_file, of_build, unpack_symbols
from kcovdbg.target.drgn.drgn_messages import collect_warnings, first_line
from kcovdbg.target.drgn.program_memory import (
    PHYSICAL_SIZE,
    CachedMemory,
    add_kernel_memory,
    add_memory,
    load_debug_info,
    open_empty_program,
    physical_memory,
    platform_of,
    vmcoreinfo_of,
    without_command_plugins,
)
from kcovdbg.target.drgn.programs import (
    VMCOREINFO_HINT,
    VMLINUX_HINT,
    find_image,
    load_symbols,
    make_target,
)
from kcovdbg.target.drgn.target import DrgnTarget
from kcovdbg.target.missing_vmcoreinfo import MismatchError, NotBootedError, find_offset
from kcovdbg.target.qmp import Qmp
from kcovdbg.target.rsp import RspClient, Stub
from kcovdbg.target.stub_registers import PtRegs, stub_registers_of
from kcovdbg.target.watchpoints import StubWatchpoints

# Seconds to wait for the kernel of a guest that boots, and between two attempts.
_BOOT_PATIENCE: Final = 30.0
_BOOT_INTERVAL: Final = 0.2
_MAX_CPUS: Final = 4096


@without_command_plugins()
def open_qemu(address: str, symbols: Sequence[str]) -> DrgnTarget:
    """Open a running QEMU guest through QMP.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = unpack_symbols(symbols)
    qmp = Qmp(parse_socket_address(address))
    try:
        with collect_warnings() as warnings:
            prog = drgn.Program()
            try:
                with qmp.limited():
                    prog.set_qemu_qmp(qmp.duplicate())
            except LimitError:
                raise
            except Exception as error:  # noqa: BLE001 (drgn raises bare Exceptions)
                raise TargetError(
                    f"could not open the guest at {address}: {first_line(error)}"
                ) from None
            is_direct = qmp.peer_memory_is_readable()
            is_described = bool(prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL)
            if not is_described or not is_direct:
                # drgn's own Program of a guest cannot be given a VMCOREINFO, and waits for the
                # monitor without a limit.
                read = physical_memory(prog) if is_direct else qmp.read_physical
                if is_described:
                    vmcoreinfo = prog["VMCOREINFO"].string_()
                else:
                    vmcoreinfo = _find_vmcoreinfo(qmp, files)
                prog = drgn.Program(prog.platform)
                add_memory(prog, read)
                prog.set_linux_kernel_custom(vmcoreinfo, True)
            if not is_described:
                notes.append(
                    "QEMU has no VMCOREINFO; the kernel was found by its interrupt descriptor table"
                )
            if not is_direct:
                notes.append(
                    "memory is read through QEMU's monitor, which is a thousand times slower: "
                    "run kcovdbg as root or as QEMU's user, on the same machine, with a unix "
                    "socket, to read it directly"
                )
            files = of_build(files, vmcoreinfo_of(prog).get("BUILD-ID"))
            notes += load_symbols(prog, files)
        return make_target(
            prog,
            f"QEMU guest at {address}",
            True,
            [*notes, *warnings.notes],
            files,
            qmp,
            read_notes=qmp.read_notes,
        )
    except BaseException:
        qmp.close()
        raise


def _find_vmcoreinfo(qmp: Qmp, files: Sequence[DebugFile]) -> bytes:
    """Return the VMCOREINFO in the guest's memory, for a guest whose QEMU has no VMCOREINFO, or
    does not send it over TCP. Wait for the kernel of a guest that boots.
    """
    hint = VMCOREINFO_HINT
    if qmp.address.path is None:
        hint = (
            "QEMU sends it over unix sockets only: use -qmp unix:PATH,server=on,wait=off, or give "
            "the vmlinux: -s VMLINUX"
        )
    kernel = find_kernel_file(file for file in files if file.header.machine == EM_X86_64)
    if kernel is None:
        raise TargetError(f"the guest at {qmp.address.text} has no VMCOREINFO", hint=hint)
    deadline = time.monotonic() + _BOOT_PATIENCE
    while True:
        try:
            return _find_in_memory(qmp, kernel)
        except (GoneError, MismatchError):
            raise
        except NotBootedError as error:
            if time.monotonic() >= deadline or not qmp.is_running():
                raise TargetError(
                    f"the guest at {qmp.address.text} has no VMCOREINFO: {error}", hint=error.hint
                ) from None
        except TargetError as error:
            raise TargetError(
                f"the guest at {qmp.address.text} has no VMCOREINFO, and {error}", hint=hint
            ) from None
        time.sleep(_BOOT_INTERVAL)


def _find_in_memory(qmp: Qmp, kernel: DebugFile) -> bytes:
    """Return the VMCOREINFO in the memory of an x86-64 guest.

    :raises NotBootedError: when the guest may have one later.
    :raises TargetError: when the guest has none.
    """
    registers = qmp.monitor("info registers")
    if missing_vmcoreinfo.is_before_kernel(registers):
        raise NotBootedError("no kernel runs yet", hint="let it run, then try again")
    cpu = missing_vmcoreinfo.parse_registers(registers)
    if cpu is None:
        raise TargetError("its registers are not those of x86-64")
    return find_image(qmp.address.text, cpu, qmp.read_physical, kernel)


def open_stub(address: str, symbols: Sequence[str]) -> DrgnTarget:
    """Open a machine through its GDB stub. The machine is stopped until the target is closed, which
    also happens at exit.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = unpack_symbols(symbols)
    client = RspClient(parse_socket_address(address))
    atexit.register(client.close)
    try:
        _require_kernel_file(files)
        client.attach()
        machine = StubMachine(client, files, [*notes, client.describe_run()])
        target = machine.target
        target.watchpoints = StubWatchpoints(
            client, target.name, machine.forget, machine.registers, target.stacks.unwind
        )
        return target
    except BaseException:
        client.close()
        raise


def find_ram(text: str) -> list[range]:
    """Return the ranges of whole pages of physical memory in QEMU's ``info mtree -f``, none if its
    form is unknown.

    Memory must not be read outside of them: that returns zeros, or changes the state of a device.
    """
    for view in text.replace("\r", "").split("FlatView ")[1:]:
        if not re.search(r'^ AS "memory"', view, re.MULTILINE):
            continue
        found: list[range] = []
        pattern = r"^\s*([0-9a-f]{16})-([0-9a-f]{16}) \(prio -?\d+, (?:nv-)?(?:ram|rom|romd)\)"
        for start, end in re.findall(pattern, view, re.MULTILINE):
            low, high = int(start, 16), int(end, 16) + 1
            if found and found[-1].stop == low:
                low = found.pop().start
            found.append(range(low, high))
        whole = [range(page_align(part.start), page_align_down(part.stop)) for part in found]
        return [pages for pages in whole if pages]
    return []


def _require_kernel_file(files: Sequence[DebugFile]) -> DebugFile:
    kernel = find_kernel_file(files)
    if kernel is None:
        raise TargetError("a GDB stub needs the kernel's vmlinux", hint=VMLINUX_HINT)
    return kernel


class StubMachine:
    """The kernel of a machine behind a GDB stub. Memory that was read is kept until the machine
    runs.

    :param files: debug info.
    :param notes: remarks on the debug info, for the user.
    :raises TargetError: when it cannot be opened.
    """

    def __init__(self, stub: Stub, files: Sequence[DebugFile], notes: Sequence[str]) -> None:
        self._stub = stub
        self._kernel = _require_kernel_file(files)
        self._paths = [file.path for file in files]
        self.registers = stub_registers_of(self._kernel.header.machine)
        self._memory = CachedMemory(stub.read, stub.block)
        found = self._find_physical() if stub.use_physical_memory() else None
        self._is_physical = found is not None
        if found is not None:
            self._vmcoreinfo = found
            prog = self._open_physical()
        else:
            stub.use_virtual_memory()
            self._memory.forget()
            self._vmcoreinfo = self._find_virtual()
            prog = self._open_virtual()
            notes = [*notes, "the stub reads virtual memory only, as mapped by the stopped CPU"]
        with collect_warnings() as warnings:
            notes = [*notes, *load_symbols(prog, files)]
        self.target = make_target(
            prog,
            f"GDB stub at {stub.where}",
            False,
            [*notes, *warnings.notes],
            files,
            stub,
            read_notes=self._read_notes if self._is_physical else bytes,
        )
        if not self._is_physical:
            self._use_registers()

    def forget(self, block: int | None = None) -> None:
        """Drop memory and registers that were read, as the machine has run.

        :param block: bytes to read at once from now on; by default a page, as walks need.
        """
        self._memory.forget(min(block or PAGE_SIZE, self._stub.block))
        self.target.forget()
        self._use_registers()

    def is_same_kernel(self) -> bool:
        """Return whether the machine still runs the kernel that was opened."""
        find = self._find_physical if self._is_physical else self._find_virtual
        try:
            return find() == self._vmcoreinfo
        except TargetError:
            return False

    def load_modules(self) -> bool:
        """Load the debug info of modules that the kernel has loaded since the last call.

        :return: whether any module was loaded or unloaded.
        """
        prog = self.target.prog

        def list_modules() -> set[tuple[str, tuple[tuple[int, int], ...]]]:
            return {(module.name, tuple(module.address_ranges or ())) for module in prog.modules()}

        before = list_modules()
        with collect_warnings(), contextlib.suppress(drgn.MissingDebugInfoError):
            load_debug_info(prog, self._paths)
        return list_modules() != before

    def _use_registers(self) -> None:
        """Unwind running tasks by the registers that their CPUs have now; those in the Program were
        read when it was opened.
        """

        def read_registers(cpu: int) -> PtRegs | None:
            return self.registers.parse(self._stub.registers(cpu + 1)) or None

        if self.registers.names:
            self.target.stacks.current_registers = read_registers

    def _read_notes(self) -> bytes:
        """Return the ELF notes of a dump of the machine: registers of each CPU, and VMCOREINFO."""
        notes = b""
        for cpu in range(_MAX_CPUS):
            status = self.registers.make_prstatus(cpu, self._stub.registers(cpu + 1))
            if status is None:
                break
            notes += make_note("CORE", NT_PRSTATUS, status)
        return notes + make_note(VMCOREINFO, 0, self._vmcoreinfo)

    def _open_physical(self) -> drgn.Program:
        ram = find_ram(self._stub.monitor("info mtree -f") or "")
        prog = open_empty_program(self._kernel.header.machine, self._read_notes())
        for part in ram or [range(PHYSICAL_SIZE)]:
            add_memory(prog, self._memory.read, part.start, len(part))
        add_kernel_memory(prog)
        return prog

    @without_command_plugins()
    def _open_virtual(self) -> drgn.Program:
        header = self._kernel.header
        prog = drgn.Program(platform_of(header))
        prog.set_linux_kernel_custom(self._vmcoreinfo, False)
        # The segment is added last, to replace one of set_linux_kernel_custom(), which translates
        # virtual addresses and needs physical memory.
        size = WORD_MASK if header.is_64bit else 1 << 32
        add_memory(prog, self._memory.read, size=size, is_physical=False)
        return prog

    def _find_physical(self) -> bytes | None:
        """Return the VMCOREINFO of the kernel in physical memory, None if the stub lacks the
        registers by which it is found.

        :raises TargetError: when it cannot be found.
        """
        machine = self._kernel.header.machine
        cpu: missing_vmcoreinfo.CpuRegisters | arm64_kernel.TranslationRegisters | None = None
        if machine == EM_X86_64:
            text = self._stub.monitor("info registers") or ""
            cpu = missing_vmcoreinfo.parse_registers(text)
        elif machine == EM_AARCH64:
            cpu = arm64_kernel.read_registers(self._stub.register)
        if cpu is None:
            return None
        return find_image(self._stub.where, cpu, self._memory.read, self._kernel)

    def _find_virtual(self) -> bytes:
        """Return the VMCOREINFO of the kernel in virtual memory, found at a KASLR offset that the
        machine can have.

        :raises TargetError: when it cannot be found.
        """
        with ElfFile(self._kernel.path, self._kernel.name) as image:
            offset = find_offset(image, self._memory.read, self._stub.kaslr_offsets)
            return missing_vmcoreinfo.describe_virtual(
                self._memory.read, image.symbols.addresses_of(missing_vmcoreinfo.SYMBOLS), offset
            )
