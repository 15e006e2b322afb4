# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries of ``kcov_remote_map``."""

from __future__ import annotations

from typing import NamedTuple


class RemoteHandle(NamedTuple):
    """One ``struct kcov_remote``: background sections that start with this handle collect for this object."""

    address: int
    handle: int | None
    bucket: int
    """Where it was found; :func:`kcovdbg.abi.handle.find_bucket` says where it belongs."""
    kcov: int | None
    pid: int | None
    """Of the object's owner, ``kcov->t``."""
    comm: str | None
    errors: tuple[str, ...] = ()
