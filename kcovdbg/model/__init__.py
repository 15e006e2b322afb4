# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain data: what the walkers return and the renderers take.

Nothing here reads, computes or prints.
"""
