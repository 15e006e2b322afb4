# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why there is no coverage of a task, a handle or an object, and why code did not run.

:mod:`.missing_coverage` names causes by KCOV's state, the likeliest first, each with its evidence;
:mod:`.device_answers` and :mod:`.background_work` add devices and background work. About code,
:mod:`.code_question` reads the traces and asks :mod:`.code_answers`, which needs the blocks and
calls of the kernel's code, or :mod:`.function_answers`, which needs only coverage points.
:mod:`.call_ways` finds the branches and calls before one function, :mod:`.uncovered_code` ranks
them for whole files.
"""
