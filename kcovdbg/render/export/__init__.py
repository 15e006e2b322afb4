# SPDX-License-Identifier: LGPL-2.1-or-later
"""Model -> other tools' formats. A module per format, each of them a function from data to lines without their ends.

What a name may hold is escaped as everywhere (:mod:`kcovdbg.render.escape`), and so is what the format itself uses to separate.
"""
