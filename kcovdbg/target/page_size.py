# SPDX-License-Identifier: LGPL-2.1-or-later
"""The size of a kernel's pages."""

from __future__ import annotations

from kcovdbg.abi.address import PAGE_SIZE
from kcovdbg.errors import MissingTypeError
from kcovdbg.target.protocol import Target


def find_page_size(target: Target) -> int:
    """Return the size of a page in bytes: arm64 has kernels with 4, 16 and 64 KiB.

    :raises MissingSymbolError: when the kernel does not tell it.
    :raises MissingTypeError: when it is not the size of a page.
    """
    if target.machine != "aarch64":
        return PAGE_SIZE
    # It is a page.
    size = target.symbol("empty_zero_page").size
    if size < PAGE_SIZE or size & size - 1:
        raise MissingTypeError("the page size is unknown")
    return size
