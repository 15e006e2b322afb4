# SPDX-License-Identifier: LGPL-2.1-or-later
"""The inputs of commands: a kernel, traces with the kernel that recorded them, and buffers by name.

:mod:`.user_inputs` has the inputs that the user named for all commands, and those of one command.
:mod:`.kernel` is one kernel with its memory, names, points and sources; :mod:`.trace_kernel` finds
the kernel of traces, :mod:`.buffer_sources` buffers by name. Nothing here knows a terminal or a
command line: a function that lacks a table returns the table, and its caller waits for it.
"""
