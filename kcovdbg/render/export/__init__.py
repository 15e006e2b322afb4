# SPDX-License-Identifier: LGPL-2.1-or-later
"""Export formats: one module for each, with a function from data to lines without line ends.

What a name may hold is escaped as everywhere (:mod:`kcovdbg.render.escape`), and so is what the format itself uses to separate.
"""
