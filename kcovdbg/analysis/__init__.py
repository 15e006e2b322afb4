# SPDX-License-Identifier: LGPL-2.1-or-later
"""What buffers and snapshots tell: sets of PCs, ordered traces, findings."""
