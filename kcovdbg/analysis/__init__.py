# SPDX-License-Identifier: LGPL-2.1-or-later
"""What buffers and state mean: plain data in, plain data out."""
