# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text in GDB's host charset. In the C locale that is ASCII, and GDB refuses whatever else it is handed, help texts too."""

from __future__ import annotations

from typing import Final

import gdb

_SPELLINGS: Final = {"…": "...", "–": "-", "—": "-", "←": "<-", "→": "->", "│": "|", "×": "x"}
_NARROW_SPELLINGS: Final = {**_SPELLINGS, "…": "~", "←": "<", "→": ">"}


def to_host(text: str, *, narrow: bool = False) -> str:
    """Spell a text with what GDB's charset has.

    :param narrow: what stands in columns keeps its width.
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
