# SPDX-License-Identifier: LGPL-2.1-or-later
"""See the Linux kernel's KCOV state: on a live machine, in a QEMU guest and in a crash dump."""

__version__ = "0.1.0"
