# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mainline KCOV as constants and pure functions over bytes.

Nothing here reads a kernel or a file.
"""
