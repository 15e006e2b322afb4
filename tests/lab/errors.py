# SPDX-License-Identifier: LGPL-2.1-or-later
"""Errors of the lab."""

from __future__ import annotations


class LabError(Exception):
    """The lab could not do what it was asked."""


class UnavailableError(LabError):
    """This machine lacks something that the lab needs.

    Tests are skipped with this reason; the command line has the remedy.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}\n{remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy
