# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write coverage as one HTML page: source lines with hits, functions, files, and findings.

Reads the points and lines of the image, the hits of the traces and, where it is at hand, source
text below the trees that the user named. The page's data are packed columns, which its script opens
file by file: 52 MB for 1.4 million points.
"""
