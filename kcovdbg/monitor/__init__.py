# SPDX-License-Identifier: LGPL-2.1-or-later
"""What happens to KCOV's objects and buffers over time."""
