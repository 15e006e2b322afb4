# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of ``kcov_remote_map``."""

from __future__ import annotations

from typing import NamedTuple


class RemoteHandle(NamedTuple):
    """One ``struct kcov_remote``: remote sections with this handle collect for this object."""

    address: int
    handle: int | None
    bucket: int
    """The bucket that holds it; :func:`kcovdbg.abi.handle.find_bucket` returns the right one."""
    kcov: int | None
    pid: int | None
    """Of the object's owner, ``kcov->t``."""
    comm: str | None
    errors: tuple[str, ...] = ()
    device: str | None = None
    """The device of a posted series that it is registered with; None for KCOV's own."""
