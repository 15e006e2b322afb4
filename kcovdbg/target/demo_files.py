# SPDX-License-Identifier: LGPL-2.1-or-later
"""The files of the bundled demo: a dump, its kernel image and modules, and their source."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from kcovdbg.errors import TargetError

_PACKAGE: Final = Path(__file__).parents[1]
_CHECKOUT: Final = _PACKAGE.parent
_SLICE: Final = "demo.slice.zst"


class DemoFile(NamedTuple):
    """One file of the demo."""

    name: str
    """Its path in the directory to which the demo is unpacked."""
    what: str
    path: Path
    """The bundled file, which may be compressed."""


def find_demo() -> Path:
    """Return the directory of the bundled demo.

    :raises TargetError: when this installation has none.
    """
    # A checkout has the demo in another folder than an installed package.
    for folder in (_PACKAGE / "demo", _CHECKOUT / "examples" / "demo"):
        if (folder / _SLICE).exists():
            return folder
    raise TargetError("this installation has no demo", hint="open the running kernel: kcovdbg -k")


def list_demo_files() -> tuple[DemoFile, ...]:
    """Return the files of the demo.

    :raises TargetError: when this installation has none.
    """
    folder = find_demo()
    calls = folder / "calls"
    if not calls.exists():
        # A checkout has it among its tests.
        calls = _CHECKOUT / (folder / "calls.txt").read_text().splitlines()[-1]
    files = (
        # In this order, since GDB warns of an image that is newer than its core.
        DemoFile("vmlinux", "the kernel image with debug info", folder / "vmlinux.zst"),
        DemoFile("vmcore", "the guest of --demo, stopped in a softirq section", folder / _SLICE),
        DemoFile(
            "kcovlab_keep.ko",
            "a module of the guest with debug info",
            folder / "kcovlab_keep.ko.zst",
        ),
        DemoFile(
            "kcovlab_damage.ko",
            "the module that damaged KCOV's state",
            folder / "kcovlab_damage.ko.zst",
        ),
        DemoFile(
            "modules/kcovlab_keep.c",
            "the source of kcovlab_keep",
            find_demo_source() / "modules" / "kcovlab_keep.c",
        ),
        DemoFile(
            "calls/vmlinux", "another kernel image, with function names only", calls / "vmlinux.zst"
        ),
        DemoFile(
            "calls/vmcore",
            "its guest, whose kernel records entries and exits of functions",
            calls / "slice.zst",
        ),
    )
    return tuple(file for file in files if file.path.exists())


def find_demo_source() -> Path:
    """Return the directory below which the source of the demo's module is, under its name in debug
    info.

    :raises TargetError: when this installation has no demo.
    """
    folder = find_demo()
    return folder if (folder / "modules").exists() else _CHECKOUT / "tests" / "lab"


def find_demo_dump() -> tuple[str, tuple[str, ...]]:
    """Return the paths of the demo's slice and of its debug info.

    :raises TargetError: when this installation has none.
    """
    folder = find_demo()
    return str(folder / _SLICE), tuple(
        str(path) for path in sorted((*folder.glob("vmlinux*"), *folder.glob("*.ko*")))
    )
