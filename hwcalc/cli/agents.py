"""``kvplan mcp``: plans for agents, over the Model Context Protocol on standard input and output.

Each tool is a function of the library. Its arguments are that function's keywords, described by the table of options; its result is the
document of the command of the same name, with that command's text beside it.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from hwcalc._version import __version__
from hwcalc.cli.options import OUTPUT, Option, command
from hwcalc.cli.output import Answer, answer_lists, view_of, write
from hwcalc.documents import dumps
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.planner.options import OTHER_NAMES, ROWS
from hwcalc.planner.values import TYPES
from hwcalc.report.view import View
from hwcalc.text import lines_for, shown

_MODEL: Final = {
    "description": "A Hub id (org/name), a folder, a config.json or GGUF file, or the config itself as an object.",
    "anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}],
}
_LEFT_OUT: Final = ("token", "endpoint")
"""Options of the Hub, which are for the server's environment to set, and not for who asks it."""
_INSTRUCTIONS: Final = """\
kvplan computes from a model's config alone how many bytes its KV cache, weights and everything else take, as vLLM, SGLang, llama.cpp and
other engines reserve them, and whether that fits a GPU. Sizes are integer bytes. `definition` says whether a number is exact, an engine's
rule or an estimate, which has a low and a high end. Without `gpu` there is no verdict. Call `plan` for one model on one GPU, `recommend`
for hardware, `fit` for models, `compare` for several at once, `explain` for the formula of each number, `check` for a list of requirements."""


class ToolOf(Record):
    """A tool: what it is for, the function that answers, and how an answer reads as text."""

    about: str
    function: Callable[..., Any]
    text: Callable[[Any, View], str]
    properties: Mapping[str, Any]
    required: tuple[str, ...]

    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        return {
            "type": "object",
            "properties": dict(self.properties),
            "required": list(self.required),
            "additionalProperties": False,
        }


def tools() -> dict[str, ToolOf]:
    """The tools by name. A name is also that of a document (``kvplan schema NAME``)."""
    from hwcalc.check.fields import check_file_schema
    from hwcalc.library.compare import compare
    from hwcalc.library.explain import explain
    from hwcalc.library.fit import fit
    from hwcalc.library.plan import plan
    from hwcalc.library.recommend import recommend
    from hwcalc.report.check import check_report
    from hwcalc.report.compare import comparison_text
    from hwcalc.report.explain import explain_text
    from hwcalc.report.fitting import fit_text, recommendation_text

    file = {"description": "The content of a check file, as an object.", **check_file_schema()}
    return {
        "plan": _tool(plan, "The memory of one model, and whether it fits: bytes, longest sequence, most at once.", _plan_text),
        "explain": _tool(
            explain, "Where every byte of a plan comes from: the formula of each term, with its numbers.", explain_text
        ),
        "compare": _tool(compare, "Models, formats, engines, lengths or GPUs side by side; each may be a list.", comparison_text),
        "recommend": _tool(
            recommend, "Hardware that holds a workload: what people can rent or buy first, newest first.", recommendation_text
        ),
        "fit": _tool(fit, "The models of the catalog that run on a GPU, each in its best format.", fit_text),
        "check": ToolOf(
            about="Whether requirements hold: for each check a model, a workload, hardware and limits.",
            function=_checked,
            text=check_report,
            properties={"file": file},
            required=("file",),
        ),
    }


_SCALARS: Final[Mapping[str, str]] = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
"""Types of keywords as JSON Schema names them."""


def _tool(function: Callable[..., Any], about: str, text: Callable[[Any, View], str]) -> ToolOf:
    """The tool of a function of the library: it takes an option by each of its names."""
    name = function.__name__
    properties: dict[str, Any] = {}
    for keyword, parameter in inspect.signature(function).parameters.items():
        own = OTHER_NAMES.get(keyword, keyword)
        row = ROWS.get(own)
        if keyword == "model":
            properties[keyword] = _MODEL
        elif keyword == "models" and name == "compare":
            properties[keyword] = {"anyOf": [_MODEL, {"type": "array", "items": _MODEL, "minItems": 1}]}
        elif row is not None and keyword not in _LEFT_OUT:
            several = name in row.lists or "Sequence" in str(parameter.annotation)
            shape = _lists() if several else TYPES[row.type].schema
            properties[keyword] = {
                **shape,
                "description": row.helps.get(name, row.help) if own == keyword else f"The same as {own}.",
            }
        elif row is None:
            properties[keyword] = _shape(str(parameter.annotation))
    # Dimensions without a model are a request too: the bare equation.
    return ToolOf(
        about=about, function=function, text=text, properties=properties, required=("models",) if name == "compare" else ()
    )


def _lists() -> dict[str, Any]:
    """The schema of an option of which a command takes several values: text with commas, or a list."""
    each = {"type": ["string", "number", "array", "null"]}
    return {"anyOf": [{"type": ["string", "number"]}, {"type": "array", "items": each, "minItems": 1}]}


