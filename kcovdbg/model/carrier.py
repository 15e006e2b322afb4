# SPDX-License-Identifier: LGPL-2.1-or-later
"""What carries a handle beside tasks: background work begins its sections with it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class CarrierKind(str, Enum):
    """Which kind of object it is."""

    VHOST = "vhost worker"
    """``struct vhost_worker``, up to v6.3 ``struct vhost_dev``."""
    USBIP = "usbip device"
    """``struct usbip_device``."""
    SKB = "sk_buff"
    """``struct sk_buff``."""


class Carrier(NamedTuple):
    """One object with a handle."""

    kind: CarrierKind
    address: int
    handle: int
    """``kcov_handle``, never 0."""
    place: str
    """Where it was found: ``the receive queue of descriptor 41/5``."""
    pid: int | None = None
    """Of a vhost device, the thread that works for it."""
