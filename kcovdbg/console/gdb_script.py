# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where the script that GDB sources is."""

from __future__ import annotations

from pathlib import Path


def find_gdb_script() -> Path:
    """Return the file that GDB sources: in gdb/ of a checkout, which is a part of an installed package."""
    package = Path(__file__).resolve().parent.parent
    checkout = package.parent / "gdb" / "kcov.py"
    return checkout if checkout.is_file() else package / "gdb" / "kcov.py"
