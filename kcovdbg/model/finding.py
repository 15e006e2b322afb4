# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a check found."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """One violated invariant."""

    rule: str
    severity: str
    object: str
    message: str
