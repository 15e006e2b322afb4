# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every convention of PCs is recognized by the coverage points; what fits none is left as it is."""

import json
import random
from array import array

import pytest

from kcovdbg.model.location import LoadedModule
from kcovdbg.records.pc_convention import CodeAddresses, find_convention, list_points
from kcovdbg.records.pc_file import NotATraceError
from kcovdbg.records.pc_list import NO_KERNEL, TraceKernel
from kcovdbg.records.pc_options import ReadingOptions
from kcovdbg.records.trace_reader import find_common_reading, read_trace, read_trace_words

BASE = 0xFFFFFFFF81000000
OFFSET = 0x22600000
MODULE = 0xFFFFFFFF9DC24000


def make_points(seed, base, size, count):
    """Points as compilers place them: a point for some 44 bytes, no two within 5."""
    source = random.Random(seed)
    points, at = [], base
    for _ in range(count):
        at += source.randint(6, 82)
        points.append(at)
    assert at < base + size
    return points


POINTS = make_points(1, BASE, 0x800000, 20_000)
IN_MODULE = make_points(2, MODULE, 0x2000, 120)
IMAGE = list_points(POINTS, (BASE, BASE + 0x100000))
KEEP = list_points(IN_MODULE, (MODULE, MODULE + 0x2000), "keep")
PLACE = LoadedModule("keep", "aa", 0x2000, ((".text", MODULE),))


