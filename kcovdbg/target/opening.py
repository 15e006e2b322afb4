# SPDX-License-Identifier: LGPL-2.1-or-later
"""Opens what the command line names. Works out what it is without drgn, which is imported only to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kcovdbg.errors import CapabilityError, TargetError, UsageError
from kcovdbg.target import dumpfile

if TYPE_CHECKING:
    from kcovdbg.target.drgn import DrgnTarget

# Where the bundled demo is, its debug info beside it: in an installed package, and in a checkout.
_DEMO_PLACES: Final = (Path(__file__).parents[1] / "demo", Path(__file__).parents[2] / "examples" / "demo")
_DEMO_SLICE: Final = "demo.slice.zst"


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """What the command line says about the target; nothing at all means the running kernel."""

    core: str | None = None
    kernel: bool = False
    qemu: str | None = None
    gdb_remote: str | None = None
    demo: bool = False
    symbols: Sequence[str] = ()
    files: Sequence[str] = ()
    """Files without an option: a dump, a vmlinux, modules, in any order, as in crash(8)."""


def sort_files(options: TargetOptions) -> TargetOptions:
    """Put files that were given without an option where they belong.

    :raises UsageError: when there are two dumps.
    :raises TargetError: when a file can't be read, or is neither dump nor debug info.
    """
    core = options.core
    symbols = list(options.symbols)
    for name in options.files:
        kind = dumpfile.identify(name)
        if kind.is_dump:
            if core is not None:
                raise UsageError(f"two dumps are one too many: {core} and {name}", hint="compare two by kcovdbg's diff command")
            core = name
        elif kind is dumpfile.FileKind.ELF:
            symbols.append(name)
        else:
            raise TargetError(
                f"{name} is neither a dump nor a vmlinux",
                hint="vmlinuz and bzImage won't do: the vmlinux with debug info lies beside them in the build directory",
            )
    return TargetOptions(core, options.kernel, options.qemu, options.gdb_remote, options.demo, tuple(symbols))


def find_demo() -> Path:
    """Return the directory of the bundled demo.

    :raises TargetError: when this installation has none.
    """
    for place in _DEMO_PLACES:
        if (place / _DEMO_SLICE).exists():
            return place
    raise TargetError("this installation has no demo", hint="look at the running kernel instead: kcovdbg -k")


def open_target(options: TargetOptions) -> DrgnTarget:
    """Open the target that the options name.

    :raises UsageError: when they name two.
    :raises TargetError: when it can't be opened; one line says why, the hint what to do.
    :raises CapabilityError: when drgn isn't installed.
    """
    options = sort_files(options)
    named = {
        "--core": options.core is not None,
        "--kernel": options.kernel,
        "--qemu": options.qemu is not None,
        "--gdb-remote": options.gdb_remote is not None,
        "--demo": options.demo,
    }
    chosen = [name for name, given in named.items() if given]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} name different targets", hint="give one of them")
    try:
        from kcovdbg.target import programs
    except ImportError as error:
        raise CapabilityError(f"drgn can't be imported: {error}", hint="pip install drgn") from None
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
