# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain data, which walkers return and renderers take, and pure functions of it.

Nothing here reads a kernel or prints.
"""
