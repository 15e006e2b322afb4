# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names of Rust functions as LLVM's tools print them: ``_RNvCs1_6kernel4init`` is ``kernel::init``.

The kernel has names of the v0 scheme, which RFC 2603 of Rust describes. The legacy scheme,
``_ZN…17h<hash>E``, is a list of identifiers, which remain as they are, the hash included.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Final

# Names are hostile: references to earlier parts let a short one grow without end.
_MAX_SIZE: Final = 4096
_MAX_TEXT: Final = 1 << 16
_MAX_STEPS: Final = 1 << 14
_MAX_DEPTH: Final = 128
_MAX_NUMBER: Final = (1 << 64) - 2

_LEGACY: Final = re.compile(
    r"_ZN(\d+[A-Za-z_$.][\w$.]*17h[0-9a-f]{16})E(\..*)?", re.ASCII | re.DOTALL
)
_V0: Final = re.compile(r"_R([A-Z][0-9A-Za-z_]*)(\..*)?", re.ASCII | re.DOTALL)
_DECIMAL: Final = re.compile(r"0|[1-9]\d*", re.ASCII)
_HEXADECIMAL: Final = re.compile(r"(0|[1-9a-f][0-9a-f]*)_")
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BASIC_TYPES: Final = dict(
    zip(
        "abcdefhijlmnopstuvxyz",
        (
            "i8 bool char f64 str f32 u8 isize usize i32 u32 i128 u128 _ i16 u16 () ... i64 u64 !"
        ).split(),
        strict=True,
    )
)
_INTEGERS: Final = frozenset("ahijlmnostxy")
_SIGNED: Final = frozenset("ailnsx")
_ESCAPES: Final = {"\t": r"\t", "\r": r"\r", "\n": r"\n", "'": r"\'", "\\": r"\\"}


@lru_cache(1 << 16)
def demangle_rust(name: str) -> str:
    """Return the name of a Rust function as LLVM's tools print it; return other and damaged names
    as they are.
    """
    if len(name) > _MAX_SIZE:
        return name
    try:
        if found := _V0.fullmatch(name):
            text = _Parser(found[1]).parse()
        elif found := _LEGACY.fullmatch(name):
            text = _split_legacy(found[1])
        else:
            return name
    except (ValueError, LookupError, OverflowError):
        # UnicodeError of punycode included.
        return name
    if found[2]:
        text += f" ({found[2]})"
    return text


def _split_legacy(text: str) -> str:
    parts = []
    while text:
        digits = _DECIMAL.match(text)
        if digits is None:
            raise ValueError("no length")
        end = digits.end() + int(digits[0])
        if end > len(text):
            raise ValueError("truncated")
        parts.append(text[digits.end() : end])
        text = text[end:]
    return "::".join(parts)


def _bounded(read: Callable[..., str]) -> Callable[..., str]:
    """Refuse names with too many parts, or too much text."""

    def bounded(parser: _Parser, *arguments: bool) -> str:
        parser.steps += 1
        parser.depth += 1
        if parser.steps > _MAX_STEPS or parser.depth > _MAX_DEPTH:
            raise ValueError("too complex")
        text = read(parser, *arguments)
        parser.depth -= 1
        if len(text) > _MAX_TEXT:
            raise ValueError("too long")
        return text

    return bounded


