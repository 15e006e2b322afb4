# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands on buffers and traces, and what they share."""
