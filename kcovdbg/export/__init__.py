# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write coverage as files of other tools: lcov, Cobertura, drcov, module offsets, syzkaller's
formats.

Reads traces or buffers of a dump, and the names of their PCs. :mod:`.command` counts and locates
the records once,
:mod:`.point_formats` writes them. Costs one pass over the records, as arrays; an export without a
    single name is refused.
"""
