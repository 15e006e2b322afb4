# SPDX-License-Identifier: LGPL-2.1-or-later
"""Modules of usbip for a lab kernel that was configured without it: python -m tests.lab.usbip builds them in a minute."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from typing import TYPE_CHECKING

from tests.lab import cache, requirements
from tests.lab.kernel import Kernel, find, run_logged
from tests.lab.recipe import RECIPES, Recipe

if TYPE_CHECKING:
    from pathlib import Path

_MODULES = ("usbip-core.ko", "vhci-hcd.ko")
_SETTINGS = ("CONFIG_USBIP_CORE=m", "CONFIG_USBIP_VHCI_HCD=m")
# What Kconfig would write to autoconf.h.
_DEFINED = ("-DCONFIG_USBIP_VHCI_HC_PORTS=8", "-DCONFIG_USBIP_VHCI_NR_HCS=1")


def find_modules(kernel: Kernel) -> list[Path]:
    """Return the modules of a kernel in the order of loading; empty if they are not built."""
    found = [_directory(kernel) / name for name in _MODULES]
    return found if all(path.exists() for path in found) else []


def build_modules(kernel: Kernel, recipe: Recipe) -> list[Path]:
    """Build them from the source package that the kernel was made from."""
    requirements.ensure(requirements.for_build(recipe))
    cache.make_whole(_directory(kernel), lambda work: _fill(kernel, recipe, work))
    return find_modules(kernel)


def _directory(kernel: Kernel) -> Path:
    digest = hashlib.sha256(f"{kernel.key} {_SETTINGS} {_DEFINED}".encode())
    return cache.root() / f"usbip-{digest.hexdigest()[:16]}"


def _fill(kernel: Kernel, recipe: Recipe, work: Path) -> None:
    wanted = "*/drivers/usb/usbip/*"
    subprocess.run(["tar", "-xJf", recipe.tarball, "--strip-components=4", "--wildcards", wanted], cwd=work, check=True)
    command = ["make", "-C", str(kernel.tree), f"M={work}", *_SETTINGS, f"KCFLAGS={' '.join(_DEFINED)}", "modules"]
    run_logged(command, work)
    for path in work.iterdir():
        if path.name not in _MODULES:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    built = find(RECIPES["default"])
    if built is None:
        raise SystemExit("the lab's kernel isn't built: python -m tests.lab build")
    for module in build_modules(built, RECIPES["default"]):
        print(module)