class _Parser:
    """The parser of one name, without its prefix and suffix. Methods return text, and raise an
    error for a text that is no name.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.steps = 0
        self.depth = 0
        self._is_shown = True
        # Whether the last path ends with generic arguments.
        self._is_generic = False
        # Number of lifetimes of the binders ("for<'a>") around the current part.
        self._lifetimes = 0

    def parse(self) -> str:
        text = self._path()
        if self._at < len(self._text):
            # The crate that instantiated the function.
            self._skip_path()
        if self._at < len(self._text):
            raise ValueError("something follows")
        return text

    # Characters.

    def _next(self) -> str:
        character = self._text[self._at]
        self._at += 1
        return character

    def _skip(self, character: str) -> bool:
        found = self._text.startswith(character, self._at)
        self._at += found
        return found

    def _base62(self) -> int:
        """Read a number, which ends with ``_``; without digits, it is 0."""
        if self._skip("_"):
            return 0
        value = 0
        while (character := self._next()) != "_":
            value = 62 * value + _DIGITS.index(character)
        if value >= _MAX_NUMBER:
            raise ValueError("more than 64 bits")
        return value + 1

    def _optional(self, tag: str) -> int:
        return self._base62() + 1 if self._skip(tag) else 0

    def _identifier(self) -> str:
        is_punycode = self._skip("u")
        digits = _DECIMAL.match(self._text, self._at)
        if digits is None:
            raise ValueError("no length")
        self._at = digits.end()
        self._skip("_")
        end = self._at + int(digits[0])
        if end > len(self._text):
            raise ValueError("truncated")
        name, self._at = self._text[self._at : end], end
        if is_punycode:
            # Mangled names cannot have the delimiter "-": they have "_".
            name = "-".join(name.rsplit("_", 1)).encode("ascii").decode("punycode")
            # Refuse surrogates and null characters.
            if b"\0" in name.encode("utf-8"):
                raise ValueError("not text")
        return name

    def _hexadecimal(self) -> str:
        found = _HEXADECIMAL.match(self._text, self._at)
        if found is None:
            raise ValueError("not a number")
        self._at = found.end()
        return found[1]

    def _list(self, read: Callable[[], str]) -> list[str]:
        """Read items until an E."""
        items = []
        while not self._skip("E"):
            items.append(read())
        return items

    def _reference(self, read: Callable[[], str]) -> str:
        """Read an earlier part of the name again."""
        start = self._at - 1
        target = self._base62()
        if target >= start:
            raise ValueError("not an earlier part")
        if not self._is_shown:
            return ""
        back, self._at = self._at, target
        text = read()
        self._at = back
        return text

    # The grammar.

    @_bounded
    def _path(self, in_type: bool = False) -> str:
        kind = self._next()
        if kind == "B":
            return self._reference(lambda: self._path(in_type))
        if kind == "C":
            self._optional("s")
            text = self._identifier()
        elif kind in "MXY":
            if kind != "Y":
                self._optional("s")
                self._skip_path()
            text = self._type()
            if kind != "M":
                text += f" as {self._path(True)}"
            text = f"<{text}>"
        elif kind == "N":
            text = self._nested(in_type)
        elif kind == "I":
            path = self._path(in_type)
            bracket = "<" if in_type else "::<"
            text = f"{path}{bracket}{', '.join(self._list(self._generic))}>"
        else:
            raise ValueError("not a path")
        self._is_generic = kind == "I"
        return text

    def _skip_path(self) -> None:
        before, self._is_shown = self._is_shown, False
        self._path()
        self._is_shown = before

    def _nested(self, in_type: bool) -> str:
        space = self._next()
        if not space.isalpha():
            raise ValueError("not a namespace")
        outer = self._path(in_type)
        number, name = self._optional("s"), self._identifier()
        if space.isupper():
            kind = {"C": "closure", "S": "shim"}.get(space, space)
            named = ":".join(filter(None, (kind, name)))
            return f"{outer}::{{{named}#{number}}}"
        return "::".join(filter(None, (outer, name)))

    def _generic(self) -> str:
        if self._skip("L"):
            return self._lifetime(self._base62())
        return self._constant() if self._skip("K") else self._type()

    def _lifetime(self, index: int) -> str:
        if index > self._lifetimes:
            raise ValueError("an unbound lifetime")
        if not index:
            return "'_"
        depth = self._lifetimes - index
        return f"'{chr(ord('a') + depth)}" if depth < 26 else f"'z{depth - 25}"

    def _binder(self) -> str:
        """Read the lifetimes over which the next part is generic."""
        count = self._optional("G")
        if count > _MAX_SIZE:
            raise ValueError("too many lifetimes")
        names = []
        for _ in range(count):
            self._lifetimes += 1
            names.append(self._lifetime(1))
        return f"for<{', '.join(names)}> " if names else ""

    @_bounded
    def _type(self) -> str:
        kind = self._next()
        if kind in _BASIC_TYPES:
            return _BASIC_TYPES[kind]
        if kind == "A":
            return f"[{self._type()}; {self._constant()}]"
        if kind == "S":
            return f"[{self._type()}]"
        if kind == "T":
            items = self._list(self._type)
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if kind in "RQ":
            text = "&"
            if self._skip("L"):
                lifetime = self._base62()
                if lifetime:
                    text += f"{self._lifetime(lifetime)} "
            if kind == "Q":
                text += "mut "
            return text + self._type()
        if kind in "PO":
            return {"P": "*const ", "O": "*mut "}[kind] + self._type()
        if kind == "F":
            before = self._lifetimes
            text = self._function()
            self._lifetimes = before
            return text
        if kind == "D":
            before = self._lifetimes
            text = f"dyn {self._binder()}{' + '.join(self._list(self._trait))}"
            self._lifetimes = before
            return text + self._bound()
        if kind == "B":
            return self._reference(self._type)
        self._at -= 1
        return self._path(True)

    def _function(self) -> str:
        text = self._binder()
        if self._skip("U"):
            text += "unsafe "
        if self._skip("K"):
            abi = "C" if self._skip("C") else self._identifier().replace("_", "-")
            text += f'extern "{abi}" '
        text += f"fn({', '.join(self._list(self._type))})"
        return text if self._skip("u") else f"{text} -> {self._type()}"

    def _bound(self) -> str:
        if not self._skip("L"):
            raise ValueError("no lifetime")
        lifetime = self._base62()
        return f" + {self._lifetime(lifetime)}" if lifetime else ""

    def _trait(self) -> str:
        text = self._path(True)
        start = f"{text[:-1]}, " if self._is_generic else f"{text}<"
        types = []
        while self._skip("p"):
            types.append(f"{self._identifier()} = {self._type()}")
        return f"{start}{', '.join(types)}>" if types else text

    @_bounded
    def _constant(self) -> str:
        kind = self._next()
        if kind == "B":
            return self._reference(self._constant)
        if kind == "p":
            return "_"
        if kind in _INTEGERS:
            sign = ""
            if kind in _SIGNED and self._skip("n"):
                sign = "-"
            digits = self._hexadecimal()
            if len(digits) > 16:
                return f"{sign}0x{digits}"
            return f"{sign}{int(digits, 16)}"
        if kind == "b":
            return {"0": "false", "1": "true"}[self._hexadecimal()]
        if kind == "c":
            return _quote(chr(int(self._hexadecimal(), 16)))
        raise ValueError("not a constant")


def _quote(character: str) -> str:
    if character in _ESCAPES:
        return f"'{_ESCAPES[character]}'"
    if " " <= character <= "~":
        return f"'{character}'"
    return f"'\\u{{{ord(character):x}}}'"
