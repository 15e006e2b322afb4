# SPDX-License-Identifier: LGPL-2.1-or-later
"""The start of a crash, and the code executed last before it.

Reads the kernel's log, the stack of the crashed task and the last records of its buffer.
:mod:`kcovdbg.records.report_table` has the functions that report a problem and did not cause it.
Costs one unwound stack and the end of one buffer.
"""
