# SPDX-License-Identifier: LGPL-2.1-or-later
"""HTML pages that need no other file and no network; functions yield lines without line ends."""
