# SPDX-License-Identifier: LGPL-2.1-or-later
"""One hexadecimal address per line: kcovtrace's output, and syzkaller's rawcover."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def hexadecimal_lines(addresses: Iterable[int]) -> Iterator[str]:
    """Iterate over ``0xffffffff81000000``, one after another."""
    return map(hex, addresses)
