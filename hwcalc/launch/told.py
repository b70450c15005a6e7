"""What the engine of a server is told, as names with their values, and the server that is told it.

The names are the engine's: of flags (``--max-model-len``), of variables and of parameters in a file. A flag without a value has an empty one.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hwcalc.launch.arguments import scalar
from hwcalc.launch.read import read_launch
from hwcalc.text import shell_word

if TYPE_CHECKING:
    from hwcalc.profiles.engine_flags import EngineFlags, Flag


def key_of(flag: Flag) -> str:
    """The setting that a flag is, or is a part of, by its name in a server."""
    return flag.name if flag.key is None else flag.key.partition(".")[0]


def read_told(flags: EngineFlags, text: str) -> dict[str, str]:
    """What an engine is told by a text such as its :meth:`~hwcalc.engines.facts.Command.flag`.

    >>> from hwcalc.profiles.engine_flags import engine_flags
    >>> read_told(engine_flags("vllm"), "VLLM_ATTENTION_BACKEND=FLASHINFER --enforce-eager --max-model-len 8192")
    {'VLLM_ATTENTION_BACKEND': 'FLASHINFER', '--enforce-eager': '', '--max-model-len': '8192'}
    """
    told: dict[str, str] = {}
    words = shlex.split(text)[::-1]
    while words:
        name, equals, value = words.pop().partition("=")
        flag, negated = flags.find(name) if name.startswith("-") else (None, False)
        bare = flag is not None and (negated or flag.takes == "switch")
        if not equals and not bare and words and not words[-1].startswith("--"):
            value = words.pop()
        told[name] = value
    return told


def written(told: Mapping[str, str]) -> str:
    """The words that tell it, as a user types them. Variables stand in front."""
    words = {name: shell_word(value) for name, value in told.items()}
    variables = [f"{name}={word}" for name, word in words.items() if is_variable(name)]
    return " ".join(
        [*variables, *(f"{name} {word}" if told[name] else name for name, word in words.items() if not is_variable(name))]
    )


def is_variable(name: str) -> bool:
    """True for the name of a variable of the environment, not of a flag or a parameter.

    >>> is_variable("OLLAMA_NUM_PARALLEL"), is_variable("num_ctx"), is_variable("-c")
    (True, False, False)
    """
    return name.isupper() and not name.startswith("-")


def keys_told(flags: EngineFlags, name: str) -> tuple[str, ...]:
    """The settings of a server that a name says: first the one under which its word stands among the places of the server."""
    flag = flags.find(name)[0] if name.startswith("-") else None
    if flag is not None:
        return (key_of(flag),)
    variable = next((row for row in flags.environment if row.name == name), None)
    if variable is not None:
        key = variable.key or name if variable.flag is None else key_of(flags.spelled[variable.flag])
        return (key, variable.also) if variable.also else (key,)
    return (next((row.key for row in flags.parameters if row.name == name and row.key), name),)


def settings_told(flags: EngineFlags, told: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a server that is told this, and its engine's other words."""
    parameters = {row.name: row.key for row in flags.parameters if row.key and row.name in told}
    words = {name: value for name, value in told.items() if name not in parameters}
    variables = [shlex.quote(f"{name}={value}") for name, value in words.items() if is_variable(name)]
    of_line = (word for name, value in words.items() if not is_variable(name) for word in (name, value) if word)
    [server] = read_launch(" ".join([*variables, *flags.program, shlex.join(of_line)]))
    settings = {name: value for name, value in server.settings.items() if name not in ("engine", "model")}
    return {**settings, **{key: scalar(told[name]) for name, key in parameters.items()}}, dict(server.extra)
