# SPDX-License-Identifier: LGPL-2.1-or-later
"""Posted patch series: one module for each, which declares all that it adds to KCOV.

:mod:`kcovdbg.series.table` has the table of them. No other module imports the module of a series.
"""
