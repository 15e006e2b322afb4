# SPDX-License-Identifier: LGPL-2.1-or-later
"""A page of HTML that needs nothing besides itself: no network, no other file. Everything yields lines without their ends."""
