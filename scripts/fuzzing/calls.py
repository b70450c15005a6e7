"""Calls of the library with damaged models: a config, the metadata of a GGUF file, or an open file. No folder, no command line, no table.

They find what reading and planning do with damage at a tenth of the cost of a command.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

from scripts.fuzzing.case import Case
from scripts.fuzzing.gguf_files import damaged_gguf, models
from scripts.fuzzing.mutate import HOSTILE, damaged, damaged_text, encoded, strange
from scripts.fuzzing.words import ENGINES, GPUS, VALUES

_ODD_TOKENS: Final = ("1", "8", "4k", "32k", "131072", "1m", "0", "-1", "x", "1e30", "10**9")
_TAKEN: Final = (
    ("engine", 0.5, ENGINES),
    ("gpu", 0.25, GPUS),
    ("batch", 0.3, ("1", "2", "64", "100000")),
    ("dtype", 0.3, VALUES["dtype"]),
    ("weights", 0.1, VALUES["weights"]),
    ("tp", 0.2, ("1", "2", "8", "3")),
    ("pp", 0.1, ("1", "2", "7")),
    ("policy", 0.15, VALUES["policy"]),
    ("prompt", 0.15, VALUES["prompt"]),
    ("shared_prefix", 0.1, VALUES["shared_prefix"]),
    ("samples", 0.1, VALUES["samples"]),
    ("lengths", 0.05, VALUES["lengths"]),
    ("lora", 0.05, VALUES["lora"]),
    ("draft", 0.03, ("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B")),
)
"""Keywords of a plan, how often each is given, and its values."""


def library(chance: random.Random, configs: Sequence[Mapping[str, Any]]) -> Case:
    """A model that is read, planned or explained: a config dict, or the metadata of a GGUF file as a dict."""
    if chance.random() < 0.25:
        architecture, hparams = chance.choice(models())
        given = {"general.architecture": architecture, **{f"{architecture}.{key}": value for key, value in hparams.items()}}
        donors: Sequence[Mapping[str, Any]] = [
            {f"{architecture}.{key}": value for key, value in chance.choice(models())[1].items()}
        ]
    else:
        given, donors = dict(chance.choice(configs)), configs
    document = damaged(given, chance, donors, chance.choice((1, 1, 2, 3, 6, 12)))
    if isinstance(document, dict) and chance.random() < 0.2:
        document["model_type"] = chance.choice(configs).get("model_type")
    if isinstance(document, dict) and chance.random() < 0.05:
        document["_name_or_path"] = chance.choice(HOSTILE)
    function = chance.choices(("load_model", "plan", "explain"), (60, 34, 6))[0]
    keywords: dict[str, Any] = {} if function == "load_model" else {"seq": chance.choice(_ODD_TOKENS[:6])}
    if function != "load_model":
        keywords |= {name: chance.choice(values) for name, share, values in _TAKEN if chance.random() < share}
        if chance.random() < 0.1:
            keywords[chance.choice([*keywords])] = (
                chance.choice((*_ODD_TOKENS, *HOSTILE)) if chance.random() < 0.7 else strange(chance)
            )
    return Case(family="library", words=(function, json.dumps(keywords)), files={"config.json": json.dumps(document).encode()})


def stream(chance: random.Random, configs: Sequence[Mapping[str, Any]]) -> Case:
    """An open file: a GGUF file, or the text of a config, with damage in its bytes."""
    if chance.random() < 0.6:
        return Case(family="stream", words=("load_model",), files={"x.gguf": damaged_gguf(chance)})
    text = damaged_text(json.dumps(chance.choice(configs)), chance, chance.choice((1, 2, 5)))
    return Case(family="stream", words=("load_model",), files={"config.json": encoded(text)})


_CHECKS: Final[Mapping[str, Any]] = {
    "schema_version": 1,
    "defaults": {"engine": "vllm", "gpu": "l4"},
    "checks": [
        {"name": "chat", "model": "Qwen/Qwen3-1.7B", "seq": "16k", "concurrency": 2, "dtype": "fp8", "headroom": "1%"},
        {"model": "Qwen/Qwen3-8B", "engine": "reference", "gpu": None, "seq": "32k", "max_bytes_per_token": "512KiB"},
    ],
}


def tool(chance: random.Random, configs: Sequence[Mapping[str, Any]]) -> Case:
    """A case in which an agent asks ``kvplan mcp`` for a tool with arguments, any JSON."""
    name = chance.choices(("plan", "explain", "compare", "check", "fit", "recommend", "nosuch"), (40, 15, 15, 20, 4, 5, 1))[0]
    model: Any = (
        chance.choice(configs) if chance.random() < 0.5 else chance.choice(("Qwen/Qwen3-1.7B", "Qwen/Qwen3-8B", "nosuch/x"))
    )
    arguments: dict[str, Any] = {"offline": True, "seq": chance.choice(_ODD_TOKENS[:6])}
    arguments |= {key: chance.choice(values) for key, share, values in _TAKEN if chance.random() < share * 0.6}
    if name == "check":
        arguments = {"file": _CHECKS}
    elif name == "compare":
        arguments |= {"models": [model, "Qwen/Qwen3-1.7B"] if chance.random() < 0.7 else model}
    elif name in {"fit", "recommend"}:
        # All models or all hardware take as long as they say.
        arguments = {"offline": True, "gpu": chance.choice(GPUS), "limit": 3}
        arguments |= {"models": "qwen3-1.7b"} if name == "fit" else {"model": model}
    else:
        arguments["model"] = model
    arguments = damaged(arguments, chance, [*configs[:20], arguments], chance.choice((0, 1, 1, 2, 4)))
    if (
        name != "check"
        and isinstance(arguments, dict)
        and ("models" if name == "fit" else "gpu") not in arguments
        and name in {"fit", "recommend"}
    ):
        arguments |= {"gpu": "l4", "models": "qwen3-1.7b"} if name == "fit" else {"gpu": "l4"}
    return Case(family="tool", words=(name, json.dumps(arguments)), files={})


def called_tool(case: Case) -> str:
    """The text with which a case of :func:`tool` is answered. Raises what the library raises."""
    from hwcalc.cli.agents import call

    name, arguments = case.words
    document, text = call(name, json.loads(arguments))
    json.dumps(document)
    return text


def called_library(case: Case) -> None:
    """Call what a case of :func:`library` names, and read the answer. Raises what the library raises."""
    import hwcalc

    function, words = case.words
    document = json.loads(case.files["config.json"])
    if function == "load_model":
        repr(hwcalc.load_model(document, offline=True))
        return
    answer: Any = {"plan": hwcalc.plan, "explain": hwcalc.explain}[function](document, offline=True, **json.loads(words))
    json.dumps(answer.to_dict())


def opened_file(case: Case) -> None:
    """Read the open file of a case of :func:`stream`. Raises what the library raises."""
    import hwcalc

    repr(hwcalc.load_model(io.BytesIO(next(iter(case.files.values()))), offline=True))
