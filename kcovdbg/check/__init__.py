# SPDX-License-Identifier: LGPL-2.1-or-later
"""The invariants of KCOV's state (kcov-abi.md 11) as rules over a State.

:mod:`.runner` applies them and finds why a violation may be transient, and :mod:`.known_bugs` lists
the bugs that leave violations. The other modules hold the rules by group: objects (K), tasks (T),
saved state (S), handles (R), areas (A), buffers (B) and what spans several of these (X). Posted
series declare theirs in :mod:`kcovdbg.series`.
"""
