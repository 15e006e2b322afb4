# SPDX-License-Identifier: LGPL-2.1-or-later
"""Carriers of handles besides tasks: background work starts its sections with the handle."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CarrierKind(str, Enum):
    """The kind of a carrier."""

    VHOST = "vhost worker"
    """``struct vhost_worker``, up to v6.3 ``struct vhost_dev``."""
    USBIP = "usbip device"
    """``struct usbip_device``."""
    SKB = "sk_buff"
    """``struct sk_buff``."""


class Carrier(NamedTuple):
    """One carrier."""

    kind: CarrierKind
    address: int
    handle: int
    """``kcov_handle``, never 0."""
    place: str
    """Where it was found: ``the receive queue of descriptor 41/5``."""
    pid: int | None = None
    """Of a vhost device, the thread that works for it."""
