# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernels that can be read: dumps, machines and images.

:mod:`.target` says what a target does, and :mod:`.drgn` has those that drgn reads. Walks of
mappings, vmalloc areas and slab memory work on any target.
"""
