# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locations of PCs: from the table, from the debugger, and remarks on the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcovdbg.elf.file import ElfFile
from kcovdbg.model.location import Frame, Location
from kcovdbg.symbols import symbolizer as resolve
from kcovdbg.symbols.awaited_table import AwaitedTable, find_awaited_table
from kcovdbg.symbols.coverage_points import PointKind
from kcovdbg.symbols.location_table import FunctionSymbol, LocationTable, TextRange
from kcovdbg.symbols.source_tree import SourceTree
from kcovdbg.symbols.symbolizer import ImageText, Symbolizer, find_image_text
from kcovdbg.symbols.table_cache import TableBuild
from tests.support.programs import output_of
from tests.support.stub import make_stub
from tests.support.table_writer import TableWriter

BASE = 0xFFFFFFFF81000000
OFFSET = 0x1C000000
TEXT = (
    TextRange(BASE, BASE + 0x1000, ".text"),
    TextRange(BASE + 0x4000, BASE + 0x5000, ".init.text"),
)
F = Frame("f", "a.c", 3, 4)
MASK = 2**64 - 1


@pytest.fixture
def table(tmp_path):
    writer = TableWriter("ab" * 20, TEXT)
    writer.add_frames(BASE + 0x10, PointKind.PC, [F])
    writer.add_frames(BASE + 0x20, PointKind.TAIL, [F])
    writer.add_frames(BASE + 0x30, PointKind.CMP, [])
    writer.add_frames(BASE + 0x1000, PointKind.PC, [F])
    writer.add_frames(BASE + 0x4010, PointKind.PC, [F])
    writer.add_function(FunctionSymbol("asm_f", BASE, 0x100))
    writer.write(tmp_path / "t")
    return LocationTable(tmp_path / "t")


def debugger(answers, asked=None):
    """Return a function that knows the frames of some addresses."""

    def find(address):
        if asked is not None:
            asked.append(address)
        return answers.get(address, ())

    return find


class Modules:
    def name_at(self, address):
        return "m" if address == 0xFFFFFFFFC0000FFF else None

    def may_hold(self, address):
        return address >= 0xFFFFFFFFC0000000


def test_by_table(table):
    asked = []
    symbolizer = Symbolizer(OFFSET, table=AwaitedTable(table), fallback=debugger({}, asked))

    def at(pc):
        return symbolizer.locate(BASE + pc)

    assert at(0x10) == Location(BASE + OFFSET + 0x10, (F,), None)
    assert at(0x20) == Location(BASE + OFFSET + 0x20, (F,), resolve.TAIL_CALL, approximate=True)
    assert at(0x30) == Location(
        BASE + OFFSET + 0x30, (Frame("asm_f", None, None, None),), resolve.NO_LINES
    )
    # Behind the last byte of the text: a call that doesn't return.
    assert at(0x1000).remark is None
    assert at(0x4010).remark == resolve.INIT_TEXT
    assert asked == []
    assert [symbolizer.function_starting_at(BASE + offset) for offset in (0, 0x10, 0x100)] == [
        "asm_f",
        None,
        None,
    ]


def test_by_fallback(table):
    asked = []
    answers = {BASE + OFFSET + 0x3F: (F,), BASE + OFFSET + 0x401F: (F,)}
    symbolizer = Symbolizer(OFFSET, table=AwaitedTable(table), fallback=debugger(answers, asked))
    # It is no coverage point: the table has all of them.
    assert symbolizer.locate(BASE + 0x40) == Location(
        BASE + OFFSET + 0x40, (F,), resolve.NOT_A_POINT, approximate=True
    )
    assert symbolizer.locate(BASE + 0x4020).remark == resolve.INIT_TEXT
    assert symbolizer.locate(BASE + 0x50).remark == resolve.NO_LINES
    before = len(asked)
    symbolizer.locate_all([BASE + 0x40, BASE + 0x50] * 3)
    assert len(asked) == before


def test_modules_and_no_text(table):
    symbolizer = Symbolizer(
        OFFSET,
        table=AwaitedTable(table),
        fallback=debugger({0xFFFFFFFFC0000FFF: (F,)}),
        modules=Modules(),
    )

    def at(address):
        return symbolizer.locate(address - OFFSET & MASK)

    assert at(0xFFFFFFFFC0001000) == Location(0xFFFFFFFFC0001000, (F,), None)
    assert at(0xFFFFFFFFC0002000) == Location(0xFFFFFFFFC0002000, (), resolve.UNLOADED)
    assert at(0x1234) == Location(0x1234, (), resolve.NO_TEXT)
    assert symbolizer.locate(0).remark == resolve.NO_TEXT
    # A module without debug info.
    assert (
        Symbolizer(modules=Modules(), text=ImageText(TEXT)).locate(0xFFFFFFFFC0001000).remark
        == "module m: no line information"
    )


