# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server for programs with the protocol's own client, in the same process and in a process of
its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import mcp
import pytest
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from kcovdbg.commands import COMMANDS
from kcovdbg.console.context import Workspace
from kcovdbg.frontends.mcp.calls import CallQueue
from kcovdbg.frontends.mcp.server import ToolServer
from kcovdbg.frontends.mcp.tools import TOOLS, WRITERS, ToolBox, output_schema
from kcovdbg.inputs.kernel import Kernel
from kcovdbg.inputs.kernel_memory import KernelOptions
from kcovdbg.inputs.trace_paths import FileConfinement
from kcovdbg.inputs.user_inputs import UserInputs
from kcovdbg.target.demo_files import find_demo, find_demo_source
from kcovdbg.target.target_options import TargetOptions, open_target
from tests.lab.kcovdbg_run import ROOT, run_kcovdbg, run_lines
from tests.support.escaped_rows import escape_all
from tests.support.state import strict_schema

T = TypeVar("T")
DEMO_SOURCE = (str(find_demo_source()),)
# Starts in a fraction of the time.
NO_TARGET = ("-c", "/nonexistent-vmcore")
# A tool, its arguments, and the same as a line.
CALLS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("info", {}, "info"),
    ("tasks", {"all": True}, "tasks -a"),
    ("tasks", {"tasks": ["kc-*"]}, "tasks kc-*"),
    ("objects", {}, "objects"),
    ("remote", {}, "remote"),
    ("areas", {}, "areas"),
    ("saved", {}, "saved"),
    ("buffer", {"what": 82}, "buffer 82"),
    ("buffer", {"what": "kc-full", "n": 7, "tail": True}, "buffer kc-full -n 7 --tail"),
    ("trace", {"what": 36}, "trace 36"),
    ("top", {"what": "26", "by": "file"}, "top 26 --by file"),
    ("diff", {"what": [41, 34]}, "diff 41 34"),
    ("diff", {"what": [41, 34], "ordered": True}, "diff 41 34 --ordered"),
    ("source", {"what": "36"}, "source 36"),
    ("points", {"place": "vfs_read", "what": [36]}, "points vfs_read 36"),
    ("sym", {"pcs": ["0xffffffff81000000"]}, "sym 0xffffffff81000000"),
    ("last", {}, "last"),
    ("why", {"subject": 36}, "why 36"),
    ("check", {}, "check"),
    ("check", {"list": True}, "check --list"),
    ("check", {"explain": "T4"}, "check --explain T4"),
)


class Inline:
    """Runs calls in the thread that awaits them."""

    async def __call__(self, function: Callable[[], T]) -> T:
        return function()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def box(folder: Path) -> ToolBox:
    target = open_target(TargetOptions(demo=True))
    return ToolBox(
        Workspace(
            COMMANDS, UserInputs(Kernel(KernelOptions(lambda: target, source_folders=DEMO_SOURCE)))
        ),
        FileConfinement(folder),
    )


def ask(box: ToolBox, question: Callable[[Any], Awaitable[T]], mode: str = "auto") -> T:
    """Return what a client learns from a server in this process."""

    async def run() -> T:
        async with mcp.Client(ToolServer(box, Inline()), mode=mode) as client:
            return await question(client)

    return asyncio.run(run())


async def all_rows(
    client: Any, name: str, given: dict[str, Any], limit: int = 700
) -> list[dict[str, Any]]:
    """Page through an answer."""
    rows: list[dict[str, Any]] = []
    following: int | None = 0
    while following is not None:
        answer = await client.call_tool(name, {**given, "limit": limit, "next": following})
        assert not answer.is_error, answer.content[0].text
        content = answer.structured_content
        assert json.loads(answer.content[0].text) == content
        assert len(json.dumps(content["rows"])) < 50_000
        jsonschema.validate(
            {**content, "rows": content["rows"][:5]}, output_schema(COMMANDS.find(name))
        )
        assert content["rows"] or content["next"] is None
        assert (
            content["total"] in (None, len(rows) + len(content["rows"]))
            or content["next"] is not None
        )
        rows += content["rows"]
        following = content["next"]
    return rows


