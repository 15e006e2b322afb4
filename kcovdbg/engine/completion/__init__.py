# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completion of command lines for all frontends; nothing here needs a terminal."""
