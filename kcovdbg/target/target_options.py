# SPDX-License-Identifier: LGPL-2.1-or-later
"""The target options of the command line; opens the target that they name. drgn is imported only
then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_REL
from kcovdbg.errors import CapabilityError, TargetError, UsageError
from kcovdbg.limits import MEMORY, one_command, over_limit
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.debug_files import list_debug_files
from kcovdbg.target.demo_files import find_demo_dump

if TYPE_CHECKING:
    from kcovdbg.target.drgn.image_target import ImageTarget
    from kcovdbg.target.drgn.target import DrgnTarget

_TRACE_SUFFIX: Final = ".kcov"


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The target options of the command line. Without any, the target is the kernel image among the
    debug info, or else the running kernel.
    """

    core: str | None = None
    kernel: bool = False
    qemu: str | None = None
    gdb_remote: str | None = None
    demo: bool = False
    image: bool = False
    """Whether to open the kernel image without memory, even if it is the running kernel's."""
    symbols: Sequence[str] = ()
    files: Sequence[str] = ()
    """Files without an option: a dump, a vmlinux, modules, in any order, as in crash(8)."""
    unpacked: dumpfile.UnpackedFile | None = None
    """The dump of ``core``, if the caller has unpacked it."""

    @property
    def is_named(self) -> bool:
        """Whether they name a dump, a machine or files."""
        return bool(
            self.core or self.qemu or self.gdb_remote or self.demo or self.symbols or self.files
        )


def sort_files(options: TargetOptions) -> TargetOptions:
    """Return the options with ``files`` sorted into the dump and debug info.

    :raises UsageError: when there are two dumps.
    :raises TargetError: when a file is unreadable, or is neither a dump nor debug info.
    """
    core = options.core
    symbols = [path for name in options.symbols for path in list_debug_files(name)]
    for name in options.files:
        kind = dumpfile.identify(name)
        if kind.is_dump:
            if core is not None:
                raise UsageError(
                    f"more than one dump given: {core} and {name}",
                    hint="to compare two, use the command diff",
                )
            core = name
        elif kind is dumpfile.FileKind.ELF:
            symbols.append(name)
        elif kind is dumpfile.FileKind.EMPTY:
            raise TargetError(
                f"{name} is empty: nothing was extracted",
                hint="copy it again, or take another dump",
            )
        elif name.endswith(_TRACE_SUFFIX):
            raise TargetError(f"{name} is a trace, not a dump", hint=f"kcovdbg top file:{name}")
        else:
            raise TargetError(
                f"{name} is neither a dump nor a vmlinux",
                hint="vmlinuz and bzImage have no debug info; vmlinux is in the build directory",
            )
    return replace(options, core=core, symbols=tuple(symbols), files=())


def _find_images(options: TargetOptions) -> dict[str, str | None]:
    """Return the build ID of each kernel image among the debug info.

    :raises UsageError: when the images are of several kernels, when there is none for --image, or
        when there are only modules, which the running kernel has not loaded.
    """
    images: dict[str, str | None] = {}
    modules: dict[str, str | None] = {}
    for name in options.symbols:
        with ElfFile(dumpfile.unpack(name).path, name) as file:
            named = modules if file.header.type == ET_REL else images
            named[name] = file.build_id
    # A stripped image and its debug file have one build ID.
    if len({build_id or name for name, build_id in images.items()}) > 1:
        raise UsageError(
            f"{len(images)} images and no dump: {', '.join(images)}",
            hint="kcovdbg VMLINUX VMCORE; --other-vmlinux names the vmlinux of another build",
        )
    if options.image and not images:
        raise UsageError("--image: no vmlinux is given", hint="kcovdbg --image -s VMLINUX")
    # Dumps do not need the module: it is imported on first use.
    from kcovdbg.target.local_kernel import has_loaded_module

    strange = [name for name, build_id in modules.items() if not has_loaded_module(build_id)]
    if strange and not images:
        raise UsageError(
            f"no vmlinux is given, and the running kernel has not loaded {', '.join(strange)}",
            hint="kcovdbg -s VMLINUX -s MODULE.ko; -k means the running kernel",
        )
    return images


