# SPDX-License-Identifier: LGPL-2.1-or-later
"""Makes drgn Programs of dumps, kernels and guests, finds their debug info, and says in one line what is wrong with them."""

from __future__ import annotations

import atexit
import contextlib
import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import drgn

from kcovdbg.errors import TargetError
from kcovdbg.target import dumpfile, elf, slices, standing
from kcovdbg.target.address import parse_address
from kcovdbg.target.bare import PHYSICAL_SIZE, open_bare
from kcovdbg.target.complaints import collect_warnings
from kcovdbg.target.drgn import DrgnTarget, read_vmcoreinfo, refuse_user_addresses
from kcovdbg.target.origin import Origin, moves_on
from kcovdbg.target.qmp import Qmp
from kcovdbg.target.rsp import RspClient, StubReadError

_PLATFORMS: Final = {
    3: drgn.Architecture.I386,
    21: drgn.Architecture.PPC64,
    22: drgn.Architecture.S390X,
    40: drgn.Architecture.ARM,
    62: drgn.Architecture.X86_64,
    183: drgn.Architecture.AARCH64,
    243: drgn.Architecture.RISCV64,
}
_EM_X86_64: Final = 62
_ET_REL: Final = 1
_VMLINUX_HINT: Final = (
    "give the vmlinux with debug info by -s VMLINUX: from the build directory or the distribution's debug package"
)


class DebugFile(NamedTuple):
    """A file with debug info that the user gave, or that lies beside the dump."""

    name: str
    """In the user's words."""
    path: Path
    """Where it can be read; a temporary file if it was compressed."""
    is_kernel: bool
    build_id: str | None
    header: elf.Header


def open_core(path: str, symbols: Sequence[str], name: str | None = None) -> DrgnTarget:
    """Open a crash dump or a slice.

    :param name: what to call it, by default the path; what has a name of ours needs no word on how its files were unpacked.
    :raises TargetError: when it can't be, with the reason.
    """
    unpacked = dumpfile.unpack(path)
    dumpfile.check_whole(unpacked.path, path)
    files, notes = _unpack_symbols(symbols)
    notes = [] if name is not None else [*unpacked.notes, *notes]
    with collect_warnings(notes):
        prog = _set_core(path, unpacked.path, files)
        if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
            raise TargetError(
                f"{path} says nothing about a kernel: it has no VMCOREINFO",
                hint="dumps of QEMU guests need -device vmcoreinfo, and a kernel with CONFIG_FW_CFG_SYSFS and CONFIG_KEXEC",
            )
        refuse_user_addresses(prog)
        _load_symbols(prog, files, beside=Path(path).parent, notes=notes)
    notes += _describe_slice(unpacked.path)
    return _make_target(prog, name or path, False, notes, Origin(read_notes=lambda: dumpfile.read_notes(unpacked.path)))


def _describe_slice(path: Path) -> list[str]:
    """Say what is special about a slice; nothing for other dumps."""
    kinds = {note.type for note in elf.parse_notes(dumpfile.read_notes(path), "<") if note.name == slices.NOTE_NAME}
    found = []
    if slices.NOTE_SLICE in kinds:
        found.append("this is a slice: it holds what kcovdbg's commands read, and nothing else of the kernel's memory")
    if slices.NOTE_INCONSISTENT in kinds:
        found.append("it was taken while the kernel ran: what it says may contradict itself")
    return found


def open_kernel(symbols: Sequence[str]) -> DrgnTarget:
    """Open the running kernel.

    :raises TargetError: when it can't be, with the reason.
    """
    files, notes = _unpack_symbols(symbols)
    prog = drgn.Program()
    with collect_warnings(notes):
        try:
            prog.set_kernel()
        except PermissionError:
            raise TargetError(
                "no permission to read /proc/kcore",
                hint="it takes CAP_SYS_RAWIO: run kcovdbg by sudo; a kernel under lockdown refuses root too",
            ) from None
        except FileNotFoundError:
            raise TargetError(
                "this kernel has no /proc/kcore",
                hint="it takes CONFIG_PROC_KCORE=y, and containers hide it; --demo shows a dump that comes with kcovdbg",
            ) from None
        except Exception as error:  # noqa: BLE001 (drgn raises plain Exception for what isn't Python's)
            raise TargetError(f"/proc/kcore can't be opened: {_one_line(error)}") from None
        _load_symbols(prog, files, beside=None, notes=notes)
    return _make_target(prog, "the running kernel", True, notes, Origin(standstill=moves_on))


