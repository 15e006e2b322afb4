# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels made up in memory, one for every generation of KCOV: what is true of them is data, not what a walker finds."""
