# SPDX-License-Identifier: LGPL-2.1-or-later
"""Target -> model: follow KCOV's structures through a kernel's memory, reading each one once and
whole.
"""
