# SPDX-License-Identifier: LGPL-2.1-or-later
"""The server: tools, reference texts and prompts in the terms of the protocol's package."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn, Protocol, TypeVar

import mcp_types
from mcp.server import Server
from mcp.shared.exceptions import MCPError

from kcovdbg import __version__
from kcovdbg.errors import KcovdbgError, UsageError
from kcovdbg.frontends.mcp.prompts import QUESTIONS, write_question
from kcovdbg.frontends.mcp.resources import JSON_TYPE, REFERENCE_TEXTS
from kcovdbg.frontends.mcp.tools import NOTICE, CommandTool, ToolBox

_T = TypeVar("_T")

_INSTRUCTIONS: Final = (
    "kcovdbg shows the Linux kernel's KCOV state of one target: a dump, a guest or a running kernel. Start with info, tasks "
    "and check. Addresses and PCs are hexadecimal texts. A buffer is named by its task's thread id, or as the vocabulary says. "
    "Descriptions name options as on a command line: --not-function is the argument not_function. An answer has rows, next to "
    "continue with (null after the last row), and remarks on what is missing. "
    f"{NOTICE}"
)


class Caller(Protocol):
    """Runs a function in the thread that the target belongs to."""

    def __call__(self, function: Callable[[], _T]) -> Awaitable[_T]:
        """Return the function's result."""


def make_server(box: ToolBox, call: Caller) -> Server[Any]:
    """Return the server of a tool box."""

    async def list_tools(_context: Any, _params: Any) -> mcp_types.ListToolsResult:
        return mcp_types.ListToolsResult(tools=[_describe(tool) for tool in box.tools.values()])

    async def call_tool(_context: Any, params: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        try:
            answer = await call(lambda: box.call(params.name, params.arguments or {}))
        except UsageError as error:
            _refuse(error)
        content: list[Any] = [mcp_types.TextContent(type="text", text=answer.text)]
        structured = None if answer.content is None else dict(answer.content)
        return mcp_types.CallToolResult(content=content, structured_content=structured, is_error=answer.is_error)

    async def list_resources(_context: Any, _params: Any) -> mcp_types.ListResourcesResult:
        return mcp_types.ListResourcesResult(
            resources=[
                mcp_types.Resource(uri=uri, name=text.name, description=text.summary, mime_type=JSON_TYPE)
                for uri, text in REFERENCE_TEXTS.items()
            ]
        )

    async def read_resource(_context: Any, params: mcp_types.ReadResourceRequestParams) -> mcp_types.ReadResourceResult:
        uri = str(params.uri)
        text = REFERENCE_TEXTS.get(uri)
        if text is None:
            _refuse(UsageError("unknown resource", hint=f"one of {', '.join(REFERENCE_TEXTS)}"))
        try:
            written = await call(lambda: text.write(box))
        except KcovdbgError as error:
            _refuse(error)
        contents = mcp_types.TextResourceContents(uri=uri, mime_type=JSON_TYPE, text=written)
        return mcp_types.ReadResourceResult(contents=[contents])

    async def list_prompts(_context: Any, _params: Any) -> mcp_types.ListPromptsResult:
        return mcp_types.ListPromptsResult(prompts=[_describe_prompt(name) for name in QUESTIONS])

    async def get_prompt(_context: Any, params: mcp_types.GetPromptRequestParams) -> mcp_types.GetPromptResult:
        given: Mapping[str, str] = params.arguments or {}
        try:
            text = write_question(params.name, given)
        except UsageError as error:
            _refuse(error)
        message = mcp_types.PromptMessage(role="user", content=mcp_types.TextContent(type="text", text=text))
        return mcp_types.GetPromptResult(description=QUESTIONS[params.name].summary, messages=[message])

    return Server(
        "kcovdbg",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _refuse(error: KcovdbgError) -> NoReturn:
    """Answer a request with an error of the protocol."""
    hint = f"; {error.hint}" if error.hint is not None else ""
    raise MCPError(mcp_types.INVALID_PARAMS, f"{error}{hint}") from error


def _describe(tool: CommandTool) -> mcp_types.Tool:
    return mcp_types.Tool(
        name=tool.command.name,
        description=tool.description,
        input_schema=dict(tool.input_schema),
        output_schema=dict(tool.output_schema),
        annotations=mcp_types.ToolAnnotations(
            read_only_hint=not tool.is_writer,
            destructive_hint=False,
            idempotent_hint=not tool.is_writer,
            open_world_hint=False,
        ),
    )


def _describe_prompt(name: str) -> mcp_types.Prompt:
    question = QUESTIONS[name]
    return mcp_types.Prompt(
        name=name,
        title=question.title,
        description=question.summary,
        arguments=[
            mcp_types.PromptArgument(name=key, description=text, required=key in question.required)
            for key, text in question.arguments.items()
        ],
    )
