# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turns program counters into functions, inlined frames and source lines.

A location table has the locations of all coverage points of one build: :mod:`.table_builder` makes
it, :mod:`.table_cache` keeps it, :mod:`.location_table` reads it, and :mod:`.symbolizer` looks PCs
up in it. It is made from the points of the code (:mod:`.coverage_points`), the debug info
(:mod:`.dwarf_reader`, :mod:`.address_locator`) and the blocks of functions (:mod:`.blocks`).
Searches of code (:mod:`.branches`) also give the calls between functions (:mod:`.call_graph`) and
the places that announce remote handles (:mod:`.remote_calls`).
"""