def test_each_tool_answers_as_its_command(box: ToolBox) -> None:
    answers = run_lines(["--demo"], *(f"{line} --json" for _, _, line in CALLS))

    async def question(client: Any) -> None:
        for (name, given, line), printed in zip(CALLS, answers, strict=True):
            rows = await all_rows(client, name, given)
            assert rows == escape_all(json.loads(printed)), line
            jsonschema.validate(rows[:50], strict_schema(name))

    ask(box, question)
    # The demo is older than the log of slices.
    assert {name for name, _, _ in CALLS} == {*TOOLS} - {"log", "patch"}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_lists(box: ToolBox, mode: str) -> None:
    async def question(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools} == {*TOOLS, *WRITERS}
        for tool in tools:
            assert tool.description
            assert tool.annotations.read_only_hint is (tool.name not in WRITERS)
            assert tool.annotations.destructive_hint is False
        uris = [str(resource.uri) for resource in (await client.list_resources()).resources]
        assert uris == ["kcovdbg://vocabulary", "kcovdbg://generations", "kcovdbg://rules"]
        texts = [json.loads((await client.read_resource(uri)).contents[0].text) for uri in uris]
        assert {"handle", "section", "saved state"} <= texts[0]["words"].keys()
        assert {era["name"] for era in texts[1]} >= {"E1", "E9b"}
        assert {rule["rule"] for rule in texts[2]} >= {"K1", "T4"}
        for prompt in (await client.list_prompts()).prompts:
            given = {argument.name: "36\x1b" for argument in prompt.arguments}
            text = (await client.get_prompt(prompt.name, given)).messages[0].content.text
            assert "36" in text
            assert "\x1b" not in text
        answer = await client.call_tool("tasks", {"fields": ["pid", "comm"], "limit": 3})
        assert [set(row) for row in answer.structured_content["rows"]] == [{"pid", "comm"}] * 3

    ask(box, question, mode)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_what_does_not_exist_is_an_error_of_the_protocol(box: ToolBox, mode: str) -> None:
    async def question(client: Any) -> None:
        for request in (
            lambda: client.call_tool("collect", {}),
            lambda: client.call_tool("! id", {}),
            lambda: client.read_resource("file:///etc/passwd"),
            lambda: client.read_resource("kcovdbg://"),
            lambda: client.get_prompt("other", {}),
            lambda: client.get_prompt("missing-coverage", {}),
            lambda: client.get_prompt("before-crash", {"x": "1"}),
        ):
            with pytest.raises(MCPError):
                await request()
        assert not (await client.call_tool("info", {})).is_error

    ask(box, question, mode)


def test_a_cancelled_call_is_not_run() -> None:
    calls = CallQueue()
    done: list[str] = []

    async def request() -> None:
        cancelled = asyncio.ensure_future(calls.call(lambda: done.append("cancelled")))
        following = asyncio.ensure_future(calls.call(lambda: done.append("following")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        await asyncio.sleep(0)
        calls.end()
        calls.run()
        await following

    asyncio.run(request())
    assert done == ["following"]


def test_a_slice_is_written_and_opens(box: ToolBox, folder: Path) -> None:
    async def question(client: Any) -> None:
        answer = await client.call_tool("slice", {"output": "served.zst"})
        assert not answer.is_error, answer.content[0].text
        assert answer.structured_content["rows"][0]["file"] == str(folder / "served.zst")
        for name in ("served.zst", "../out.zst", "/tmp/out.zst", "-"):
            assert (await client.call_tool("slice", {"output": name})).is_error

    ask(box, question)
    assert [path.name for path in folder.iterdir()] == ["served.zst"]
    options = TargetOptions(
        core=str(folder / "served.zst"), symbols=[str(find_demo() / "vmlinux.zst")]
    )
    opened = ToolBox(
        Workspace(COMMANDS, UserInputs(Kernel(KernelOptions(lambda: open_target(options))))),
        FileConfinement(),
    )
    for name in ("tasks", "objects", "saved"):
        assert opened.call(name, {}) == box.call(name, {})


def test_a_process_serves_a_client(tmp_path: Path) -> None:
    words = ["-m", "kcovdbg", "--demo", "mcp", "-o", str(tmp_path)]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("XDG_", "PYTHON", "TMPDIR"))
    }
    server = StdioServerParameters(command=sys.executable, args=words, cwd=ROOT, env=environment)

    async def run() -> None:
        async with mcp.Client(server) as client:
            assert client.server_info.name == "kcovdbg"
            calls = [client.call_tool(name, given) for name, given, _ in CALLS[:8]]
            answers = await asyncio.gather(*calls)
            assert not any(answer.is_error for answer in answers)
            assert len(answers[0].structured_content["rows"]) == 1
            assert (await client.call_tool("buffer", {"what": "file:/etc/passwd"})).is_error
            with pytest.raises(MCPError):
                await client.call_tool("shell", {})
            assert not (await client.call_tool("check", {})).is_error

    asyncio.run(run())


class Process(subprocess.Popen):
    """A server whose input the test writes."""

    def __init__(self, *words: str) -> None:
        pipe = subprocess.PIPE
        words = words if "mcp" in words else (*words, "mcp")
        super().__init__(
            [sys.executable, "-m", "kcovdbg", *words],
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )

    def send(self, *messages: object) -> None:
        for message in messages:
            data = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.stdin.write(data + b"\n")
        self.stdin.flush()

    def receive(self, number: int) -> dict[str, Any]:
        """Return the reply to a request."""
        for line in self.stdout:
            reply: dict[str, Any] = json.loads(line)
            if reply.get("id") == number:
                return reply
        raise AssertionError(f"the server ended: {self.communicate()}")

    def call(self, number: int, name: str, given: object) -> dict[str, Any]:
        self.send(request(number, "tools/call", {"name": name, "arguments": given}))
        return self.receive(number)


