# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which lines of a change were executed: ``patch``.

Reads a diff from a file, from standard input or from git, the traces, the blocks of the kernel's
code, and the source text, by which lines of the diff are found in what the kernel was built from.
It costs one pass over the blocks of all functions, and one over those of executed functions for
each trace.
"""
