# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels in memory, one for every generation of KCOV. Their true state is data, independent of any
walker.
"""
