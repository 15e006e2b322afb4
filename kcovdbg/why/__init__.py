# SPDX-License-Identifier: LGPL-2.1-or-later
"""Why there is no coverage: of a task, a handle, an object, or a function.

Pure functions of a State, which name causes in the order in which they are likely, each with its
evidence. About a function, :mod:`.function_answers` asks the image for its points as well.
"""
