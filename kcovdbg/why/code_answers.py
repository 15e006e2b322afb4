# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answers about code by the blocks and calls of its functions: whether it ran, and if not, which
branch or system call stood before it.

Code did not run only if the states of its blocks say so; otherwise the answer is unknown. Paths
consist of direct calls. For functions that are called through pointers, the places with their
addresses are candidates.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

from kcovdbg.abi.record import Comparison
from kcovdbg.console.context import Context
from kcovdbg.console.wording import format_operand
from kcovdbg.elf.symbol_table import strip_clone_suffix
from kcovdbg.errors import CapabilityError
from kcovdbg.inputs.code_names import unknown_file
from kcovdbg.model.buffer import Buffer
from kcovdbg.model.interrupt_frames import is_interrupt_function
from kcovdbg.model.kcov import amount_text, name_some
from kcovdbg.records.line_states import BlockState, CodeBlock, LineState, Quality, TraceRecords
from kcovdbg.records.located_records import matches_path
from kcovdbg.symbols.blocks import BlockFlag, FunctionFlag
from kcovdbg.symbols.call_graph import CallSite
from kcovdbg.why.call_ways import Branch, Guard, Way, WayFinder, order_ways
from kcovdbg.why.code_subject import NO_RECORDS, CodeSubject
from kcovdbg.why.function_answers import PCS, count_covered
from kcovdbg.why.joined_code import WholeCode
from kcovdbg.why.missing_coverage import Answer, CodePlace, Compared, Reason, Values
from kcovdbg.why.uncovered_code import Obstacle, UncoveredCode, UncoveredRanking

# Limit for ways, branches, pointers and comparisons in an answer; the others are counted.
_SHOWN: Final = 3
_COMPARED: Final = 4
# Limit for functions of one name, or with one line, that are looked at.
_MOST_FUNCTIONS: Final = 8
_SYSTEM_CALL: Final = re.compile(r"__\w+?_(?:compat_)?sys_(\w+)")


class _State(NamedTuple):
    """Whether the code ran."""

    state: BlockState
    reason: str = ""
    """Why it is unknown."""


