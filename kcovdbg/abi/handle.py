# SPDX-License-Identifier: LGPL-2.1-or-later
"""Remote handles, and the kernel functions that start sections under them.

A handle is a ``u64`` that connects a section with the task that wants its coverage. It has the
subsystem in the top byte, the instance in the low 32 bits, and zeros in bits 32-55
(include/uapi/linux/kcov.h since Linux kernel commit eec028c9386e ("kcov: remote coverage support")
(in v5.5)).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kcovdbg.abi.address import WORD_MASK, is_word

SUBSYSTEM_SHIFT: Final = 56
SUBSYSTEM_MASK: Final = 0xFF << SUBSYSTEM_SHIFT
INSTANCE_MASK: Final = 0xFFFFFFFF
RESERVED_MASK: Final = ~(SUBSYSTEM_MASK | INSTANCE_MASK) & WORD_MASK

COMMON: Final = 0
USB: Final = 1
# Some trees add subsystems of their own, so unknown numbers are shown and accepted.
_SUBSYSTEM_NAMES: Final = {COMMON: "common", USB: "usb"}

MAX_HANDLES: Final = 0x100
"""``KCOV_REMOTE_MAX_HANDLES``: limit for the handles of one KCOV_REMOTE_ENABLE, without the common
one.
"""


class Handle(NamedTuple):
    """A remote handle and its parts."""

    value: int
    subsystem: int
    instance: int

    @property
    def subsystem_name(self) -> str:
        """``common``, ``usb``, or the number of a subsystem that mainline does not have."""
        return name_subsystem(self.subsystem)

    @property
    def reserved(self) -> int:
        """Bits 32-55, unshifted. The kernel refuses a handle in which one of them is set."""
        return self.value & RESERVED_MASK

    def __str__(self) -> str:
        if self.reserved:
            return f"{self.value:#x}"
        # A USB instance is a bus number, written in decimal; common instances are arbitrary words.
        instance = str(self.instance) if self.subsystem == USB else f"{self.instance:#x}"
        return f"{self.subsystem_name}:{instance}"


def name_subsystem(number: int) -> str:
    """Return ``common``, ``usb``, or the number of a subsystem that mainline does not have."""
    return _SUBSYSTEM_NAMES.get(number, f"{number:#x}")


def decode_handle(value: int) -> Handle:
    """Return a handle and its parts.

    :param value: ``u64`` as registered.
    """
    return Handle(value, value >> SUBSYSTEM_SHIFT & 0xFF, value & INSTANCE_MASK)


def parse_handle(text: str) -> int:
    """Return the handle that a text stands for: ``usb:1``, ``common:0x42`` or the whole word.

    :raises ValueError: if the text is not a handle.
    """
    match = re.fullmatch(r"(\w+):(0[xX][0-9a-fA-F]+|\d+)", text)
    if match is None:
        value = int(text, 0)
        if not is_word(value):
            raise ValueError(f"not a handle: {text}")
        return value
    numbers = {name: number for number, name in _SUBSYSTEM_NAMES.items()}
    name = match[1].lower()
    subsystem = numbers[name] if name in numbers else int(name, 0)
    instance = int(match[2], 0)
    if not 0 <= subsystem <= 0xFF or instance > INSTANCE_MASK:
        raise ValueError(f"not a handle: {text}")
    return subsystem << SUBSYSTEM_SHIFT | instance


def is_common(value: int) -> bool:
    """Return whether this is a valid common handle, which a task can have in ``kcov_handle``."""
    # The subsystem is 0, and no reserved bit is set.
    return 0 < value <= INSTANCE_MASK


_GOLDEN_RATIO_64: Final = 0x61C8864680B583EB
_GOLDEN_RATIO_32: Final = 0x61C88647


def find_bucket(value: int, bits: int, word_size: int) -> int:
    """Return the bucket of ``kcov_remote_map`` that a handle belongs to.

    For a key of 8 bytes, the kernel's ``hash_min()`` is ``hash_long()``, which on a 32-bit kernel
    uses the low half only.

    :param bits: log2 of the number of buckets (4 in every kernel seen).
    :param word_size: bytes of the kernel's ``unsigned long``.
    """
    if word_size == 8:
        return (value * _GOLDEN_RATIO_64 & WORD_MASK) >> (64 - bits)
    return ((value & 0xFFFFFFFF) * _GOLDEN_RATIO_32 & 0xFFFFFFFF) >> (32 - bits)


START: Final = "kcov_remote_start"
TASK: Final = "task"
SOFTIRQ: Final = "softirq"

SUBSYSTEMS: Final = {"_common": COMMON, "_usb": USB}
"""The subsystem of each wrapper of :data:`START`, by the rest of its name without ``_softirq``."""

# Functions of work items and threads, in kernels from 5.5 to 7.2.
_IN_TASKS: Final = (
    "hci_rx_work ieee80211_iface_work nci_rx_work nci_cmd_work nci_tx_work rawsock_tx_work "
    "nfc_hci_msg_rx_work nfc_urelease_event_work "
    "vhost_worker vhost_run_work_list vhost_run_work_kthread_list vhci_rx_loop"
)
CONTEXTS: Final = {
    **dict.fromkeys(_IN_TASKS.split(), TASK),
    # NET_RX, by way of NAPI.
    "ieee80211_rx_list": SOFTIRQ,
}
"""The context of each function that starts a section by a wrapper for both contexts."""