def open_qemu(address: str, symbols: Sequence[str]) -> DrgnTarget:
    """Open a running QEMU guest through QMP.

    :raises TargetError: when it can't be, with the reason.
    """
    files, notes = _unpack_symbols(symbols)
    qmp = Qmp(parse_address(address))
    try:
        with collect_warnings(notes):
            prog = drgn.Program()
            try:
                prog.set_qemu_qmp(qmp.duplicate())
            except Exception as error:  # noqa: BLE001 (drgn raises plain Exception for what isn't Python's)
                raise TargetError(f"the guest at {address} can't be opened: {_one_line(error)}") from None
            if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
                prog = _make_found_program(prog, _find_vmcoreinfo(qmp, files))
                notes.append("QEMU gave no VMCOREINFO; the kernel was found by its interrupt table")
            if not qmp.peer_memory_is_readable():
                notes.append(
                    "memory is read through QEMU's monitor, a thousand times slower than otherwise: run kcovdbg as root or as "
                    "QEMU's user, on its machine, with a unix socket"
                )
            _load_symbols(prog, files, beside=None, notes=notes)
        origin = Origin(read_notes=qmp.read_notes, standstill=qmp.paused, close=qmp.close)
        return _make_target(prog, f"QEMU guest at {address}", True, notes, origin)
    except BaseException:
        qmp.close()
        raise


def _make_found_program(memory: drgn.Program, vmcoreinfo: bytes) -> drgn.Program:
    """Make a Program of a kernel that was found; one that QMP has been set for can't be told any more.

    :param memory: reads physical memory.
    """
    prog = drgn.Program(memory.platform)
    read = memory.read

    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        data: bytes = read(address, count, True)
        return data

    prog.add_memory_segment(0, PHYSICAL_SIZE, answer, physical=True)
    prog.set_linux_kernel_custom(vmcoreinfo, True)
    return prog


def _find_vmcoreinfo(qmp: Qmp, files: Sequence[DebugFile]) -> bytes:
    """Read VMCOREINFO out of the guest's memory: over TCP QEMU can't hand it over, and it may not have it."""
    if qmp.address.path is None:
        hint = "QEMU hands it over by unix sockets only: use -qmp unix:PATH,server=on,wait=off, or give a vmlinux by -s"
    else:
        hint = "QEMU needs -device vmcoreinfo, the guest CONFIG_FW_CFG_SYSFS and CONFIG_KEXEC; or give a vmlinux by -s"
    kernel = next((file for file in files if file.is_kernel and file.header.machine == _EM_X86_64), None)
    cpu = standing.parse_registers(qmp.monitor("info registers")) if kernel is not None else None
    if kernel is None or cpu is None:
        raise TargetError(f"the guest at {qmp.address.text} gave no VMCOREINFO", hint=hint)
    try:
        return standing.find_kernel(qmp.address.text, cpu, qmp.read_physical, _read_links(kernel)).vmcoreinfo
    except TargetError as error:
        raise TargetError(f"the guest at {qmp.address.text} gave no VMCOREINFO, and {error}", hint=hint) from None


def open_stub(address: str, symbols: Sequence[str]) -> DrgnTarget:
    """Open a machine through its GDB stub. It stands still until the target is closed, at exit at the latest.

    :raises TargetError: when it can't be, with the reason.
    """
    files, notes = _unpack_symbols(symbols)
    kernel = next((file for file in files if file.is_kernel), None)
    if kernel is None:
        raise TargetError("through a GDB stub the kernel can't be found without its vmlinux", hint=_VMLINUX_HINT)
    links = _read_links(kernel)
    client = RspClient(parse_address(address))
    atexit.register(client.close)
    try:
        prog, machine_notes = _make_stub_program(client, kernel, links, notes)
        with collect_warnings(notes):
            _load_symbols(prog, files, beside=None, notes=notes)
        notes.append(
            "the machine stands still while kcovdbg is attached" + ("" if client.was_running else ", as it did before")
        )
        return _make_target(prog, f"GDB stub at {address}", False, notes, Origin(lambda: machine_notes, close=client.close))
    except BaseException:
        client.close()
        raise


def _read_links(kernel: DebugFile) -> dict[str, int]:
    """Return the link addresses of what tells where a kernel is."""
    with dumpfile.open_file(kernel.path) as file:
        return elf.read_symbols(file, kernel.header, frozenset({*standing.DIVIDE_ERROR, *standing.VMCOREINFO_SYMBOLS}))