def test_without_anything():
    assert Symbolizer().locate(BASE) == Location(BASE, (), resolve.NO_TEXT)
    symbolizer = Symbolizer(fallback=debugger({BASE: (F,)}))
    assert symbolizer.locate(BASE + 1) == Location(BASE + 1, (F,), None)


def test_32_bit_addresses_wrap():
    assert Symbolizer(0xFFFFFFF0, word_size=4).locate(0x20).address == 0x10


@given(st.lists(st.integers(0, MASK)))
def test_nothing_is_dropped(pcs):
    found = Symbolizer(OFFSET, text=ImageText(TEXT), modules=Modules()).locate_all(pcs)
    assert [location.address for location in found] == [pc + OFFSET & MASK for pc in pcs]
    assert all(location.remark for location in found)


def test_a_table_is_taken_over_when_it_is_there(table):
    tables = [None, table]
    awaited = AwaitedTable(build=make_stub(TableBuild, find=lambda: tables.pop(0)))
    symbolizer = Symbolizer(
        table=awaited, text=ImageText(TEXT), fallback=debugger({BASE + 0x1F: (F,)})
    )
    assert symbolizer.locate(BASE + 0x20).remark is None
    assert awaited.found is None, "asks not each time"
    assert awaited.is_awaited
    awaited._next_look = 0
    assert symbolizer.locate_all([BASE + 0x20])[0].remark == resolve.TAIL_CALL
    assert awaited.found is table


def test_functions_without_source_lines(tmp_path):
    """No table is made of such an image; its symbol table names functions all the same."""
    code = 'void f(void){}\nvoid g(void) __attribute__((alias("f")));\nvoid _start(void){f();}'
    (tmp_path / "a.c").write_text(code)
    flags = ["-g0", "-O0", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=0xabcd"]
    output_of("gcc", *flags, "-o", "a", "a.c", cwd=tmp_path)
    with ElfFile(tmp_path / "a") as elf:
        listed = elf.symbols
    symbols = {symbol.name: symbol for symbol in listed}
    first = next(symbol.name for symbol in listed if symbol.name in ("f", "g"))
    symbolizer = Symbolizer(
        OFFSET,
        table=find_awaited_table("abcd", tmp_path / "a", folder=tmp_path / "cache"),
        text=find_image_text("abcd", tmp_path / "a"),
    )

    def names(pc):
        location = symbolizer.locate(pc)
        assert location.remark == resolve.NO_LINES
        return [frame.function for frame in location.frames]

    start = symbols["_start"]
    assert names(symbols["f"].address + 1) == [first]
    assert names(start.address + 1) == names(start.address + start.size) == ["_start"]
    assert symbolizer.locate(5).remark == resolve.NO_TEXT
    # If the file is gone by then, there are no names, and no error.
    assert Symbolizer(text=ImageText(TEXT, tmp_path / "nosuch")).locate(BASE + 1).frames == ()


def test_source_text(tmp_path):
    tree = tmp_path / "tree"
    (tree / "kernel").mkdir(parents=True)
    (tree / "kernel" / "a.c").write_bytes(b"one\r\ntwo\x0c\nth\xffree")
    for source in (
        SourceTree([tmp_path / "nosuch", tree]),
        SourceTree(build_directory=str(tree), image=str(tree / "vmlinux")),
        SourceTree(
            build_directory="/nosuch/b",
            substitutions=[("/nosuch/bb", "/x"), ("/nosuch/b/", f"{tree}/")],
        ),
    ):
        for name in ("kernel/a.c", "./kernel/a.c", "kernel/../kernel/a.c"):
            text = source.read(name)
            assert (text.lines, text.remark) == (("one", "two\x0c", "th\ufffdree"), None)
            assert [text.line(number) for number in (1, 3, 4, 0, None)] == [
                "one",
                "th\ufffdree",
                None,
                None,
                None,
            ]
    assert (
        SourceTree([tree], build_directory="/nosuch/b").read("/nosuch/b/kernel/a.c").path
        == tree / "kernel" / "a.c"
    )
    assert "--source-dir" in SourceTree().read("kernel/a.c").remark
    assert "nosuch.c" in SourceTree([tree]).read("nosuch.c").remark
    assert SourceTree().read(None).remark
