# SPDX-License-Identifier: LGPL-2.1-or-later
"""Model -> text, JSON and CSV.

What commands return are renderables (:mod:`kcovdbg.render.renderable`): tables, records and styled lines, all of them data.
:mod:`kcovdbg.render.writer` writes them in one of the three formats; nothing else in kcovdbg formats a table.
"""