def _make_stub_program(
    client: RspClient, kernel: DebugFile, links: dict[str, int], notes: list[str]
) -> tuple[drgn.Program, bytes]:
    """Return a Program, and ELF notes with the registers where the stub has them."""
    platform = _platform_of(kernel.header)
    memory = standing.CachedMemory(client.read)
    # drgn asks by this; a stub's refusal is a fault to it.
    read = _make_reader(memory.read)
    cpu = None
    if kernel.header.machine == _EM_X86_64 and client.use_physical_memory():
        registers = client.monitor("info registers")
        cpu = standing.parse_registers(registers) if registers else None
        if cpu is None:
            client.use_virtual_memory()
    if cpu is not None:
        found = standing.find_kernel(client.address.text, cpu, memory.read, links)
        ram = standing.find_ram(client.monitor("info mtree -f") or "")
        machine_notes = standing.make_notes(client, found.vmcoreinfo)
        prog = open_bare(kernel.header.machine, machine_notes)
        for start, end in ram or [standing.Ram(0, PHYSICAL_SIZE)]:
            prog.add_memory_segment(start, end - start, read, physical=True)
        refuse_user_addresses(prog)
        return prog, machine_notes
    # By virtual addresses; only what VMCOREINFO says if the kernel isn't moved can be believed.
    try:
        vmcoreinfo = standing.read_vmcoreinfo(memory.read, links, 0)
    except TargetError as error:
        raise TargetError(
            f"this stub doesn't tell where KASLR put the kernel: {error}",
            hint="boot the kernel with nokaslr, or use QEMU's stub",
        ) from None
    notes.append("the stub reads virtual memory only, as the stopped CPU sees it")
    prog = drgn.Program(platform)
    prog.set_linux_kernel_custom(vmcoreinfo, False)
    # After it, as that has virtual addresses translated by page tables, which need physical memory.
    prog.add_memory_segment(0, (1 << 64) - 1 if kernel.header.is_64 else 1 << 32, read)
    return prog, b""


def _make_reader(read: Callable[[int, int], bytes]) -> Callable[[int, int, int, bool], bytes]:
    def answer(address: int, count: int, offset: int, physical: bool) -> bytes:
        del offset, physical
        try:
            return read(address, count)
        except StubReadError as error:
            raise drgn.FaultError(f"the stub can't read it: {error}", address) from None

    return answer


def _set_core(name: str, path: Path, files: Sequence[DebugFile]) -> drgn.Program:
    prog = drgn.Program()
    try:
        prog.set_core_dump(path)
        return prog
    except Exception as error:  # noqa: BLE001 (drgn raises plain Exception for what libkdumpfile says)
        # QEMU's kdump-compressed dumps don't say what machine they are of.
        if "ARCH_NAME" not in str(error):
            raise _describe_core_error(name, error) from None
    kernel = next((file for file in files if file.is_kernel), None)
    prog = drgn.Program(_platform_of(kernel.header) if kernel is not None else drgn.host_platform)
    try:
        prog.set_core_dump(path)
        return prog
    except Exception as error:  # noqa: BLE001 (as above)
        raise _describe_core_error(name, error) from None


def _describe_core_error(name: str, error: Exception) -> TargetError:
    if isinstance(error, PermissionError):
        return TargetError(
            f"{name}: no permission to read it", hint="dumps are often readable by root only: run kcovdbg by sudo"
        )
    return TargetError(
        f"{name} can't be read as a dump: {_one_line(error)}", hint="it may be truncated or damaged: copy it again"
    )


def _platform_of(header: elf.Header) -> drgn.Platform:
    arch = _PLATFORMS.get(header.machine, drgn.Architecture.UNKNOWN)
    flags = drgn.PlatformFlags(0)
    if header.is_64:
        flags |= drgn.PlatformFlags.IS_64_BIT
    if not header.big_endian:
        flags |= drgn.PlatformFlags.IS_LITTLE_ENDIAN
    return drgn.Platform(arch, flags)


def _unpack_symbols(symbols: Sequence[str]) -> tuple[list[DebugFile], list[str]]:
    """Check what was given by -s before anything else takes time."""
    files: list[DebugFile] = []
    notes: list[str] = []
    for name in symbols:
        unpacked = dumpfile.unpack(name)
        notes += unpacked.notes
        files.append(_check_debug_file(name, unpacked.path))
    return files, notes


