# SPDX-License-Identifier: LGPL-2.1-or-later
"""From program counters to functions, inlined frames and source lines."""
