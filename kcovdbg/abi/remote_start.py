# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcov_remote_start()``, its wrappers in ``include/linux/kcov.h``, and the contexts in which mainline calls them."""

from __future__ import annotations

from typing import Final

from kcovdbg.abi.handle import COMMON, USB

START: Final = "kcov_remote_start"
TASK: Final = "task"
SOFTIRQ: Final = "softirq"

SUBSYSTEMS: Final = {"_common": COMMON, "_usb": USB}
"""Keyed by the suffix that a wrapper's name adds to that of :data:`START`, without ``_softirq``."""

CONTEXTS: Final = {
    # Work items.
    **dict.fromkeys(
        ("hci_rx_work", "ieee80211_iface_work", "nci_rx_work", "nci_cmd_work", "nci_tx_work", "rawsock_tx_work"), TASK
    ),
    **dict.fromkeys(("nfc_hci_msg_rx_work", "nfc_urelease_event_work"), TASK),
    # Threads of their own.
    **dict.fromkeys(("vhost_worker", "vhost_run_work_list", "vhost_run_work_kthread_list", "vhci_rx_loop"), TASK),
    # NET_RX, by way of NAPI.
    "ieee80211_rx_list": SOFTIRQ,
}
"""For each function, the context in which it announces a handle, if its wrapper serves both. Kernels of 5.5 to 7.2."""