def _check_debug_file(name: str, path: Path) -> DebugFile:
    with dumpfile.open_file(path) as file:
        try:
            header = elf.read_header(file)
        except elf.ElfError:
            raise TargetError(
                f"{name} is no vmlinux: it is no ELF file",
                hint="vmlinuz and bzImage, which machines boot, hold no debug info; vmlinux lies in the build directory",
            ) from None
        if header.type == elf.ET_CORE:
            raise TargetError(
                f"{name} is a dump, not debug info", hint="dumps go to -c, or are named together: kcovdbg VMLINUX DUMP"
            )
        try:
            sections = elf.read_sections(file, header)
            build_id = elf.read_build_id(file, header)
        except elf.ElfError as error:
            raise TargetError(f"{name} is truncated or damaged: {error}", hint="copy it again") from None
    if not elf.has_dwarf(sections):
        raise TargetError(
            f"{name} has no debug info (DWARF)",
            hint="build with CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT=y, or install the distribution's debug package",
        )
    return DebugFile(name, path, header.type != _ET_REL, build_id, header)


def _load_symbols(prog: drgn.Program, files: Sequence[DebugFile], *, beside: Path | None, notes: list[str]) -> None:
    """Load debug info: what the user gave, or else what can be found.

    :param beside: a directory to look for a vmlinux in.
    :raises TargetError: when the kernel has none.
    """
    info = read_vmcoreinfo(prog)
    release = info.get("OSRELEASE", "unknown")
    wanted = info.get("BUILD-ID")
    kernel = next((file for file in files if file.is_kernel), None)
    if kernel is not None:
        _check_match(kernel, release, wanted)
    elif beside is not None:
        kernel = _find_beside(beside, release, wanted)
        if kernel is not None:
            files = [*files, kernel]
            notes.append(f"debug info is that of {kernel.name}, beside the dump")
    with contextlib.suppress(drgn.MissingDebugInfoError):
        prog.load_debug_info([file.path for file in files], default=True)
    main = prog.main_module()
    if main.wants_debug_file() and kernel is not None:
        # Where VMCOREINFO has no build-id, drgn can't tell that they belong together; the check above did.
        main.try_file(kernel.path, force=True)
    if main.wants_debug_file():
        detail = f" (build-id {wanted})" if wanted else ""
        raise TargetError(f"there is no vmlinux for kernel {release}{detail}", hint=_VMLINUX_HINT)


def _check_match(kernel: DebugFile, release: str, wanted: str | None) -> None:
    hint = f"the kernel's release is {release}: give the vmlinux of that very build"
    if wanted is not None and kernel.build_id is not None:
        # Linux kernel commit 0935288c6e00 ("kdump: append kernel build-id string to VMCOREINFO") (in v5.9).
        if wanted != kernel.build_id:
            raise TargetError(
                f"{kernel.name} doesn't match: its build-id is {kernel.build_id}, the kernel's {wanted}", hint=hint
            )
    elif not dumpfile.find_text(kernel.path, f"Linux version {release} ".encode()):
        raise TargetError(f"{kernel.name} doesn't match: it isn't of release {release}", hint=hint)


def _find_beside(directory: Path, release: str, wanted: str | None) -> DebugFile | None:
    for name in ("vmlinux", "vmlinux.zst", f"vmlinux-{release}", f"vmlinux-{release}.zst", "vmlinux.debug"):
        path = directory / name
        if not path.is_file():
            continue
        try:
            found = _check_debug_file(str(path), dumpfile.unpack(path).path)
            _check_match(found, release, wanted)
        except TargetError:
            # Nobody named it, so it isn't an error that it is something else.
            continue
        return found
    return None


def _make_target(prog: drgn.Program, name: str, live: bool, notes: list[str], origin: Origin) -> DrgnTarget:
    try:
        return DrgnTarget(prog, name, live, notes, origin)
    except (drgn.FaultError, LookupError, OSError) as error:
        if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EPERM:
            raise TargetError(f"{name}: no permission to read it", hint="run kcovdbg by sudo") from None
        raise TargetError(f"{name} can't be read: {_one_line(error)}", hint=_reading_hint(error)) from None


def _reading_hint(error: Exception) -> str:
    # Of the kdump-compressed dumps that QEMU writes of arm64 guests, libkdumpfile doesn't even find the page size.
    if "No way to translate" in str(error):
        return (
            "libkdumpfile can't follow this machine's page tables: dump it as ELF, which is QEMU's dump-guest-memory without -z"
        )
    return "it may be truncated or damaged"


def _one_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
