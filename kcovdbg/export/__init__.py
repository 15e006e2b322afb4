# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write coverage as files of other tools: lcov, Cobertura, drcov, module offsets, syzkaller's
formats.

Reads a trace or a buffer of a dump, and the names of its PCs. :mod:`.command` counts and locates
the records once; :mod:`.point_formats` has the formats of coverage points, :mod:`.line_formats` the
formats of source lines. Costs one pass over the records, as arrays. An export without a single name
is refused.
"""