class CodeQuestion:
    """Answers why code did not run.

    :param context: of the command.
    :param code: of the kernel.
    :param traces: several together; none where no trace is named.
    :param trace_notes: what is known about each trace.
    :param comparisons: buffers of comparisons of the same run.
    """

    def __init__(
        self,
        context: Context,
        code: WholeCode,
        traces: TraceRecords | None,
        trace_notes: Sequence[str],
        comparisons: Sequence[Buffer],
    ) -> None:
        self._context = context
        self._code = code
        self._trace = traces
        self._trace_notes = tuple(trace_notes)
        self._ways = WayFinder(code, traces or NO_RECORDS)
        self._comparisons = comparisons

    def explain(self, subject: CodeSubject) -> Iterator[Answer]:
        """Yield whether code ran, and if not, what stood before it."""
        if subject.is_assembly:
            answer = f"{subject.name} is assembly, which is not instrumented"
            yield Answer("code-not-instrumented", answer, {"points": 0})
            return
        if not subject.functions:
            because = f": {subject.lack}" if subject.lack else ""
            answer = f"the kernel has no code of {subject.name}{because}"
            yield Answer("code-absent", answer, {"points": 0})
            return
        path = self._find_path(subject.functions)
        has_path = bool(path)
        named = {"function": subject.function or self._name(subject.functions[0])}
        if not any(map(self._is_instrumented, subject.functions)):
            answer = (
                f"{subject.name} is not instrumented: KCOV does not record it (KCOV_INSTRUMENT, "
                f"noinstr, assembler)"
            )
            yield Answer("code-not-instrumented", answer, {"points": 0}, named, path=path)
            return
        shown = self._count_points(subject)
        if self._trace is None:
            if subject.function is not None:
                yield Answer(
                    "function-instrumented", f"{subject.name} is instrumented", shown, named
                )
            if path:
                answer = f"direct calls lead from a system call to {subject.name}"
                yield Answer("system-call-path", answer, {}, named, path=path)
        else:
            found = self._judge(subject)
            notes = self._trace_notes
            if found.state is BlockState.EXECUTED:
                yield Answer("code-executed", f"{subject.name} ran", shown, named, notes)
                return
            if found.state is BlockState.UNKNOWN:
                answer = f"whether {subject.name} ran is unknown: {found.reason}"
                yield Answer("unknown", answer, shown, named, notes, path=path)
                return
            ways = list(self._explain_ways(subject))
            if any(way.path for way in ways):
                # The paths along the ways say more.
                path = ()
            traces = "this trace" if len(notes) == 1 else "these traces"
            answer = f"{subject.name} did not run in {traces}"
            yield Answer("code-not-executed", answer, shown, named, notes, path=path)
            yield from ways
        yield from self._explain_pointers(subject)
        if not has_path:
            yield from self._explain_origins(subject)

    def _count_points(self, subject: CodeSubject) -> Values:
        """Return the numbers of points and of covered points of a function; nothing for a line or
        a PC.
        """
        if subject.function is None:
            return {}
        if self._trace is None:
            return {"points": len(self._code.find_points(PCS, function=subject.function))}
        points = self._code.find_points(self._trace.kinds, function=subject.function)
        return {"points": len(points), "covered": count_covered(points, self._trace)}

    def rank_uncovered(self, pattern: str) -> Sequence[UncoveredCode]:
        """Return what stands before the lines of files that no trace ran, that with most lines
        first.

        :param pattern: a file, a directory or a pattern.
        :raises KcovdbgError: when the kernel has no such file.
        """
        assert self._trace is not None
        known = self._code.files()
        files = [file for file in known if matches_path(pattern, file)]
        if not files:
            lacks_modules = self._context.kernel.points.lacks_modules
            raise unknown_file(known, pattern, lacks_modules=lacks_modules)
        return list(UncoveredRanking(self._code, self._trace, self._ways).rank(files))

    def explain_uncovered(self, code: UncoveredCode) -> Answer:
        """Return what stands before lines that :meth:`rank_uncovered` found."""
        lines = amount_text(code.lines, "line")
        values: dict[str, int] = {"lines": code.lines, "functions": code.functions}
        if code.obstacle is Obstacle.SEVERAL and not code.functions:
            said = f"{lines} in code that several functions have, or that several branches lead to"
            return Answer("several-ways", said, values)
        name = self._name(code.function)
        named = {"function": name}
        path = self._find_path([code.function])
        if code.obstacle is Obstacle.SYSTEM_CALL:
            reason, said = self._judge_system_call(code.function)
            return Answer(reason, f"{lines}: {said}", values, named, path=path)
        if code.obstacle is Obstacle.POINTER:
            pointers = self._name_pointers(code.function)[:_SHOWN]
            said = f"{lines}: {name}() was not called; its address is in {', '.join(pointers)}"
            return Answer("address-taken", said, {**values, "pointers": pointers}, named)
        if code.obstacle is Obstacle.NOTHING:
            said = f"{lines}: neither calls nor pointers of the image lead to {name}()"
            return Answer("never-called-directly", said, values, named)
        guard = None
        if code.block is not None:
            guard = self._ways.find_guard(code.function, code.block)
        if guard is None:
            said = f"{lines}: several ways lead to {name}(), none of which ran"
            return Answer("several-ways", said, values, named, path=path)
        branch = self._name_branch(guard.branches[0])
        values["branches"] = len(guard.branches)
        place = self._place_of_first(guard)
        said = f"{lines}: in {name}(), {branch}"
        return Answer("branch-never-taken", said, values, named, guard=place, path=path)

    def _is_instrumented(self, function: int) -> bool:
        return bool(self._ways.find_blocks(function).flags & FunctionFlag.INSTRUMENTED)

    def _name(self, function: int) -> str:
        return strip_clone_suffix(self._code.name(function))

    # Whether it ran.

    def _judge(self, subject: CodeSubject) -> _State:
        """Return whether the code ran: all of it did not, or some did."""
        assert self._trace is not None
        if subject.line is not None:
            return self._judge_line(subject.line, subject.functions)
        states: set[BlockState] = set()
        for function in subject.functions:
            found = self._ways.find_blocks(function)
            if found.is_contradicted:
                return _State(
                    BlockState.UNKNOWN,
                    "the records contradict its code: is this trace of another kernel?",
                )
            states.update(_find_states(subject, found.blocks))
        if BlockState.EXECUTED in states:
            return _State(BlockState.EXECUTED)
        if states == {BlockState.NOT_EXECUTED}:
            return _State(BlockState.NOT_EXECUTED)
        return _State(BlockState.UNKNOWN, self._unknown_reason(subject.functions))

    def _judge_line(self, line: tuple[str, int], functions: Sequence[int]) -> _State:
        assert self._trace is not None
        found, _ = self._code.find_lines(self._trace, functions, {line[0]})
        rows = found.rows().get(line[0], ())
        states = [one.state for one in rows if one.line == line[1]]
        state = states[0] if states else LineState.UNDECIDED
        if state.was_executed:
            return _State(BlockState.EXECUTED)
        if state is LineState.NOT_EXECUTED:
            return _State(BlockState.NOT_EXECUTED)
        reasons = {
            LineState.MOVED: "code of it ran, but none that begins a statement",
            LineState.OUTSIDE: "functions without points have code of it as well",
        }
        return _State(BlockState.UNKNOWN, reasons.get(state) or self._unknown_reason(functions))

    def _unknown_reason(self, functions: Iterable[int]) -> str:
        assert self._trace is not None
        if not self._trace.quality & Quality.COMPLETE:
            return "the trace is incomplete: what has no record may have run"
        if any(
            self._ways.find_blocks(function).flags & FunctionFlag.VOID for function in functions
        ):
            return "not all branches of its function are understood"
        if not self._trace.quality & Quality.ENDED:
            return "its task may be in a system call"
        return "no record names it, and none of the others decides it"

    # Ways.

    def _explain_ways(self, subject: CodeSubject) -> Iterator[Answer]:
        """Yield the branches and system calls that stand before code, the likeliest first."""
        ways: list[Way] = []
        more = 0
        for function in subject.functions[:_MOST_FUNCTIONS]:
            own = self._find_own_ways(subject, function)
            if own is not None:
                ways += own
                continue
            found = self._ways.find_ways(function)
            ways += found.ways
            more += found.more
        shown = order_ways(ways)[:_SHOWN]
        compared = self._find_compared(shown)
        for way in shown:
            yield self._explain_way(way, compared)
        more += len(ways) - len(shown)
        if more:
            answer = f"{more} more {'way leads' if more == 1 else 'ways lead'} to {subject.name}"
            yield Answer("ways-left-out", answer, {"ways": more})

    def _find_own_ways(self, subject: CodeSubject, function: int) -> Sequence[Way] | None:
        """Return what stands before code inside its function; None where the function itself did
        not run.
        """
        found = self._ways.find_blocks(function)
        if not any(map(_has_run, found.blocks)):
            return None
        ways: dict[int, Way] = {}
        for block in found.blocks:
            has_line = subject.line in block.lines or subject.line in block.calls
            is_own = has_line or _has_any(block, subject)
            if not is_own or block.state is not BlockState.NOT_EXECUTED:
                continue
            guard = self._ways.find_guard(function, block.address)
            if guard is not None and guard.first is not None:
                ways.setdefault(
                    guard.first.address,
                    Way([function], CallSite(block.address, function, is_tail=False), guard),
                )
        return list(ways.values())

    def _explain_way(self, way: Way, compared: Mapping[int, Sequence[Comparison]]) -> Answer:
        path = self._join_path(way)
        notes: list[str] = []
        for function in way.path[1:]:
            if not self._is_instrumented(function):
                notes.append(f"inside {self._name(function)}(), which has no points")
                break
        first = self._name(way.path[0])
        named = {"function": first}
        if way.site is None:
            reason, said = self._judge_system_call(way.path[0], "; its calls lead there")
            return Answer(reason, said, {}, named, tuple(notes), path=path)
        calls = f"{first}() ran"
        if len(way.path) > 1:
            calls += (
                f", and would call {self._name(way.path[1])}() at {self._place(way.site.address)}"
            )
        guard = way.guard
        if guard is None:
            said = f"{calls}; whether it did is unknown"
            return Answer("call-not-judged", said, {}, named, tuple(notes), path=path)
        operands: list[Compared] = []
        branches: list[str] = []
        for branch in guard.branches:
            texts = [self._name_branch(branch)]
            for pc in _pcs_of(branch.block):
                for one in compared.get(pc, ()):
                    operands.append(Compared(pc, one))
                    texts.append(f"compared {_operands_text(one)}")
            branches.append("; ".join(texts[: 1 + _COMPARED]))
        said = f"{calls}; {branches[0]}"
        if len(branches) > 1:
            said += f", nor did {len(branches) - 1} more"
        return Answer(
            "branch-never-taken",
            said,
            {"branches": len(branches)},
            named,
            (*branches[1:_SHOWN], *notes),
            guard=self._place_of_first(guard),
            path=path,
            operands=operands[:_COMPARED],
        )

    def _judge_system_call(self, function: int, about: str = "") -> tuple[Reason, str]:
        """Return whether a system call was made, as a code and in words.

        :param about: the end of the sentence.
        """
        name = self._name(function)
        match = _SYSTEM_CALL.match(name)
        call = match[1] if match else name
        # The start of a system call may have no point.
        if self._ways.find_blocks(function).was_not_entered:
            return "system-call-not-made", f"the system call {call} was not made{about}"
        return "call-not-judged", f"whether the system call {call} was made is unknown{about}"

    def _name_branch(self, branch: Branch) -> str:
        place = self._place_of_end(branch.block)
        if branch.block.flags & BlockFlag.STOPPED:
            return f"the task had come no further than {place}"
        if branch.block.flags & BlockFlag.CALL:
            return f"the code after the call at {place} did not run"
        return f"the branch at {place} never went there"

    def _find_compared(self, ways: Iterable[Way]) -> Mapping[int, Sequence[Comparison]]:
        """Return the comparisons that were recorded in the blocks of branches, by PC, each once."""
        wanted: set[int] = set()
        for way in ways:
            if way.guard is None:
                continue
            for branch in way.guard.branches:
                wanted.update(_pcs_of(branch.block))
        found: defaultdict[int, list[Comparison]] = defaultdict(list)
        for buffer in self._comparisons:
            missing = buffer.missing
            for index, word in enumerate(buffer.pc_words):
                if word not in wanted or index in missing:
                    continue
                one = buffer.decode(index)
                if (
                    one.pc in wanted
                    and one.comparison is not None
                    and one.comparison not in found[one.pc]
                ):
                    found[one.pc].append(one.comparison)
        return found

    # Paths and pointers.

    def _find_path(self, functions: Iterable[int]) -> Sequence[str]:
        """Return the shortest path from a system call to one of some functions, by functions that
        ran where there is one.
        """
        for function in functions:
            path = self._ways.find_path(function)
            if path:
                return [self._name(step) for step in path]
        return ()

    def _join_path(self, way: Way) -> Sequence[str]:
        """Return the path from a system call along a way; empty where no direct calls lead to the
        start of the way.
        """
        start = self._ways.find_path(way.path[0])
        if not start:
            return ()
        return [self._name(function) for function in (*start, *way.path[1:])]

    def _explain_pointers(self, subject: CodeSubject) -> Iterator[Answer]:
        """Yield the places that have the address of a function that leads to code: candidates."""
        texts: list[str] = []
        others: list[int] = []
        for function in self._find_pointed(subject):
            name = self._name(function)
            if function in subject.functions:
                pointers = self._name_pointers(function)
                answer = (
                    f"candidate: {name}() may be called through a pointer: its address is in "
                    f"{name_some(pointers, _SHOWN)}"
                )
                shown = {"pointers": pointers[:_SHOWN]}
                yield Answer("address-taken", answer, shown, {"function": name})
                continue
            others.append(function)
            # Only the first ones are shown.
            if len(others) <= _SHOWN:
                name = f"{name}() ({self._name_pointers(function)[0]})"
            texts.append(name)
        if others:
            answer = (
                f"candidates: functions that may be called through pointers lead to "
                f"{subject.name}: {name_some(texts, _SHOWN)}"
            )
            yield Answer(
                "address-taken",
                answer,
                {"pointers": texts[:_SHOWN]},
                {"function": self._name(others[0])},
            )

    def _find_pointed(self, subject: CodeSubject) -> Sequence[int]:
        """Return the functions that lead to code that did not run and whose address is somewhere,
        the nearest first.
        """
        found: dict[int, None] = {}
        for function in subject.functions[:_MOST_FUNCTIONS]:
            if function not in self._ways.executed:
                found.update(dict.fromkeys(self._ways.find_ways(function).pointed))
        return list(found)

    def _name_pointers(self, function: int) -> Sequence[str]:
        places = self._code.find_pointers(function)
        return list(
            dict.fromkeys(self._name_pointer(place.address, place.function) for place in places)
        )

    def _name_pointer(self, address: int, function: int | None) -> str:
        if function is not None:
            return f"the code of {self._name(function)}() at {self._place(address)}"
        symbol = self._code.data_at(address)
        if symbol is None:
            return f"data at {address:#x}"
        offset = self._context.target.kaslr_offset
        part = self._context.target.member_at(
            symbol.name, symbol.address + offset, address - symbol.address, self._units
        )
        return symbol.name if part is None else f"{symbol.name}{part}"

    @cached_property
    def _units(self) -> Collection[str]:
        return self._code.units()

    def _explain_origins(self, subject: CodeSubject) -> Iterator[Answer]:
        """Yield what leads to code that no system call leads to by direct calls: sections of remote
        coverage, or interrupts.
        """
        callers = self._ways.find_all_callers(subject.functions)
        own = [self._name(function) for function in callers]
        try:
            sites = self._context.kernel.code.find_remote_sites().sites
        except CapabilityError:
            sites = ()
        announcing = {strip_clone_suffix(site.symbol or site.function): site for site in sites}
        leading = [announcing[name] for name in own if name in announcing]
        if leading:
            site = leading[0]
            answer = f"{site.function}() announces a remote handle"
            if site.function != subject.function:
                answer += f" and leads to {subject.name} by direct calls"
            answer += ": collect --remote records what runs after that"
            yield Answer(
                "remote-section-leads", answer, {"sites": len(leading)}, {"function": site.function}
            )
        interrupts = [name for name in own if is_interrupt_function(name)]
        if interrupts:
            answer = (
                f"{interrupts[0]}(), which runs in interrupts, leads to {subject.name}: KCOV "
                f"records nothing there"
            )
            yield Answer(
                "interrupt-leads",
                answer,
                {"frames": interrupts[:_SHOWN]},
                {"function": interrupts[0]},
            )
        elif not leading and not any(
            self._code.has_pointers(function) for function in subject.functions
        ):
            answer = f"no system call leads to {subject.name} by direct calls alone"
            yield Answer(
                "never-called-directly", answer, {"callers": len(callers) - len(subject.functions)}
            )

    # Places.

    def _place(self, address: int) -> CodePlace:
        """Return the place of an instruction."""
        return self._locate(address, address + 1)

    def _place_of_first(self, guard: Guard) -> CodePlace | None:
        return None if guard.first is None else self._place(guard.first.address)

    def _place_of_end(self, block: CodeBlock) -> CodePlace:
        """Return the place of a block's last instruction."""
        return self._locate(block.address, block.address + block.size)

    def _locate(self, address: int, end: int) -> CodePlace:
        function = self._code.function_at(address)
        name = "" if function is None else self._name(function)
        symbolizer = self._context.kernel.names.symbolizer
        # A PC is a return address: it is looked up at the byte before.
        frame = None if symbolizer is None else symbolizer.locate(end).innermost
        if frame is None or frame.file is None:
            return CodePlace(address, name, None, None)
        return CodePlace(address, name, frame.file.removeprefix("./"), frame.line)


def _has_run(block: CodeBlock) -> bool:
    return block.state in (BlockState.EXECUTED, BlockState.STOPPED)


def _has_any(block: CodeBlock, subject: CodeSubject) -> bool:
    return bool(subject.find_addresses(block.address, block.size))


def _find_states(subject: CodeSubject, blocks: Sequence[CodeBlock]) -> set[BlockState]:
    """Return the states of the code of a subject in one function.

    A function that the task is in has been executed as a whole; a block that it is in may not have
    been up to the instruction asked about.
    """
    states = {block.state for block in blocks if _has_any(block, subject)}
    if states:
        return states
    if any(map(_has_run, blocks)):
        return {BlockState.EXECUTED}
    return {block.state for block in blocks if block.flags & BlockFlag.ENTRY}


def _pcs_of(block: CodeBlock) -> Collection[int]:
    """Return the PCs that points in a block may have: addresses after calls."""
    return range(block.address + 1, block.address + block.size + 1)


def _operands_text(one: Comparison) -> str:
    return f"{format_operand(one.arg1, one)} with {format_operand(one.arg2, one)}"
