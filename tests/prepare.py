# SPDX-License-Identifier: LGPL-2.1-or-later
"""Install the system packages that the tests need, and build the lab's kernel in the user's cache.

Whatever cannot be installed or built is reported with the reason; the tests that need it are
skipped for the same reason.
"""

from __future__ import annotations

import sys

from tests.lab import kernel, requirements
from tests.lab.errors import LabError, UnavailableError
from tests.lab.recipe import RECIPES

# Programs that tests outside of the lab run: GDB, the symbolizers that kcovdbg's is compared with,
# and terminal tools.
TOOLS = {
    "gdb": "gdb",
    "llvm-symbolizer": "llvm",
    "addr2line": "binutils",
    "less": "less",
    "zstd": "zstd",
    "gcc": "build-essential",
    "genhtml": "lcov",
    # For the tests of the manual page and the completions.
    "groff": "groff-base",
    "zsh": "zsh",
    "fish": "fish",
}
# For the tests of the page that `report` writes.
BROWSER = {"chromium": "chromium"}


def main() -> int:
    """Install and build; return 0 even if something is missing: the tests that need it are
    skipped.
    """
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
    """Download apt's package lists if something is missing: on a fresh machine there are none."""
    everything = TOOLS | BROWSER | requirements.BOOT | requirements.FILTER | requirements.BUILD
    if requirements.missing(everything) and requirements.may_install():
        requirements.update_package_lists()


if __name__ == "__main__":
    sys.exit(main())
