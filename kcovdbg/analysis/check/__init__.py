# SPDX-License-Identifier: LGPL-2.1-or-later
"""An fsck for KCOV: the invariants of its state (kcov-abi.md 11) as data, each with a function that looks for violations.

:mod:`.rule` says what a rule is, :mod:`.evidence` what rules look at, :mod:`.looking` runs them, :mod:`.bugs` knows which bugs
leave which state; the others hold the rules: objects (K), tasks (T), saved (S), handles (R), areas (A), buffers (B) and
crossing (X).
"""
