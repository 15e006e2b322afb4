# SPDX-License-Identifier: LGPL-2.1-or-later
"""What commands work on: a kernel, traces with the kernel that they are of, and buffers by name.

:mod:`.user_inputs` holds what the user named for all commands, and what one command works on.
:mod:`.kernel` is one kernel with its memory, names, points and sources; :mod:`.trace_kernel` finds
the kernel of traces, :mod:`.buffer_sources` buffers by name. Nothing here knows a terminal or a
command line: a function that lacks a table returns which, and its caller waits for it.
"""
