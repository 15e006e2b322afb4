# SPDX-License-Identifier: LGPL-2.1-or-later
"""What KCOV promises, per generation: constants and pure functions; nothing here knows a kernel or a file."""
