# SPDX-License-Identifier: LGPL-2.1-or-later
"""GDB as a target: the only modules below frontends/ that know it."""
