# SPDX-License-Identifier: LGPL-2.1-or-later
"""Rendering of the model as text, JSON, CSV, HTML and export formats.

Commands return renderables (:mod:`kcovdbg.render.renderable`): tables, fields and styled lines, all of them data.
:mod:`kcovdbg.render.writer` writes them as text, JSON or CSV; :mod:`kcovdbg.render.wording` puts things into words.
"""
