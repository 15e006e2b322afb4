# SPDX-License-Identifier: LGPL-2.1-or-later
"""Reference texts for clients: the vocabulary, the table of generations, the rules of ``check``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kcovdbg.console.argument import EXPLANATIONS, Value
from kcovdbg.console.vocabulary import VOCABULARY
from kcovdbg.frontends.mcp.tools import ToolBox, read_rows
from kcovdbg.series.table import eras

JSON_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """One text, as JSON."""

    name: str
    summary: str
    make: Callable[[ToolBox], object]

    def write(self, box: ToolBox) -> str:
        """Return the text."""
        return json.dumps(self.make(box), indent=1)


def _make_vocabulary(_box: ToolBox) -> object:
    return {"words": VOCABULARY, "values": {value.value: text for value, text in EXPLANATIONS.items()}}


def _make_generations(_box: ToolBox) -> object:
    return [era._asdict() for era in eras()]


def _make_rules(box: ToolBox) -> object:
    return read_rows(box, "check", {"list": True})


REFERENCE_TEXTS: Final[Mapping[str, ReferenceText]] = {
    "kcovdbg://vocabulary": ReferenceText(
        "vocabulary",
        f"the words of answers, and how to write a {Value.BUFFER.value} and a {Value.HANDLE.value}",
        _make_vocabulary,
    ),
    "kcovdbg://generations": ReferenceText("generations", "the layouts of KCOV, by kernel release", _make_generations),
    "kcovdbg://rules": ReferenceText("rules", "the rules of check, with the known bugs that violate them", _make_rules),
}
"""The texts, by URI."""
