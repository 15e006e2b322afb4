# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens dumps, the running kernel and images as drgn Programs with debug info."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import drgn

from kcovdbg.abi.address import PAGE_SIZE, ReadMemory
from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import (
    EM_AARCH64,
    EM_RISCV,
    EM_S390,
    EM_X86_64,
    PT_LOAD,
    find_vmcoreinfo,
    parse_vmcoreinfo,
)
from kcovdbg.errors import TargetError
from kcovdbg.input_file import open_input
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.connection import Connection, MachineState
from kcovdbg.target.debug_files import (
    DebugFile,
    check_match,
    find_images,
    find_kernel_file,
    find_vmlinux,
    of_build,
    unpack_symbols,
)
from kcovdbg.target.drgn.drgn_messages import collect_warnings, first_line, reading_debug_info
from kcovdbg.target.drgn.program_memory import (
    add_kernel_memory,
    add_memory,
    load_debug_info,
    open_empty_program,
    physical_memory,
    platform_of,
    vmcoreinfo_of,
    without_command_plugins,
)
from kcovdbg.target.dump_file import NOTE_INCONSISTENT, NOTE_NAME, NOTE_SLICE

if TYPE_CHECKING:
    from kcovdbg.target.arm64_kernel import TranslationRegisters
    from kcovdbg.target.drgn.image_target import ImageTarget
    from kcovdbg.target.drgn.target import DrgnTarget
    from kcovdbg.target.missing_vmcoreinfo import CpuRegisters

VMLINUX_HINT: Final = (
    "give the vmlinux with debug info: -s VMLINUX; it is in the build directory or the "
    "distribution's debug package"
)
VMCOREINFO_HINT: Final = (
    "QEMU needs -device vmcoreinfo, the guest CONFIG_FW_CFG_SYSFS and CONFIG_KEXEC; or give the "
    "vmlinux: -s VMLINUX"
)
# A VMCOREINFO with which drgn opens a dump to read its physical memory.
_ANY_VMCOREINFO: Final = (
    f"OSRELEASE=6.0.0\nPAGESIZE={PAGE_SIZE}\nSYMBOL(swapper_pg_dir)={PAGE_SIZE:x}\nKERNELOFFSET=0\n"
).encode()
# The start of a line that only VMCOREINFO of arm64 kernels has.
_ARM64_LINE: Final = b"\nNUMBER(kimage_voffset)="


