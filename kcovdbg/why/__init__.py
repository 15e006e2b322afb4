# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why there is no coverage of a task, a handle or an object, and why code did not run.

Pure functions of a State name causes in the order in which they are likely, each with its evidence.
Answers about code come from the image and from traces.
"""
