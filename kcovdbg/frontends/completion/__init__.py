# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a word on a command line may become, for every frontend that completes. Nothing here needs a terminal."""