def open_core(
    path: str,
    symbols: Sequence[str],
    name: str | None = None,
    *,
    unpacked: dumpfile.UnpackedFile | None = None,
) -> DrgnTarget:
    """Open a crash dump or a slice.

    :param name: its name in messages, by default the path. A target with another name has no notes
        on unpacking.
    :param unpacked: the dump, if the caller has unpacked it.
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


def _open_unpacked(
    path: str, symbols: Sequence[str], name: str | None, unpacked: dumpfile.UnpackedFile
) -> DrgnTarget:
    files, notes = unpack_symbols(symbols)
    files = of_build(files, dumpfile.read_dump_vmcoreinfo(unpacked.path).get("BUILD-ID"))
    notes = [] if name is not None else [*unpacked.notes, *notes]
    with collect_warnings() as warnings:
        found = _find_dumped_kernel(path, unpacked.path, files)
        if found is None:
            vmcoreinfo = _complete_vmcoreinfo(path, unpacked.path, files)
        else:
            vmcoreinfo, image, found_notes = found
            files = [image, *(file for file in files if not file.is_kernel)]
            notes = [*notes, *found_notes]
        prog = _set_core(path, unpacked.path, files, vmcoreinfo)
        if not prog.flags & drgn.ProgramFlags.IS_LINUX_KERNEL:
            raise TargetError(f"{path} has no VMCOREINFO", hint=VMCOREINFO_HINT)
        add_kernel_memory(prog)
        notes += load_symbols(prog, files, directory=Path(path).parent)
    notes += [*warnings.notes, *_describe_slice(unpacked.path)]
    return make_target(
        prog,
        name or path,
        False,
        notes,
        files,
        read_notes=lambda: dumpfile.read_notes(unpacked.path),
        dump=path,
    )


def _describe_slice(path: Path) -> list[str]:
    """Return notes for the user on a slice, none for other dumps."""
    kinds = {note.type for note in dumpfile.parse_dump_notes(path) if note.name == NOTE_NAME}
    found = []
    if NOTE_SLICE in kinds:
        found.append("this is a slice: it has only the memory that kcovdbg's commands read")
    if NOTE_INCONSISTENT in kinds:
        found.append("the slice was taken while the kernel ran: it may be inconsistent")
    return found


@without_command_plugins()
def open_kernel(symbols: Sequence[str]) -> DrgnTarget:
    """Open the running kernel.

    :raises TargetError: when it cannot be opened.
    """
    files, notes = unpack_symbols(symbols)
    prog = drgn.Program()
    with collect_warnings() as warnings:
        try:
            prog.set_kernel()
        except PermissionError:
            raise TargetError(
                "no permission to read /proc/kcore",
                hint="CAP_SYS_RAWIO is needed: run kcovdbg with sudo; a kernel in lockdown refuses "
                "root as well",
            ) from None
        except FileNotFoundError:
            raise TargetError(
                "no /proc/kcore",
                hint="CONFIG_PROC_KCORE=y is needed, and containers hide the file; --demo opens a "
                "dump that comes with kcovdbg",
            ) from None
        except Exception as error:  # noqa: BLE001 (drgn raises bare Exceptions)
            raise TargetError(f"could not open /proc/kcore: {first_line(error)}") from None
        files = of_build(files, vmcoreinfo_of(prog).get("BUILD-ID"))
        notes += load_symbols(prog, files)
    return make_target(
        prog, "the running kernel", True, [*notes, *warnings.notes], files, _LiveConnection()
    )


class _LiveConnection(Connection):
    """The kernel of this machine, which cannot be stopped."""

    def pause(self) -> AbstractContextManager[bool]:
        return contextlib.nullcontext(False)

    def state(self) -> MachineState:
        return MachineState.RUNNING


def open_image_target(symbols: Sequence[str], notes: Sequence[str] = ()) -> ImageTarget:
    """Open a kernel image and modules without memory.

    :param symbols: their paths; one of them is an image.
    :param notes: the first notes for the user.
    :raises TargetError: when a file cannot be opened.
    """
    from kcovdbg.target.drgn.image_target import ImageTarget

    files, found = unpack_symbols(symbols)
    kernel = next(file for file in files if file.is_kernel)
    modules = [str(file.path) for file in files if not file.is_kernel]
    with collect_warnings() as warnings:
        target = ImageTarget(kernel.name, str(kernel.path), modules, code=kernel.code)
    target.notes = (*notes, *found, *warnings.notes)
    return target


def find_image(
    where: str, cpu: CpuRegisters | TranslationRegisters, physical: ReadMemory, kernel: DebugFile
) -> bytes:
    """Return the VMCOREINFO of a vmlinux's kernel in the physical memory of an x86-64 or arm64
    machine.

    :param where: the name of the machine or the dump in messages.
    :param cpu: the registers of a CPU.
    :raises NotBootedError: when the kernel has not booted far enough.
    :raises MismatchError: when the memory has another kernel.
    :raises TargetError: when no kernel is found.
    """
    from kcovdbg.target import arm64_kernel, missing_vmcoreinfo

    with ElfFile(kernel.path, kernel.name) as image:
        symbols = image.symbols.addresses_of((*missing_vmcoreinfo.SYMBOLS, *arm64_kernel.SYMBOLS))
        return cpu.find_kernel(
            where, physical, symbols, partial(missing_vmcoreinfo.check_image, image)
        )


def _find_dumped_kernel(
    name: str, path: Path, files: Sequence[DebugFile]
) -> tuple[bytes, DebugFile, tuple[str, ...]] | None:
    """Find the kernel in a dump of QEMU without VMCOREINFO, or whose VMCOREINFO lacks the KASLR
    offset.

    :param name: the dump's name in messages.
    :return: VMCOREINFO, the image, and notes for the user; None for other dumps.
    :raises TargetError: when the kernel cannot be found.
    """
    notes = [*dumpfile.parse_dump_notes(path)]
    info = parse_vmcoreinfo(find_vmcoreinfo(notes))
    # VMCOREINFO of all x86-64 kernels with KCOV has the offset; without it, drgn would assume 0.
    if "KERNELOFFSET" in info:
        return None
    lack = "KERNELOFFSET in its VMCOREINFO" if info else "VMCOREINFO"
    from kcovdbg.target.missing_vmcoreinfo import MismatchError, find_qemu_cpus

    cpus = [*find_qemu_cpus(notes)]
    if not (cpus or (info and _core_machine(path) == EM_X86_64)):
        return None
    given = [file for file in files if file.is_kernel]
    beside = given or find_images(Path(name).parent)
    images = [file for file in beside if file.header.machine == EM_X86_64]
    if not images or not cpus:
        raise TargetError(f"{name} has no {lack}", hint=VMCOREINFO_HINT)
    read = physical_memory(_set_core(name, path, images[:1], _ANY_VMCOREINFO))
    failure: TargetError | None = None
    for image in images:
        for cpu in cpus:
            try:
                vmcoreinfo = find_image(name, cpu, read, image)
            except MismatchError as error:
                failure = TargetError(
                    str(error),
                    hint=f"give the vmlinux of the same build; {image.name} is of another",
                )
            except TargetError as error:
                failure = failure or TargetError(
                    f"{name} has no {lack}, and no kernel was found in it: {error}",
                    hint="dump the guest again when its kernel has booted",
                )
            else:
                note = (
                    f"{name} has no {lack}; the kernel was found by its interrupt descriptor table"
                )
                return vmcoreinfo, image, (note,) if given else (note, _beside_dump(image))
    assert failure is not None
    raise failure


def _core_machine(path: Path) -> int | None:
    """Return ``e_machine`` of an ELF core, None for another dump."""
    if dumpfile.identify(path) is not dumpfile.FileKind.CORE:
        return None
    with ElfFile(path) as core:
        return core.header.machine


def _complete_vmcoreinfo(name: str, path: Path, files: Sequence[DebugFile]) -> bytes | None:
    """Return the VMCOREINFO of a dump with lines that drgn needs and the dump's notes lack; None if
    the notes have all lines.

    :param name: the dump's name in messages.
    :raises TargetError: when VMCOREINFO cannot be found.
    """
    machine = _core_machine(path)
    if machine not in (EM_RISCV, EM_S390):
        return None
    found: bytes | None = find_vmcoreinfo(dumpfile.parse_dump_notes(path))
    if not found:
        # drgn opens a dump by QEMU only with a VMCOREINFO.
        read = physical_memory(_set_core(name, path, files, _ANY_VMCOREINFO))
        if machine == EM_S390:
            from kcovdbg.target.missing_vmcoreinfo import read_lowcore_vmcoreinfo

            return read_lowcore_vmcoreinfo(read)
        from kcovdbg.target.riscv_pages import search_vmcoreinfo

        with ElfFile(path, name) as core:
            found = search_vmcoreinfo(core, read)
    if found is None or machine == EM_S390:
        return found
    # Only the vmlinux of a RISC-V kernel shows its KASLR offset.
    info = parse_vmcoreinfo(found)
    kernel = find_kernel_file(files)
    if kernel is None:
        release = info.get("OSRELEASE", "unknown")
        kernel = find_vmlinux(Path(name).parent, release, info.get("BUILD-ID"))
    if kernel is None:
        return found
    from kcovdbg.target.riscv_pages import LINKED_SYMBOLS, add_kaslr_offset

    with ElfFile(kernel.path, kernel.name) as image:
        return add_kaslr_offset(found, image.symbols.addresses_of(LINKED_SYMBOLS))


@without_command_plugins()
def _set_core(
    name: str, path: Path, files: Sequence[DebugFile], vmcoreinfo: bytes | None
) -> drgn.Program:
    """Return the Program of a dump.

    :param vmcoreinfo: the VMCOREINFO to use instead of the dump's; None for the dump's.
    """
    try:
        try:
            prog = drgn.Program(vmcoreinfo=vmcoreinfo)
            prog.set_core_dump(path)
            _add_memory_at_zero(prog, path, name)
        except Exception as error:
            # QEMU's kdump-compressed dumps do not store their machine.
            if "ARCH_NAME" not in str(error):
                raise
            notes, kernel = dumpfile.read_notes(path), find_kernel_file(files)
            if _ARM64_LINE in notes:
                return _open_by_pages(path, name, notes)
            platform = platform_of(kernel.header) if kernel is not None else drgn.host_platform
            prog = drgn.Program(platform, vmcoreinfo=vmcoreinfo)
            prog.set_core_dump(path)
        return prog
    except TargetError:
        raise
    except PermissionError:
        hint = "dumps are often readable by root only: run kcovdbg with sudo"
        raise TargetError(f"{name}: no permission to read", hint=hint) from None
    except Exception as error:  # noqa: BLE001 (as libkdumpfile's errors are)
        message = f"could not open {name} as a dump: {first_line(error)}"
        raise TargetError(message, hint="it may be truncated or damaged: copy it again") from None


def _add_memory_at_zero(prog: drgn.Program, path: Path, name: str) -> None:
    """Add the physical memory of an s390x guest's dump by QEMU.

    It is one segment at address 0. drgn assumes that such a segment has no physical address.
    """
    if prog.platform is None or prog.platform.arch != drgn.Architecture.S390X:
        return

    # The file stays open as long as the Program exists.
    core = ElfFile(path, name)
    segments = [segment for segment in core.segments if segment.type == PT_LOAD]
    if len(segments) != 1 or segments[0].paddr:
        core.close()
        return
    (memory,) = segments
    add_memory(
        prog, lambda address, size: core.read_at(memory.offset + address, size), size=memory.filesz
    )


def _open_by_pages(path: Path, name: str, notes: bytes) -> drgn.Program:
    """Return the Program of an arm64 guest's kdump-compressed dump by QEMU.

    Its blocks have 64 KiB, whatever the page size is, so that libkdumpfile knows no page size.
    """
    prog = open_empty_program(EM_AARCH64, notes)
    from kcovdbg.target.kdump_file import KdumpFile

    # Open as long as the Program exists.
    add_memory(prog, KdumpFile(open_input(path), name).read_physical)
    return prog


def load_symbols(
    prog: drgn.Program, files: Sequence[DebugFile], *, directory: Path | None = None
) -> list[str]:
    """Load the debug info that the user gave, or else what is found; return notes for the user.

    :param directory: one to look for a vmlinux in.
    :raises TargetError: when there is none for the kernel.
    """
    notes: list[str] = []
    info = vmcoreinfo_of(prog)
    release = info.get("OSRELEASE", "unknown")
    wanted = info.get("BUILD-ID")
    kernel = find_kernel_file(files)
    if kernel is not None:
        check_match(kernel, release, wanted)
    elif directory is not None:
        kernel = find_vmlinux(directory, release, wanted)
        if kernel is not None:
            files = [*files, kernel]
            notes.append(_beside_dump(kernel))
    with reading_debug_info(), contextlib.suppress(drgn.MissingDebugInfoError):
        load_debug_info(prog, [str(file.path) for file in files])
    main = prog.main_module()
    if main.wants_debug_file() and kernel is not None:
        # drgn does not match them when VMCOREINFO has no build ID; they were matched above.
        main.try_file(kernel.path, force=True)
    if main.wants_debug_file():
        detail = f" (build ID {wanted})" if wanted else ""
        raise TargetError(f"no vmlinux for kernel {release}{detail}", hint=VMLINUX_HINT)
    return notes


def _beside_dump(kernel: DebugFile) -> str:
    return f"debug info: {kernel.name}, from the directory of the dump"


def make_target(
    prog: drgn.Program,
    name: str,
    live: bool,
    notes: Sequence[str],
    files: Sequence[DebugFile],
    connection: Connection | None = None,
    *,
    read_notes: Callable[[], bytes] = bytes,
    dump: str | None = None,
) -> DrgnTarget:
    """Return a :class:`DrgnTarget`.

    :param files: the debug info.
    :param dump: the user's path of the dump.
    :raises TargetError: when its memory is unreadable.
    """
    from kcovdbg.target.drgn.target import DrgnTarget

    given = [*filter(None, (dump,)), *(file.name for file in files)]
    code = next((file.code for file in files if file.is_kernel), None)
    try:
        return DrgnTarget(
            prog, name, live, notes, connection, read_notes=read_notes, code=code, files=given
        )
    except (drgn.FaultError, LookupError, OSError) as error:
        if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.EPERM:
            raise TargetError(
                f"{name}: no permission to read", hint="run kcovdbg with sudo"
            ) from None
        hint = "it may be truncated or damaged"
        if "No way to translate" in str(error):
            way = "dump it as ELF, which is QEMU's dump-guest-memory without -z"
            hint = f"libkdumpfile cannot walk this machine's page tables: {way}"
        raise TargetError(f"could not read {name}: {first_line(error)}", hint=hint) from None
