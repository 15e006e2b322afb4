# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of the files that a disassembler opens."""

from __future__ import annotations

from kcovdbg.console.escape import escape


def module_file(module: str | None) -> str:
    """Return the file name of a module; of the kernel's image for None."""
    return "vmlinux" if module is None else f"{escape(module)}.ko"
