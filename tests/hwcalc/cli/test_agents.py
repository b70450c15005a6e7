"""The tools for agents answer as the commands do. The client is that of the protocol's own SDK."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mcp
import pytest
from jsonschema import Draft202012Validator

import hwcalc
from hwcalc.cli.agents import call, server, tools
from hwcalc.report.schema import json_schema
from tests.hwcalc.command import QWEN, Capture, run
from tests.tiny_configs import TINY_LLAMA

CHECKS = {
    "schema_version": 1,
    "checks": [{"name": "chat", "model": QWEN, "engine": "vllm", "gpu": "h100", "seq": "16k", "min_concurrency": 4}],
}
ASKED: Mapping[str, Mapping[str, Any]] = {
    "plan": {"model": QWEN, "engine": "vllm", "gpu": "l4", "seq": "8k"},
    "explain": {"model": QWEN, "seq": 4_096, "batch": 2},
    "compare": {"models": [QWEN, "openai/gpt-oss-20b"], "seq": "8k", "dtype": ["bf16", "fp8"]},
    "recommend": {"model": QWEN, "engine": "vllm", "seq": "32k", "gpu": ["l4", "h100"], "max_gpus": 2},
    "fit": {"models": "qwen3", "gpu": "rtx-4070", "limit": 3},
    "check": {"file": CHECKS},
}


def asked(name: str, arguments: Mapping[str, Any], target: Any = None) -> Any:
    """The answer of a tool, in this process or from another."""

    async def ask(client: Any) -> Any:
        return await client.call_tool(name, dict(arguments))

    return connected(ask, target)


def connected(ask: Callable[[Any], Awaitable[Any]], target: Any = None) -> Any:
    """The answer to ``ask`` of a client that is connected to the server.

    In a thread of its own: a browser that earlier tests left open runs an event loop in this one.
    """
    import anyio

    async def main() -> Any:
        async with mcp.Client(target or server()) as client:
            return await ask(client)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, main).result()


def test_tools_have_schemas() -> None:
    """Every tool has the schema of its document, arguments that JSON Schema can check, and changes nothing."""

    async def listed(client: Any) -> Any:
        return (await client.list_tools()).tools

    found = {tool.name: tool for tool in connected(listed)}

    assert list(found) == list(ASKED)
    for name, tool in found.items():
        Draft202012Validator.check_schema(tool.input_schema)
        Draft202012Validator(tool.input_schema).validate(ASKED[name])
        assert tool.output_schema == json_schema(name)
        assert tool.annotations.read_only_hint is True
        assert not {"token", "endpoint"} & set(tool.input_schema["properties"])
        assert len(tool.description) > 20


@pytest.mark.parametrize("name", ASKED)
def test_a_tool_gives_the_document_of_its_command(name: str) -> None:
    """The structured answer is that of the library, and the text is short."""
    answer = asked(name, ASKED[name])

    assert answer.is_error is False
    if name == "check":
        assert answer.structured_content["summary"] | {"exit_code": 0} == answer.structured_content["summary"]
        assert answer.structured_content["checks"][0]["name"] == "chat"
    else:
        expected = getattr(hwcalc, name)(**ASKED[name]).to_dict()
        assert answer.structured_content == json.loads(json.dumps(expected))
    assert 100 < len(answer.content[0].text) < 6_000


@pytest.mark.parametrize(
    ("name", "spelled", "own"),
    [
        ("plan", {"users": 8, "context": "4k", "quant": "fp8"}, {"batch": 8, "seq": "4k", "weights": "fp8"}),
        ("recommend", {"concurrency": 8, "gpu": "l4"}, {"batch": 8, "gpu": "l4"}),
        ("compare", {"models": QWEN, "users": 2, "seq": 8}, {"models": QWEN, "batch": 2, "seq": 8}),
    ],
)
def test_an_option_by_any_of_its_names(name: str, spelled: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """The answer is the same; given by two names it is refused."""
    model = {} if name == "compare" else {"model": QWEN}

    assert call(name, {**model, **spelled}) == call(name, {**model, **own})
    with pytest.raises(hwcalc.KvplanError, match="are the same option"):
        call(name, {**model, **spelled, "batch": 9})


def test_over_pipes() -> None:
    """The command itself serves, and standard output has nothing but the protocol."""
    process = mcp.StdioServerParameters(command=sys.executable, args=["-m", "hwcalc", "mcp"])
    answer = asked("plan", ASKED["plan"], process)

    assert answer.structured_content["fit"]["gpu"] == "l4"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("plan", {"model": "Qwen/No-Such-Model", "offline": True}, "model-not-found: "),
        ("plan", {"model": QWEN, "gpu": "h1000"}, "usage: "),
        ("plan", {"model": QWEN, "nothing": 1}, "plan takes no 'nothing'"),
        ("plan", {"model": QWEN, "token": "hf_secret"}, "plan takes no 'token'"),
        ("plan", {"model": {"model_type": "llama", "num_hidden_layers": -1}}, "bad-config: "),
        ("compare", {}, "compare needs models"),
        ("check", {"file": {"schema_version": 1, "checks": [{"modle": QWEN}]}}, "modle"),
        ("check", {"file": 3}, "bad-check: "),
        ("probe", {}, "there is no tool 'probe'"),
    ],
)
def test_errors_are_answers(name: str, arguments: Mapping[str, Any], words: str) -> None:
    """Whatever is wrong with a request is said in the answer, and the server goes on."""
    answer = asked(name, arguments)

    assert answer.is_error is True
    assert words in answer.content[0].text
    assert "hf_secret" not in answer.content[0].text
    assert "internal" not in answer.content[0].text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 1e400, 10**400, "\ud800", [[]], {"a": []}])
@pytest.mark.parametrize("key", ["seq", "concurrency", "model", "headroom"])
def test_checks_of_any_value(key: str, value: Any) -> None:
    """JSON libraries read NaN and infinity, which JSON has not: they are faults of the file like others."""
    with pytest.raises(hwcalc.KvplanError):
        call("check", {"file": {"schema_version": 1, "checks": [{"model": QWEN, "seq": 8, key: value}]}})


def test_what_an_agent_gets_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what a command writes: no line is a command to a runner of CI jobs, and no token is repeated."""
    monkeypatch.setenv("HF_TOKEN", "the-token-of-this-test-0123456789")
    method = "x\n::stop-commands::x\x1b[2J the-token-of-this-test-0123456789"
    config = {**TINY_LLAMA, "quantization_config": {"quant_method": method}}
    for name, arguments in {
        "explain": {"model": config, "seq": 8},
        "compare": {"models": [config, {**config, "_name_or_path": method}], "seq": 8},
    }.items():
        answer = asked(name, arguments)
        text = answer.content[0].text
        assert answer.is_error is False, text
        assert "the-token" not in text + json.dumps(answer.structured_content)
        assert "\x1b" not in text
        assert not [line for line in text.splitlines() if line.lstrip().startswith("::")]


def test_without_the_package(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "mcp", None)
    status, out, said = run(capsys, "mcp")

    assert (status, out) == (2, "")
    assert "pip install 'hwcalc[mcp]'" in said


def test_every_tool_is_a_function_of_the_library() -> None:
    """Arguments are the function's own keywords: all that are not the server's to set."""
    for name, tool in tools().items():
        if name != "check":
            function = getattr(hwcalc, name)
            assert tool.function is function
            assert inspect.signature(function).parameters.keys() - {"token", "endpoint"} == tool.properties.keys()
