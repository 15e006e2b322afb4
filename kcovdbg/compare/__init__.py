# SPDX-License-Identifier: LGPL-2.1-or-later
"""Match the points of two builds of a kernel: by function, file and order of lines.

Reads the location tables of both builds and, where it is at hand, the difference of their sources.
Matching takes about five times as long as naming the PCs of both.
"""
