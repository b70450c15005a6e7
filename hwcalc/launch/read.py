"""Read what a text would start: :func:`read_launch`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hwcalc.errors import UsageError
from hwcalc.launch.commands import Around, servers_of_script
from hwcalc.launch.server import Server
from hwcalc.launch.shell import read_script
from hwcalc.launch.words import MOST_VALUE

LARGEST_TEXT: Final = 4 * 1024**2
"""Characters of a text. Rendered charts of large systems take a quarter of this."""
_KEY: Final = re.compile(r"\s*(?:- +)?[\w\"'./{}$-]+\s*:(?:\s|$)")


def read_launch(text: str, env: Mapping[str, str] | None = None, *, name: str = "") -> list[Server]:
    """The servers that a text would start: a command, a script, or a manifest. ``env`` has values for the variables that it leaves open.

    The list is empty where nothing starts a server that kvplan knows, as for a path: give what stands in the file. Nothing is run, and nothing is
    fetched. Raises :class:`~hwcalc.errors.UsageError` for what is no ``str``, and for a text that is too large.

    >>> [server] = read_launch("vllm serve Qwen/Qwen3-8B --max-model-len 32k -tp $TP", env={"TP": "2"})
    >>> server.model, server.max_model_len, server.tp
    ('Qwen/Qwen3-8B', 32000, 2)
    """
    if not isinstance(text, str):
        raise UsageError("a command or a manifest is text.", hint="Give its text: read_launch(path.read_text())")
    if len(text) > LARGEST_TEXT:
        message = f"the text has {len(text):,} characters, and {LARGEST_TEXT:,} are read."
        raise UsageError(message, hint="Give the part that starts the servers.")
    variables = _variables(env)
    name = name if isinstance(name, str) else ""
    # A fence of Markdown is no line of a file.
    text = re.sub(r"(?m)^[ \t]*```[^\n`]*$", "", text.replace("\r\n", "\n").replace("\0", ""))
    from hwcalc.launch.files import servers_of_file

    servers = servers_of_file(text, variables, name)
    if servers is not None:
        return servers
    if _looks_like_manifest(text):
        from hwcalc.launch.manifests import servers_of_manifest

        servers = servers_of_manifest(text, variables)
        if servers is not None:
            return servers
    script = read_script(text, variables)
    servers = servers_of_script(script, Around(tells=False, hint=name))
    if servers:
        return servers
    from hwcalc.launch.manifests import servers_of_manifest

    # A manifest that a command is given: `kubectl apply -f - <<EOF`.
    bodies = [each for each in (*script.bodies, *script.files.values()) if _looks_like_manifest(each)]
    return [server for each in bodies for server in servers_of_manifest(each, variables) or ()]


def _is_plain(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 10**18)


def _variables(env: object) -> dict[str, str]:
    """The variables that the user gives. Raises :class:`~hwcalc.errors.UsageError` for what is none."""
    if env is None:
        return {}
    if isinstance(env, Mapping):
        pairs = [*env.items()]
        if all(isinstance(key, str) and _is_plain(value) for key, value in pairs):
            return {str(key): str(value)[:MOST_VALUE] for key, value in pairs}
    raise UsageError("env must map the names of variables to their values.", hint='Write: env={"MODEL": "org/name"}')


def _looks_like_manifest(text: str) -> bool:
    """Whether the first line that says something has a key of YAML, or begins JSON."""
    for line in text.split("\n", 400)[:400]:
        plain = line.strip()
        if not plain or plain.startswith(("#", "---", "%", "{{", "```")):
            continue
        return plain.startswith(("{", "[")) or bool(_KEY.match(line))
    return False
