# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a terminal can show."""

from __future__ import annotations

from kcovdbg.console.terminal import Painter, is_ascii_locale


def test_the_c_locale_is_ascii() -> None:
    """Rows keep their widths, and the first variable that is set decides."""
    line = (("", "a… → b │ c ×"), ("symbol", "é"))
    plain, spelled = Painter().paint(line), Painter(is_ascii=True).paint(line)
    assert spelled == "a~ > b | c x\\xe9"
    assert len(spelled) - len(r"\xe9") == len(plain) - len("é")
    assert is_ascii_locale({"LC_ALL": "C", "LANG": "en_US.UTF-8"})
    assert not is_ascii_locale({"LC_ALL": "", "LANG": "C.UTF-8"})
    assert not is_ascii_locale({})
