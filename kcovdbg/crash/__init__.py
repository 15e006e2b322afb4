# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a crash began, and what was executed last."""
