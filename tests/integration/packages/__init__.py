# SPDX-License-Identifier: LGPL-2.1-or-later
"""The packages: source distribution and wheel, installed into clean environments and tested
there.
"""