def _shape(annotation: str) -> dict[str, Any]:
    """The schema of a keyword by its annotation.

    >>> _shape("str | Sequence[str]")
    {'anyOf': [{'type': 'string'}, {'type': 'array', 'items': {'type': 'string'}}]}
    >>> _shape("bool")
    {'type': 'boolean'}
    """
    shapes: list[dict[str, Any]] = []
    for word in annotation.split(" | "):
        if word.startswith("Sequence["):
            shapes.append({"type": "array", "items": {"type": _SCALARS[word.removeprefix("Sequence[").removesuffix("]")]}})
        elif word != "None":
            shapes.append({"type": _SCALARS[word]})
    return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}


def _plan_text(plan: Any, view: View) -> str:
    from hwcalc.report.plan import plan_report

    return plan_report(plan, "table", color=False, width=view.width, quiet=view.quiet, detail=view.detail, command="")


def _checked(file: Mapping[str, Any]) -> Any:
    """The judgement of a check file that was given as an object. It has no folder: paths of models are those of the server."""
    from hwcalc.check.file import parse_check_file
    from hwcalc.check.run import CheckOptions, run_checks

    options = CheckOptions(lock="ignore")
    # NaN, which is no JSON, is a word to the reader of check files, and refused by it.
    return run_checks([parse_check_file(json.dumps(file, indent=2), "-")], options)


def call(name: str, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The document and the text with which a tool answers, as harmless as what a command writes. Raises a subclass of
    :class:`~hwcalc.errors.KvplanError`.
    """
    known = tools()
    if name not in known:
        raise UsageError(f"there is no tool {shown(name, 40)}.", hint=f"Known: {', '.join(known)}.")
    tool = known[name]
    unknown = sorted(set(arguments) - set(tool.properties))
    if unknown:
        raise UsageError(f"{name} takes no {shown(unknown[0], 40)}.", hint=f"Known: {', '.join(sorted(tool.properties))}.")
    missing = [needed for needed in tool.required if needed not in arguments]
    if missing:
        raise UsageError(f"{name} needs {missing[0]}.", hint="See the schema of its arguments.")
    result = tool.function(**arguments)
    text = tool.text(result, View(format="table", quiet=False, color=False, width=100, detail="brief"))
    return json.loads(dumps(result.to_dict())), lines_for(text)


def server() -> Any:
    """The server of the protocol, with all tools. Needs the package ``mcp``."""
    try:
        from mcp import types
        from mcp.server import Server
    except ImportError as error:
        hint = "Install it: pip install 'hwcalc[mcp]'"
        raise UsageError("kvplan mcp needs mcp, which is not installed.", hint=hint) from error
    from anyio import to_thread

    from hwcalc.cli.run import describe
    from hwcalc.report.schema import json_schema

    async def list_tools(_context: Any, _params: Any) -> Any:
        about = types.ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=tool.about,
                    input_schema=tool.input_schema(),
                    output_schema=json_schema(name),
                    annotations=about,
                )
                for name, tool in tools().items()
            ]
        )

    async def call_tool(_context: Any, params: Any) -> Any:
        try:
            document, text = await to_thread.run_sync(call, params.name, params.arguments or {})
        except Exception as error:  # noqa: BLE001 - an agent gets every failure as its answer, as a shell does
            failure = describe(error)
            said = f"{failure.type}: {failure.message} {failure.hint}".strip()
            return types.CallToolResult(content=[types.TextContent(type="text", text=said)], is_error=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=document)

    return Server("kvplan", version=__version__, instructions=_INSTRUCTIONS, on_list_tools=list_tools, on_call_tool=call_tool)


@command(
    (
        Option("list", ("--list",), "", "List the tools and end.", "flag"),
        *(option for option in OUTPUT if option.name in ("json", "format")),
    ),
    {
        "Tools for an agent, over standard input and output": "kvplan mcp",
        "Which tools?": "kvplan mcp --list",
        "With the schemas of their arguments": "kvplan mcp --list --json",
    },
)
def mcp(*, list: bool, **output: Any) -> Answer:  # noqa: A002 - the name of the option
    """Serve plans as tools of the Model Context Protocol.

    It reads requests on standard input and answers on standard output until its input ends. It reads the files and asks the network that a
    plan does, and nothing else. Needs the package mcp: pip install 'hwcalc[mcp]'.
    """
    view = view_of(**output)
    if list:
        known = tools()
        if view.format == "json":
            return answer_lists(
                tools=[{"name": name, "about": tool.about, "arguments": tool.input_schema()} for name, tool in known.items()]
            )
        return Answer(text=view.table(("tool", "answers"), [(name, tool.about) for name, tool in known.items()]))
    serving = server()
    if sys.stdin is not None and sys.stdin.isatty():
        write(sys.stderr, "kvplan: waiting for an agent on standard input; Ctrl-C ends it.\n")
    import anyio
    from mcp.server.stdio import stdio_server

    async def serve() -> None:
        async with stdio_server() as (requests, answers):
            await serving.run(requests, answers, serving.create_initialization_options())

    anyio.run(serve)
    return Answer(text="")