def trace(seed, count=200, points=POINTS):
    source = random.Random(seed)
    pcs = source.sample(points, min(count, len(points)))
    # Loops repeat points.
    return pcs + source.choices(pcs, k=count // 2)


def find(words, points=(IMAGE, KEEP), call_length=5, **options):
    return find_convention(array("Q", words), points, call_length, **options)


CORRECTIONS = {"raw": 0, "call": 5, "minus1": 1, "twice": 10}


@pytest.mark.parametrize("offset", [0, OFFSET, 0x1E00000, 0x3C000000, -OFFSET])
@pytest.mark.parametrize("convention", CORRECTIONS)
@pytest.mark.parametrize("count", [12, 200, 3000])
def test_one_convention(convention, offset, count):
    """The offset of the kernel is known to be another one, or none."""
    pcs = trace(count, count)
    words = [pc - CORRECTIONS[convention] + offset for pc in pcs]
    for known in (0, OFFSET):
        found = find(words, kaslr_offset=known)
        assert list(found.words) == pcs
        assert [(one.convention, one.records, one.kaslr_offset) for one in found.readings] == [
            (convention, len(pcs), offset)
        ]
        assert (found.share, list(found.damaged), found.unjudged) == (1, [], 0)


@pytest.mark.parametrize(
    ("length", "conventions"),
    [(4, ("raw", "call", "minus1")), (6, ("raw", "call")), (8, ("call",))],
)
def test_other_lengths_of_calls(length, conventions):
    for convention in conventions:
        correction = length if convention == "call" else CORRECTIONS[convention]
        pcs = trace(3)
        found = find([pc - correction for pc in pcs], call_length=length)
        assert (list(found.words), found.readings[0].convention) == (pcs, convention)


def test_the_only_word():
    for convention, correction in CORRECTIONS.items():
        found = find([POINTS[7] - correction])
        assert (list(found.words), found.readings[0].convention) == ([POINTS[7]], convention)


@pytest.mark.parametrize(
    "kinds",
    [
        ("raw", "call"),
        ("call", "minus1"),
        ("raw", "twice", "call"),
        ("raw", "call", "minus1", "twice"),
    ],
)
@pytest.mark.parametrize("is_shuffled", [False, True])
def test_several_conventions_in_one_file(kinds, is_shuffled):
    halves = trace(5, 400)[: 100 * len(kinds)]
    pairs = [(pc, pc - CORRECTIONS[kinds[index // 100]]) for index, pc in enumerate(halves)]
    if is_shuffled:
        random.Random(6).shuffle(pairs)
    found = find([word for _, word in pairs])
    right = sum(pc == word for (pc, _), word in zip(pairs, found.words, strict=True))
    # A word may be a point in two ways by chance: points are 6 bytes apart at least.
    assert right >= 0.9 * len(pairs)
    assert {one.convention for one in found.readings} == set(kinds)
    assert sum(one.records for one in found.readings) == len(pairs)


def test_a_word_in_two_ways_is_the_point_of_a_basic_block():
    """The return address of a call that follows a point at once may be that of a tail call."""
    pcs = [BASE + 100 * index for index in range(1, 60)]
    tails = [pc + 5 for pc in pcs[:10]]
    every = sorted(pcs + tails)
    kinds = [0 if pc in pcs else 2 for pc in every]
    image = CodeAddresses(
        BASE, array("I", (pc - BASE for pc in every)), (BASE, BASE + 0x4000), kinds=kinds
    )
    words = pcs[:30] + [pc - 5 for pc in pcs]
    found = find(words, (image,))
    assert list(found.words) == pcs[:30] + pcs
    assert {one.convention: one.records for one in found.readings} == {"raw": 30, "call": 59}


@pytest.mark.parametrize(("main", "other"), [("call", "raw"), ("raw", "call"), ("twice", "call")])
def test_records_of_tail_calls_are_no_convention(main, other):
    """Such a record is the return address of a call, which may follow another point at once."""
    pcs = trace(21, 300)
    distinct = [*dict.fromkeys(pcs)]
    few = len(distinct) // 30
    tails = [pc - CORRECTIONS[other] for pc in make_tails(few, distinct)]
    words = [pc - CORRECTIONS[main] for pc in pcs]
    found = find(words + tails)
    assert [one.convention for one in found.readings] == [main]
    assert list(found.words) == pcs + tails
    assert list(found.damaged) == [*range(len(pcs), len(pcs) + few)]


def make_tails(count, taken):
    """Return points that are points in no other convention."""
    known = set(POINTS)
    alone = [
        pc
        for pc in POINTS
        if pc not in taken
        and not any(pc + delta in known for delta in (-10, -9, -5, -4, -1, 1, 4, 5, 9))
    ]
    return random.Random(22).sample(alone, count)


@pytest.mark.parametrize("convention", CORRECTIONS)
def test_damage_is_counted_and_left_alone(convention):
    known = set(POINTS)
    source = random.Random(9)
    pcs = trace(8)
    words = [pc - CORRECTIONS[convention] for pc in pcs]
    at = sorted(source.sample(range(len(words)), 5))
    for index in at:
        word = BASE + 0x40000
        while any(word + delta in known for delta in CORRECTIONS.values()):
            word += 1
        words[index] = word
    found = find(words)
    assert list(found.damaged) == at
    assert all(found.words[index] == words[index] for index in at)
    assert found.share == 1 - 5 / len(words)
    assert all(found.words[index] == pc for index, pc in enumerate(pcs) if index not in at)


def test_a_trace_of_another_kernel_is_suspicious():
    others = make_points(77, BASE, 0x800000, 20_000)
    found = find(trace(4, 300, others))
    assert found.share < 0.2
    assert found.in_reach == 1
    assert list(found.words) == trace(4, 300, others)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_words_do_not_make_an_offset(count):
    """Among 65,536 offsets, there is one for any word."""
    words = [BASE + 0x40000 + 4096 * index for index in range(count)]
    found = find(
        words,
        (
            list_points(
                [pc for pc in POINTS if pc % 65536 not in {word % 65536 for word in words}] + [BASE]
            ),
        ),
    )
    assert list(found.words) == words
    assert not any(one.kaslr_offset for one in found.readings)


def test_modules_count():
    pcs = trace(1) + IN_MODULE
    for correction in CORRECTIONS.values():
        found = find([pc - correction for pc in pcs], modules=(("keep", MODULE, MODULE + 0x2000),))
        assert (list(found.words), found.share, list(found.damaged)) == (pcs, 1, [])


@pytest.mark.parametrize("shift", [0x18, 0x24, -0x40, 0x1000, 0x345000, -0x12000])
@pytest.mark.parametrize("correction", [0, 5])
def test_a_module_that_is_moved(shift, correction):
    pcs = trace(1) + IN_MODULE[:40]
    words = [pc - correction + (shift if pc >= MODULE else 0) for pc in pcs]
    found = find(words, modules=(("keep", MODULE, MODULE + 0x2000),))
    assert list(found.words) == pcs
    moved = [one for one in found.readings if one.module is not None]
    assert [(one.module, one.records, one.shift) for one in moved] == [("keep", 40, -shift)]
    assert found.share == 1


def test_few_words_of_a_module_are_marked_instead():
    words = [*trace(1), IN_MODULE[0] + 3, IN_MODULE[5] + 7]
    found = find(words, modules=(("keep", MODULE, MODULE + 0x2000),))
    assert list(found.damaged) == [len(words) - 2, len(words) - 1]
    assert list(found.words) == words


def test_a_module_without_known_points_goes_with_the_others():
    words = [pc - 5 for pc in trace(1)] + [0xFFFFFFFFA0001000]
    for points in ((IMAGE,), (IMAGE, KEEP)):
        found = find(words, points, modules=(("ext4", 0xFFFFFFFFA0000000, 0xFFFFFFFFA0010000),))
        assert (found.unjudged, found.words[-1], found.share) == (1, 0xFFFFFFFFA0001005, 1)


def test_upper_halves_that_were_cut_off():
    pcs = trace(1)
    found = find([pc - 5 & 0xFFFFFFFF for pc in pcs])
    assert (list(found.words), found.restored, found.readings[0].convention) == (
        pcs,
        len(pcs),
        "call",
    )


KERNEL = TraceKernel("aa", OFFSET, "x86_64", lambda: (IMAGE, KEEP), lambda: (PLACE,))


def write(tmp_path, words):
    path = tmp_path / "t"
    path.write_text("".join(f"{word:#x}\n" for word in words))
    return path


def test_remarks_on_a_file(tmp_path):
    pcs = trace(1)
    buffer = read_trace(write(tmp_path, [pc - 1 + OFFSET for pc in pcs]), KERNEL)
    assert (list(buffer.words), buffer.kaslr_offset) == (pcs, OFFSET)
    assert (
        "100% of them are return addresses minus 1, with the KASLR offset 0x22600000"
        in buffer.remarks[0]
    )


@pytest.mark.parametrize(("pc", "correction"), CORRECTIONS.items())
def test_what_the_user_says_is_not_doubted(tmp_path, pc, correction):
    pcs = trace(1)
    path = write(tmp_path, [pc + 0x100 for pc in pcs])
    buffer = read_trace(path, KERNEL, ReadingOptions(pc=pc))
    assert list(buffer.words) == [pc + 0x100 + correction for pc in pcs]
    buffer = read_trace(path, KERNEL, ReadingOptions(pc=pc, kaslr_offset=0x100))
    assert list(buffer.words) == [pc + correction for pc in pcs]


def test_an_offset_that_the_user_names(tmp_path):
    pcs = trace(1)
    path = write(tmp_path, [pc - 5 + 0x1000 for pc in pcs])
    buffer = read_trace(path, KERNEL, ReadingOptions(kaslr_offset=0x1000))
    assert list(buffer.words) == pcs
    assert "calls of coverage points, with the KASLR offset 0x1000" in buffer.remarks[0]
    assert (
        list(read_trace(write(tmp_path, pcs), KERNEL, ReadingOptions(kaslr_offset=0)).words) == pcs
    )


def test_addresses_of_data_are_refused(tmp_path):
    with pytest.raises(NotATraceError):
        read_trace(
            write(tmp_path, [0xFFFF888004A1E000 + 64 * index for index in range(50)]), KERNEL
        )


def test_a_kernel_in_the_lower_half(tmp_path):
    """That of s390x."""
    points = make_points(3, 0x100000, 0x800000, 5000)
    kernel = TraceKernel("aa", 0, "s390x", lambda: (list_points(points, (0x100000, 0x900000)),))
    path = write(tmp_path, [pc - 6 for pc in points[:100]])
    assert list(read_trace(path, kernel).words) == points[:100]
    with pytest.raises(NotATraceError):
        read_trace(path)


def test_a_buffer_without_side_file_is_read_in_any_convention(tmp_path):
    pcs = trace(1)
    path = tmp_path / "b"
    path.write_bytes(array("Q", [len(pcs), *(pc - 5 for pc in pcs)]).tobytes())
    buffer = read_trace(path, KERNEL)
    assert list(buffer.words) == pcs
    assert "calls of coverage points" in buffer.remarks[0]
    quiet = tmp_path / "c"
    quiet.write_bytes(array("Q", [len(pcs), *pcs]).tobytes())
    assert len(read_trace(quiet, KERNEL).remarks) == 1


@pytest.mark.parametrize(("convention", "correction"), CORRECTIONS.items())
@pytest.mark.parametrize("count", [1, 5, 19, 20, 40])
def test_few_pcs_do_not_decide(tmp_path, convention, correction, count):
    """What fits is said, and --pc decides."""
    pcs = trace(31, count)
    words = [pc - correction for pc in pcs]
    path = write(tmp_path, words)
    buffer = read_trace(path, KERNEL)
    decides = count >= 20
    assert list(buffer.words) == (pcs if decides else words)
    if not decides:
        assert f"{len(pcs)} are" in buffer.remarks[0]
        assert f"--pc {convention}" in buffer.remarks[0]
        assert buffer.fit.is_low == (convention != "raw")
        assert (
            buffer.fit.hint is None
            if convention == "raw"
            else buffer.fit.hint.startswith(f"--pc {convention}")
        )
    named = read_trace(path, KERNEL, ReadingOptions(pc=convention))
    assert list(named.words) == pcs
    assert named.fit.points == named.fit.judged == len(pcs)


def test_lists_in_a_directory_decide_together(tmp_path):
    pcs = [trace(seed, 12) for seed in range(4)]
    for number, its in enumerate(pcs):
        (tmp_path / f"{number}.txt").write_text("".join(f"{pc - 5:#x}\n" for pc in its))
    paths = sorted(tmp_path.iterdir())
    words = [read_trace_words(path, KERNEL, ReadingOptions()) for path in paths]
    reading = find_common_reading(words, KERNEL, ReadingOptions())
    assert [list(read_trace(path, KERNEL, reading).words) for path in paths] == pcs
    assert find_common_reading(words[:1], KERNEL, ReadingOptions()) == ReadingOptions()


def test_a_list_of_another_build_fits_badly(tmp_path):
    others = make_points(77, BASE, 0x800000, 20_000)
    for options in (ReadingOptions(), ReadingOptions(pc="raw")):
        buffer = read_trace(write(tmp_path, trace(4, 300, others)), KERNEL, options)
        assert buffer.fit.is_low
        assert buffer.fit.remark == buffer.remarks[0]
    assert not read_trace(write(tmp_path, trace(4, 300)), KERNEL).fit.is_low


def test_what_json_calls_pcs_are_records(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"pcs":[123]}')
    for kernel in (NO_KERNEL, KERNEL):
        assert list(read_trace(path, kernel).words) == [123]


@pytest.mark.parametrize(
    ("order", "is_known"),
    [
        (sorted(POINTS[:40]), False),
        (sorted(POINTS[:40], reverse=True), False),
        (sorted(POINTS[:40] * 2), False),
        (trace(3, 40), True),
        (POINTS[:5], False),
        (POINTS[:4], None),
        (POINTS[:2], None),
        (POINTS[:1], True),
        ([], True),
    ],
)
def test_order(tmp_path, order, is_known):
    """A buffer has one, however its records are; a list has none where its words are sorted."""
    assert read_trace(write(tmp_path, order), KERNEL).order.is_known is is_known
    path = tmp_path / "b"
    path.write_bytes(array("Q", [len(order), *order]).tobytes())
    assert read_trace(path, KERNEL).order.is_known is True


def test_formats_that_list_points_have_no_order(tmp_path):
    shuffled = trace(3, 40)
    texts = {
        "set": "{" + ", ".join(map(hex, shuffled)) + "}",
        "edges": "".join(f"{pc:x},{pc:x},1\n" for pc in shuffled),
        "jsonl": "".join(f'{{"hit_count":1,"pc":{pc}}}\n' for pc in shuffled),
        "rawcoverfiles": "PC,Module,Offset,Filename,Inline,StartLine,EndLine\n"
        + "".join(f"{pc:#x},,{pc:#x},a.c,false,1,1\n" for pc in shuffled),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert read_trace(tmp_path / name, KERNEL).order.is_known is False, name
    (tmp_path / "b.json").write_text(
        json.dumps([{"index": at, "pc": hex(pc)} for at, pc in enumerate(shuffled)])
    )
    assert read_trace(tmp_path / "b.json", KERNEL).order.is_known is True


def test_a_kernel_without_known_points_is_not_said_to_fit(tmp_path):
    """Such as an image without its code; its symbols give names to most PCs of any other kernel."""
    path = write(tmp_path, range(BASE, BASE + 64))
    for options in (ReadingOptions(), ReadingOptions(pc="raw")):
        unknown = read_trace(path, TraceKernel("aa", 0, "x86_64", lambda: None), options)
        assert any("of this kernel is unknown" in remark for remark in unknown.remarks)
        assert unknown.fit is None
        unnamed = read_trace(path, NO_KERNEL, options)
        assert len(unnamed.remarks) < len(unknown.remarks)
