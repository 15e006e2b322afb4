# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands on buffers and traces: what a buffer holds, as rows, functions, calls, lines, or a
full-screen view.

They read the words of a buffer in one piece and name its PCs in batches; a million records take
about a second.
:mod:`.trace_view` and :mod:`.trace_coverage` hold what several of them share.
"""
