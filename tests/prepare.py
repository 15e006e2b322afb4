# SPDX-License-Identifier: LGPL-2.1-or-later
"""Has all that the tests look at: system packages and the lab's kernel, built once and kept in the user's cache.

What can't be had is said, with the reason; the tests that need it skip with the same words.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.lab import kernel, requirements
from tests.lab.errors import LabError, UnavailableError
from tests.lab.recipe import RECIPES

# What the tests run beside the lab: GDB itself, the symbolizers that ours is compared with, and terminal tools.
TOOLS = {
    "gdb": "gdb",
    "llvm-symbolizer": "llvm",
    "addr2line": "binutils",
    "less": "less",
    "zstd": "zstd",
    "gcc": "build-essential",
    "genhtml": "lcov",
    # What reads the manual page and the completions.
    "groff": "groff-base",
    "zsh": "zsh",
    "fish": "fish",
}
# Looks at the page that `report` writes.
BROWSER = {"chromium": "chromium"}


def main() -> int:
    """Install and build; return 0 even where something can't be had: its tests say so."""
    update_package_lists()
    for needed in (TOOLS, BROWSER, requirements.BOOT, requirements.FILTER):
        try:
            requirements.ensure(needed)
        except UnavailableError as error:
            print(f"skipped: {error}", file=sys.stderr)
    try:
        print(f"lab kernel: {kernel.build(RECIPES['default']).key}")
    except (LabError, UnavailableError) as error:
        print(f"skipped: the lab's kernel: {error}", file=sys.stderr)
    return 0


def update_package_lists() -> None:
    """A fresh machine has none, and installing would find nothing."""
    everything = TOOLS | BROWSER | requirements.BOOT | requirements.FILTER | requirements.BUILD
    if not requirements.missing(everything) or os.geteuid() != 0 or requirements.find_program("apt-get") is None:
        return
    subprocess.run(["apt-get", "update", "-q"], check=False, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
