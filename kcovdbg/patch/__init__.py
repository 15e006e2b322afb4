# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which lines of a change were executed: ``patch``.

Reads a diff (:mod:`.change`) from a file, from standard input or from git (:mod:`.git_diff`), finds
its lines in the source that the kernel was built from (:mod:`.line_placement`), and takes their
states from the traces and the blocks of the kernel's code (:mod:`.changed_lines`). Costs one pass
over the blocks of all functions, and one over the blocks of executed functions for each trace.
"""
