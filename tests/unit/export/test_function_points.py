# SPDX-License-Identifier: LGPL-2.1-or-later
"""The points of functions, in columns, are those of the table's rows."""

from collections import Counter

from kcovdbg.export.function_points import PointRows, count_functions
from kcovdbg.records.native_loops import find_chains
from kcovdbg.records.pc_counts import as_counts
from kcovdbg.symbols.coverage_points import PointKind
from tests.unit.records.test_pc_columns import BASE, TEXT, make_names, random_traces


@random_traces
def test_functions(tmp_path_factory, rows, words):
    rows = rows or {}
    table = make_names(tmp_path_factory.mktemp("t"), rows)._find_table()
    points = PointRows(table.columns, {PointKind.PC})
    groups = list(points.group(table.functions(), TEXT.start, TEXT.end, 5))
    # The call is in the function, the return address is not.
    of_function = {
        number: [
            pc
            for pc in sorted(rows)
            if rows[pc][0] is PointKind.PC and 0 <= pc - 5 - (BASE + 10 * number) < 8
        ]
        for number in range(6)
    }
    assert {group.function.name: points.select(group)[0] for group in groups} == {
        f"s{number}": pcs for number, pcs in of_function.items() if pcs
    }
    known = as_counts(Counter(words))
    seen = find_chains(known.pcs, table.columns).seen
    assert [tuple(row) for row in count_functions(groups, points, seen)] == [
        ("a.c", f"s{number}", sum(pc in known for pc in pcs), len(pcs))
        for number, pcs in of_function.items()
        if pcs and number
    ]
