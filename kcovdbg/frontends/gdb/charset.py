# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text in GDB's host charset: in the C locale that is ASCII, and GDB rejects other characters, in help texts as well."""

from __future__ import annotations

from typing import Final

import gdb

_SPELLINGS: Final = {"…": "...", "–": "-", "—": "-", "←": "<-", "→": "->", "│": "|", "×": "x"}
_NARROW_SPELLINGS: Final = {**_SPELLINGS, "…": "~", "←": "<", "→": ">"}


def to_host(text: str, *, narrow: bool = False) -> str:
    """Return a text in GDB's charset.

    :param narrow: whether to keep the width, for text in columns.
    """
    charset = gdb.host_charset()
    try:
        text.encode(charset)
    except UnicodeEncodeError:
        for character, spelling in (_NARROW_SPELLINGS if narrow else _SPELLINGS).items():
            text = text.replace(character, spelling)
        return text.encode(charset, "backslashreplace").decode(charset)
    except LookupError:
        # A charset that only GDB's iconv knows.
        return text.encode("ascii", "backslashreplace").decode("ascii")
    return text
