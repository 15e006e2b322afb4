# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m kcovdbg``, and the console script."""

from __future__ import annotations

import sys

from kcovdbg.frontends.cli import main as run


def main() -> int:
    """Run kcovdbg with the process's arguments."""
    return run()


if __name__ == "__main__":
    sys.exit(main())
