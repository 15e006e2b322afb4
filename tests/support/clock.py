# SPDX-License-Identifier: LGPL-2.1-or-later
"""A clock that goes only when a test says so."""


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self):
        self.now = 1_000_000.0
        self.used = 0.0

    def time(self):
        return self.now

    def monotonic(self):
        return self.now

    def process_time(self):
        return self.used

    def sleep(self, seconds):
        self.now += seconds