def request(number: int, method: str, params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@contextmanager
def served(*words: str) -> Iterator[Process]:
    process = Process(*words)
    try:
        client = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        process.send(request(0, "initialize", client))
        assert process.receive(0)["result"]["serverInfo"]["name"] == "kcovdbg"
        process.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                stream.close()


MALFORMED = (
    b"not JSON",
    b"",
    b"{",
    b"[]",
    b"null",
    b"42",
    b'"text"',
    b"\xff\xfe\x00",
    b"\x00" * 100,
    b'{"jsonrpc": "1.0", "id": 7, "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "id": 7}',
    b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}',
    b'{"jsonrpc": "2.0", "id": 7, "method": 5}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "no/such"}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call"}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": []}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 5}}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "tasks", '
    b'"arguments": [1]}}',
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "tasks", '
    b'"arguments": "x"}}',
    b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}}',
    b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
    b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "'
    + b"x" * 1_000_000
    + b'"}}',
)


def test_malformed_requests_leave_the_server_alive() -> None:
    with served(*NO_TARGET) as process:
        for number, data in enumerate(MALFORMED, 1000):
            process.send(data, request(number, "ping", {}))
            assert process.receive(number)["result"] == {}, data[:100]
        reply = process.call(1, "check", {"list": True, "limit": 1})
        assert len(reply["result"]["structuredContent"]["rows"]) == 1
        wrong = process.call(2, "nothing", {})
        assert "error" in wrong


@pytest.mark.parametrize(
    ("target", "closed"),
    [("--demo", "both"), ("none", "both"), ("none", "replies"), ("none", "requests")],
)
def test_a_client_that_hangs_up_ends_the_server(target: str, closed: str) -> None:
    """On the demo in the middle of a command."""
    with served(*(NO_TARGET if target == "none" else (target,))) as process:
        process.send(
            *(
                request(number, "tools/call", {"name": "check", "arguments": {}})
                for number in range(1, 4)
            )
        )
        if closed in ("both", "replies"):
            process.stdout.close()
        if closed in ("both", "requests"):
            process.stdin.close()
        else:
            # A server that has written all replies finds out by the next one.
            with suppress(BrokenPipeError):
                process.send(request(4, "ping", {}))
        status = process.wait(timeout=60)
        said = process.stderr.read().decode()
        assert status == 0, said
        assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server(number: int) -> None:
    with served(*NO_TARGET) as process:
        process.call(1, "info", {})
        process.send_signal(number)
        assert process.wait(timeout=30) in (130, 128 + number)
        assert b"Traceback" not in process.stderr.read()


def test_requests_are_answered_while_a_command_runs() -> None:
    """A client's ping must not wait for debug info."""
    with served("--demo") as process:
        process.send(
            request(1, "tools/call", {"name": "check", "arguments": {}}), request(2, "ping", {})
        )
        seen = [json.loads(process.stdout.readline())["id"] for _ in range(2)]
        assert seen == [2, 1]


def test_other_calls_are_answered_while_one_works(tmp_path: Path) -> None:
    """A trace of a stranger keeps the server busy until its time is over."""
    slow = tmp_path / "slow"
    slow.write_bytes(b"0xffffffff81000000\n" + b"x 0xffffffff81000000 y\n" * 3_000_000)
    with served("--limit", "call-time=20", "--demo", "mcp", str(slow)) as process:
        # The spare process opens its target at its first call.
        process.call(1, "info", {})
        process.send(
            request(
                2, "tools/call", {"name": "buffer", "arguments": {"what": f"file:{slow}", "n": 1}}
            ),
            request(3, "tools/call", {"name": "info", "arguments": {}}),
        )
        first = json.loads(process.stdout.readline())
        assert first["id"] == 3
        assert not first["result"]["isError"]


def test_a_call_ends_in_time(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_bytes(b"0xffffffff81000000\n" + b"x 0xffffffff81000000 y\n" * 6_000_000)
    with served("--limit", "call-time=5", "--demo", "mcp", str(slow)) as process:
        process.call(1, "info", {})
        found = process.call(2, "buffer", {"what": f"file:{slow}", "n": 1})["result"]
        assert found["isError"]
        assert "call-time" in found["content"][0]["text"]
        assert not process.call(3, "check", {"list": True, "limit": 1})["result"]["isError"]


def test_without_the_package_the_command_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'mcp'\", name='mcp')\n"
    )
    done = run_kcovdbg(
        "--demo",
        "mcp",
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        status=2,
        stdin=subprocess.DEVNULL,
    )
    assert re.fullmatch(
        r"kcovdbg: mcp .*not installed\n.*pip install .*\[mcp\].*\n", done.stderr
    ), done.stderr
    assert done.stdout == ""


def test_a_terminal_is_no_client() -> None:
    controller, terminal = os.openpty()
    try:
        assert "terminal" in run_kcovdbg("--demo", "mcp", stdin=terminal, status=2).stderr
    finally:
        os.close(controller)
        os.close(terminal)


@pytest.mark.parametrize("words", [["-o", "/nonexistent"], ["/nonexistent.kcov"], ["-o"]])
def test_what_the_user_names_must_exist(words: list[str]) -> None:
    done = run_kcovdbg("--demo", "mcp", *words, status=2)
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 2
