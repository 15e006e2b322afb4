# SPDX-License-Identifier: LGPL-2.1-or-later
"""The target that the command line names; drgn is imported only to open it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.elf.file import ElfFile
from kcovdbg.elf.header import ET_REL
from kcovdbg.errors import CapabilityError, TargetError, UsageError
from kcovdbg.target import dump_file as dumpfile
from kcovdbg.target.local_kernel import running_build_id

if TYPE_CHECKING:
    from kcovdbg.target.drgn.target import DrgnTarget

# The bundled demo with its debug info, in an installed package and in a checkout.
_DEMO_PLACES: Final = (Path(__file__).parents[1] / "demo", Path(__file__).parents[2] / "examples" / "demo")
_DEMO_SLICE: Final = "demo.slice.zst"
_TRACE_SUFFIX: Final = ".kcov"


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The target options of the command line; without any, the running kernel."""

    core: str | None = None
    kernel: bool = False
    qemu: str | None = None
    gdb_remote: str | None = None
    demo: bool = False
    symbols: Sequence[str] = ()
    files: Sequence[str] = ()
    """Files without an option: a dump, a vmlinux, modules, in any order, as in crash(8)."""


def sort_files(options: TargetOptions) -> TargetOptions:
    """Return the options with files that were given without one sorted into dump and debug info.

    :raises UsageError: when there are two dumps.
    :raises TargetError: when a file cannot be read, or is neither a dump nor debug info.
    """
    core = options.core
    symbols = list(options.symbols)
    for name in options.files:
        kind = dumpfile.identify(name)
        if kind.is_dump:
            if core is not None:
                raise UsageError(f"more than one dump given: {core} and {name}", hint="to compare two, use the command diff")
            core = name
        elif kind is dumpfile.FileKind.ELF:
            symbols.append(name)
        elif name.endswith(_TRACE_SUFFIX):
            raise TargetError(f"{name} is a trace, not a dump", hint=f"kcovdbg top file:{name}")
        else:
            raise TargetError(
                f"{name} is neither a dump nor a vmlinux",
                hint="vmlinuz and bzImage have no debug info; vmlinux is in the build directory",
            )
    return TargetOptions(core, options.kernel, options.qemu, options.gdb_remote, options.demo, tuple(symbols))


def _check_images(files: Sequence[str]) -> None:
    """Check that files given without a target are debug info of the running kernel.

    :param files: debug info: kernel images, modules.
    :raises UsageError: when there is more than one kernel image.
    :raises TargetError: when the image is not the running kernel's.
    """
    images: dict[str, str | None] = {}
    for name in files:
        with ElfFile(dumpfile.unpack(name).path, name) as file:
            if file.header.type != ET_REL:
                images[name] = file.build_id
    # A stripped image and its debug file have one build ID.
    if len({build_id or name for name, build_id in images.items()}) > 1:
        raise UsageError(f"{len(images)} images and no dump: {', '.join(images)}", hint="kcovdbg VMLINUX VMCORE")
    running = running_build_id()
    for name, build_id in images.items():
        if running is not None and build_id is not None and build_id != running:
            raise TargetError(
                f"{name} is a program or a vmlinux, not a dump, and not the running kernel's vmlinux",
                hint=f"give its dump as well: kcovdbg {name} VMCORE; or its guest: --qemu ADDR, --gdb-remote ADDR",
            )


def find_demo() -> Path:
    """Return the directory of the bundled demo.

    :raises TargetError: when this installation has none.
    """
    for place in _DEMO_PLACES:
        if (place / _DEMO_SLICE).exists():
            return place
    raise TargetError("this installation has no demo", hint="open the running kernel: kcovdbg -k")


def open_target(options: TargetOptions) -> DrgnTarget:
    """Open the target that the options name.

    :raises UsageError: when they name two.
    :raises TargetError: when it cannot be opened.
    :raises CapabilityError: when drgn is not installed.
    """
    given_files, options = options.files, sort_files(options)
    named = {
        "--core": options.core is not None,
        "--kernel": options.kernel,
        "--qemu": options.qemu is not None,
        "--gdb-remote": options.gdb_remote is not None,
        "--demo": options.demo,
    }
    chosen = [name for name, given in named.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"more than one target given: {', '.join(chosen)}", hint="give one of them")
    if not chosen:
        _check_images(given_files)
    try:
        from kcovdbg.target.drgn import programs
    except ImportError as error:
        raise CapabilityError(f"could not import drgn: {error}", hint="pip install drgn") from None
    if options.core is not None:
        return programs.open_core(options.core, options.symbols)
    if options.qemu is not None:
        return programs.open_qemu(options.qemu, options.symbols)
    if options.gdb_remote is not None:
        return programs.open_stub(options.gdb_remote, options.symbols)
    if options.demo:
        place = find_demo()
        debug_info = sorted((*place.glob("vmlinux*"), *place.glob("*.ko*")))
        return programs.open_core(str(place / _DEMO_SLICE), options.symbols or [str(path) for path in debug_info], name="demo")
    return programs.open_kernel(options.symbols)