def find_gdb_arguments(options: TargetOptions) -> list[str]:
    """Return the arguments by which GDB opens the target that the options name, empty if they name
    none.

    Paths are absolute, as GDB would take a file called ``-ex=COMMAND`` for an option.

    :raises TargetError: when GDB cannot open the target, or a file is unreadable.
    """
    options = sort_files(options)
    core, symbols = find_demo_dump() if options.demo else (options.core, options.symbols)
    arguments: list[str] = []
    for path in (dumpfile.unpack(name).path for name in symbols):
        with ElfFile(path) as file:
            if not arguments and not file.is_relocatable:
                arguments.append(str(path.absolute()))
    if core is not None:
        path = dumpfile.unpack_dump(core).path
        if dumpfile.identify(path) is not dumpfile.FileKind.CORE:
            raise TargetError(
                f"{core} is kdump-compressed, which GDB cannot read",
                hint="slice -o FILE writes an ELF core that GDB reads",
            )
        arguments.append(str(path.absolute()))
    elif options.gdb_remote is not None:
        from kcovdbg.target.connection import parse_socket_address

        address = parse_socket_address(options.gdb_remote)
        # GDB would run a name that begins with | as a command.
        host = f"[{address.host}]" if ":" in address.host else address.host
        stub = f"tcp:{host}:{address.port}"
        if address.path is not None:
            stub = str(Path(address.path).absolute())
        arguments += ["-ex", f"target remote {stub}"]
    elif options.qemu is not None:
        raise TargetError(
            "GDB cannot use QMP", hint="start the guest's GDB stub, and give it with --gdb-remote"
        )
    return arguments


@one_command(is_part=True)
def open_target(options: TargetOptions) -> DrgnTarget | ImageTarget:
    """Open the target that the options name.

    :raises UsageError: when they name two targets.
    :raises TargetError: when it cannot be opened.
    :raises CapabilityError: when drgn is not installed.
    """
    options = sort_files(options)
    named = {
        "--core": options.core is not None,
        "--kernel": options.kernel,
        "--qemu": options.qemu is not None,
        "--gdb-remote": options.gdb_remote is not None,
        "--demo": options.demo,
        "--image": options.image,
    }
    chosen = [name for name, given in named.items() if given]
    if len(chosen) > 1:
        raise UsageError(
            f"more than one target given: {', '.join(chosen)}", hint="give one of them"
        )
    images = _find_images(options) if options.image or not chosen else {}
    try:
        from kcovdbg.target.drgn import programs
    except ImportError as error:
        if "failed to map" in str(error):
            raise over_limit(MEMORY, "loading drgn") from None
        raise CapabilityError(f"could not import drgn: {error}", hint="pip install drgn") from None
    if options.core is not None:
        return programs.open_core(options.core, options.symbols, unpacked=options.unpacked)
    if options.qemu is not None or options.gdb_remote is not None:
        # Dumps do not need the module: it is imported on first use.
        from kcovdbg.target.drgn import machines

        if options.qemu is not None:
            return machines.open_qemu(options.qemu, options.symbols)
        return machines.open_stub(options.gdb_remote or "", options.symbols)
    if options.demo:
        core, debug_info = find_demo_dump()
        return programs.open_core(core, options.symbols or debug_info, name="demo")
    if not images:
        return programs.open_kernel(options.symbols)
    from kcovdbg.target.local_kernel import running_build_id

    running = running_build_id()
    if options.image or running is None or running not in images.values():
        return programs.open_image_target(options.symbols)
    try:
        return programs.open_kernel(options.symbols)
    except TargetError as error:
        # The running kernel's vmlinux names traces without its memory.
        return programs.open_image_target(
            options.symbols, [f"the running kernel is not read: {error}"]
        )
