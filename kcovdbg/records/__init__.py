# SPDX-License-Identifier: LGPL-2.1-or-later
"""Buffers and traces as data: read from files of every tool, counted, folded, compared.

Works on arrays of words and PCs, never record by record where there are many: a million records are
counted in milliseconds. :mod:`.pc_file` finds the format of a file, :mod:`.pc_convention` what its
PCs mean. No command is known here.
"""
