# SPDX-License-Identifier: LGPL-2.1-or-later
"""Objects that replace a real class in a test, and cannot drift from it: they have only its
attributes.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from types import SimpleNamespace
from typing import Any


def make_stub(of: type, **attributes: object) -> Any:
    """Return an object with these attributes.

    :raises TypeError: when ``of`` has no such attribute, or calls it with other arguments than the
        stub's function takes.
    """
    known = attributes_of(of)
    if unknown := sorted(attributes.keys() - known):
        raise TypeError(f"{of.__name__} has no {', '.join(unknown)}")
    for name, value in attributes.items():
        real = inspect.getattr_static(of, name, None)
        if inspect.isfunction(real) and callable(value):
            check_call(f"{of.__name__}.{name}", real, value)
    return SimpleNamespace(**attributes)


def check_call(name: str, real: Any, stub: Any) -> None:
    """Raise TypeError unless a stub can be called with the arguments that a method requires."""
    parameters = list(inspect.signature(real).parameters.values())[1:]
    positional = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    required = sum(one.default is one.empty for one in positional)
    named = {
        one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty
    }
    try:
        inspect.signature(stub).bind(*[None] * required, **dict.fromkeys(named))
    except TypeError as error:
        raise TypeError(
            f"{name}{inspect.signature(real)} does not fit its stub {inspect.signature(stub)}: "
            f"{error}"
        ) from None


@functools.cache
def attributes_of(of: type) -> frozenset[str]:
    """Return the names of a class's attributes: its own, annotated ones, and what its methods
    assign to self.
    """
    found = set(dir(of))
    for base in of.__mro__[:-1]:
        found |= inspect.get_annotations(base).keys()
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            # Classes in C, and those that a decorator or NamedTuple made.
            continue
        found |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and isinstance(node.value, ast.Name)
            and node.value.id == "self"
        }
    return frozenset(found)
