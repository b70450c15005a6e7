"""Read what a text would start: :func:`read_launch`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import UnknownNameError, UsageError
from hwcalc.formulas.record import Record
from hwcalc.launch.arguments import gguf_format, scalar
from hwcalc.launch.around import Around, all_flags
from hwcalc.launch.commands import flags_called, servers_of_script
from hwcalc.launch.env_file import NAME, TOO_MANY, EnvFile, Named, beside, is_secret, of_service, variables_in
from hwcalc.launch.server import FILE_NAME, KEYS, Server, names_of
from hwcalc.launch.shell import read_script
from hwcalc.launch.words import MOST_VALUE, EnvText, GivenText
from hwcalc.text import brief, did_you_mean, operand, printable, shell_word, shown

LARGEST_TEXT: Final = 4 * 1024**2
"""Characters of a text. Rendered charts of large systems take a quarter of this."""
LOAD: Final = {"seq": "seq", "users": "batch"}
"""What ``--set`` says of the load of one server, ``chat.seq``, and the options of a plan."""
_USED: Final = re.compile(
    r"""(?<!\$)(?:\$\$)*\$[({]?([A-Za-z_]\w*)|(?:^[ \t]*(?:-[ \t]*)?|[\[,][ \t]*)["']?([A-Za-z_]\w*)["']?[ \t]*(?::?[ \t\r]*$|(?=[,\]]))""",
    re.MULTILINE,
)
"""A variable that is filled in, or that a list of variables has without a value."""
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_MOST_FILES: Final = 50
"""Files beside a text that are read."""
_LONGEST_LIST: Final = 80
_MOST_COMPARED: Final = 20
"""Variables of a file beside a text that are tried one after another."""
_LONGEST_COMPARED: Final = 256 * 1024
"""Characters of a text that is read once more for each of them."""
_KEY: Final = re.compile(r"\s*(?:- +)?[\w\"'./{}$-]+\s*:(?:\s|$)")


def read_launch(text: str, env: Mapping[str, str] | None = None, *, name: str = "") -> list[Server]:
    """The servers that a text would start: a command, a script, or a manifest. ``env`` has values for the variables that it leaves open.

    The list is empty where nothing starts a server that kvplan knows, as for a path: give what stands in the file. Nothing is run, and nothing is
    fetched. Raises :class:`~hwcalc.errors.UsageError` for what is no ``str``, and for a text that is too large.

    >>> [server] = read_launch("vllm serve Qwen/Qwen3-8B --max-model-len 32k -tp $TP", env={"TP": "2"})
    >>> server.model, server.max_model_len, server.tp
    ('Qwen/Qwen3-8B', 32000, 2)
    """
    return _servers(_checked(text), read_variables(env), name, MappingProxyType({}))


def _checked(text: object) -> str:
    """The text. Raises :class:`~hwcalc.errors.UsageError` for what is none, and for one that is too large."""
    if not isinstance(text, str):
        raise UsageError("a command or a manifest is text.", hint="Give its text: read_launch(path.read_text())")
    if len(text) > LARGEST_TEXT:
        message = f"the text has more than {LARGEST_TEXT:,} characters, which is the most that is read."
        raise UsageError(message, hint="Give the part that starts the servers.")
    return text


def _servers(text: str, variables: Mapping[str, str], name: str, env_files: Mapping[Named, EnvFile]) -> list[Server]:
    """The servers that a text would start, with files that lie beside it."""
    name = name if isinstance(name, str) else ""
    # A fence of Markdown is no line of a file.
    text = re.sub(r"(?m)^[ \t]*```[^\n`]*$", "", text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\0", ""))
    from hwcalc.launch.files import servers_of_file, servers_of_settings

    servers = servers_of_file(text, variables, name)
    if servers is not None:
        return servers
    servers = servers_of_settings(text, variables)
    if servers:
        return servers
    if _looks_like_manifest(text):
        from hwcalc.launch.manifests import servers_of_manifest

        servers = servers_of_manifest(text, variables, env_files=env_files)
        if servers is not None:
            return servers
    script = read_script(text, variables)
    servers = servers_of_script(script, Around(tells=False, hint=name))
    if servers:
        return servers
    from hwcalc.launch.manifests import servers_of_manifest

    # A manifest that a command is given: `kubectl apply -f - <<EOF`.
    bodies = [each for each in script.bodies if _looks_like_manifest(each[0])]
    return [server for body, origin in bodies for server in servers_of_manifest(body, variables, origin) or ()]


class Given(Record):
    """What the user says of texts: the ``variables`` that they leave open, and ``settings`` of each server, by :data:`~hwcalc.launch.server.KEYS`.

    A setting of one server has its name in front: ``chat.model``; so has its load, :data:`LOAD`. ``sets`` are the names that ``--set`` gives a value,
    and ``file`` is the file of variables that the user names. ``beside`` are those of one beside the text, which count less, and ``env_files``
    the files beside it that its services name. ``lacking`` are the variables that the text uses and the file that Compose reads does not have, with the path of that.
    """

    variables: Mapping[str, str]
    settings: Mapping[str, Any]
    sets: tuple[str, ...] = ()
    file: str = ""
    beside: Mapping[str, str] = MappingProxyType({})
    env_files: Mapping[Named, EnvFile] = MappingProxyType({})
    lacking: Mapping[str, str] = MappingProxyType({})

    @staticmethod
    def of(sets: Sequence[str], lines: str = "", file: str = "") -> Given:
        """The values that words of ``--set`` and the lines of a ``file`` of variables give. Raises :class:`~hwcalc.errors.UsageError` for a word without a value."""
        variables: dict[str, str] = {name: EnvText(value) for name, value in variables_in(lines).items()}
        settings = dict[str, Any]()
        for each in sets:
            name, equals, value = each.partition("=")
            if not equals or not name:
                raise UsageError(f"--set {shown(each, 40)} has no value.", hint="Write: --set NAME=VALUE")
            variables[name] = value
            server, _, key = name.rpartition(".")
            if key in KEYS or (server and key in LOAD):
                settings[name] = _setting(name, key, value)
        names = tuple(dict.fromkeys(each.partition("=")[0] for each in sets))
        return Given(variables=variables, settings=settings, sets=names, file=file)

    @property
    def files_of(self) -> dict[str, str]:
        """The variables from outside a text, each with the file that says it; empty where the user does."""
        of_user = {name: "" if name in self.sets else printable(self.file) for name in self.variables}
        return {**dict.fromkeys(self.beside, NAME), **of_user}

    def with_beside(self, text: str, path: str) -> tuple[Given, tuple[str, ...]]:
        """The same with what files beside a text give it, and a sentence on each that says something to the text."""
        found = None if self.file else beside(path)
        given, said = self._filled_in(found, text, path)
        outside = {**({} if found is None else found.variables), **self.variables}
        given, more = _with_files(given, outside, text, path)
        return given, (*([said] if said else []), *more)

    def _filled_in(self, found: EnvFile | None, text: str, path: str) -> tuple[Given, str]:
        """The same with what the ``.env`` beside a text gives it, and a sentence on that file; empty where it says nothing to the text.

        Docker Compose reads the file by itself, unless it is told another one. Nobody reads it for other texts. A secret is not taken: no plan needs it.
        """
        used = set(used_in(text)) - self.variables.keys() if found is not None else set()
        if found is None or not used:
            return self, ""
        file, name = printable(found.path), re.split(r"[\\/]", path)[-1]
        from hwcalc.launch.manifests import is_compose

        if not is_compose(text):
            read = {name: value for name, value in found.variables.items() if name in used and not is_secret(name, value)}
            named = brief(", ".join(self._changing(read, text, name)), _LONGEST_LIST)
            said = f"{file} has other values of {named} than are taken of {printable(path)}: Docker Compose alone reads it by itself."
            return self, f"{said} To read it add: --env-file {operand(found.path)}" if named else ""
        if found.fault:
            return self, f"{file} is not read, as Docker Compose would: {found.fault}. Name a file of variables: --env-file FILE"
        own = {name: EnvText(value) for name, value in found.variables.items() if name in used and not is_secret(name, value)}
        said = f"{file} is read, as Docker Compose does: {brief(', '.join(sorted(own)), _LONGEST_LIST)}."
        lacking = dict.fromkeys(sorted(used - found.variables.keys()), file)
        return replace(self, beside=own, lacking=lacking), said if own else ""

    def _changing(self, more: Mapping[str, str], text: str, file: str) -> Iterator[str]:
        """The names of the variables which change a server of the text if the user gives them too."""

        def read(given: Given) -> list[dict[str, Any]]:
            # That a default is not taken any more changes nothing where the value is the same.
            return [{**server.to_dict(), "unresolved": None} for server in given.servers(text, file)]

        with suppress(UsageError):  # who reads the text itself is told
            few = sorted(more)[:_MOST_COMPARED] if len(text) <= _LONGEST_COMPARED else []
            servers = read(self) if few else []
            for name in few:
                if read(replace(self, variables={**self.variables, name: more[name]})) != servers:
                    yield name

    def changes(self, name: str, text: str, file: str) -> bool:
        """True if what ``--set`` gives this name changes something of a server of the text, or is its load."""
        server, _, key = name.rpartition(".")
        if server and key in LOAD:
            return any(called == server for called, _ in self.named(text, file))
        variables, settings = (
            {key: value for key, value in all_.items() if key != name} for all_ in (self.variables, self.settings)
        )
        without = replace(self, variables=variables, settings=settings)
        now, before = (
            [
                (
                    each.to_dict(),
                    each.name,
                    [word.text for word in each.words],
                    each.variables - {f"{name}={self.variables[name]}"},
                )
                for each in given.servers(text, file)
            ]
            for given in (self, without)
        )
        return now != before

    def servers(self, text: str, name: str = "") -> list[Server]:
        """The servers of a text, with what the user says of it."""
        return [server for _, server in self.named(text, name)]

    def named(self, text: str, name: str = "") -> list[tuple[str, Server]]:
        """The servers of a text, each behind its name, which is that of the text alone: nothing that the user says changes it."""
        variables = {**self.beside, **self.variables}
        servers = _servers(_checked(text), read_variables(variables), name, self.env_files)
        alone = read_launch(text, name=name) if variables or self.env_files else servers
        names = names_of(alone if len(alone) == len(servers) else servers)
        return [(called, _with(server, self.settings_of(called))) for called, server in zip(names, servers, strict=True)]

    def settings_of(self, server: str) -> dict[str, Any]:
        """The settings of a server: those of each one, and those that have its name in front, which count more."""
        own = {key.removeprefix(f"{server}."): value for key, value in self.settings.items() if key.startswith(f"{server}.")}
        return {key: value for key, value in {**self.settings, **own}.items() if key in KEYS}

    def load_of(self, server: str) -> dict[str, Any]:
        """The options of a plan that ``--set`` gives a server as its load."""
        return {option: self.settings[f"{server}.{key}"] for key, option in LOAD.items() if f"{server}.{key}" in self.settings}


def _setting(name: str, key: str, value: str) -> Any:
    """The value of a setting that ``--set`` gives it by this name, behind which its ``key`` stands.

    Raises :class:`~hwcalc.errors.UnknownNameError` for an engine that is not known.
    """
    if key == "engine_version":
        # 0.10 is no number, and what a user says is not passed over.
        return GivenText(value)
    if key != "engine":
        return value if key in ("model", "revision") else scalar(value)
    called, at, version = value.partition("@")
    flags, said = flags_called(called), f"--set {shown(f'{name}={value}', 60)}"
    if flags is None:
        known = [each.name for each in all_flags()]
        hint = f"{did_you_mean(called, known)}Known: {', '.join(known)}."
        raise UnknownNameError(f"{said}: no such engine is known.", option=key, hint=hint)
    if at:
        written = shell_word(f"{name}_version={version or 'VERSION'}")
        hint = f"Write: --set {written}"
        raise UnknownNameError(f"{said} names an engine and its release, which is another setting.", option=key, hint=hint)
    return flags.name


def _with_files(given: Given, outside: Mapping[str, str], text: str, path: str) -> tuple[Given, list[str]]:
    """The same with the files that services of Compose name, and a sentence on each of which a server has something.

    Variables from ``outside`` fill in the values of those files.
    """
    from hwcalc.launch.manifests import env_files_in

    named = [] if path == "-" else env_files_in(text, {**given.beside, **given.variables})
    if not named:
        return given, []
    used = frozenset(_WORD.findall(text))
    read = {each: of_service(path, each, outside, used) for each in named[:_MOST_FILES]}
    read |= {each: EnvFile(path=each.path, fault=TOO_MANY) for each in named[_MOST_FILES:]}
    given, taken = replace(given, env_files=read), dict[str, set[str]]()
    with suppress(UsageError):  # who reads the text itself is told
        for server in given.servers(text, re.split(r"[\\/]", path)[-1]):
            for name, file in server.env_files.items():
                taken.setdefault(file, set()).add(name)
    paths = {printable(each.name): printable(found.path) for each, found in read.items()}
    return given, [
        f"{paths[file]} is read for a service that names it, as Docker Compose does: {brief(', '.join(sorted(names)), _LONGEST_LIST)}."
        for file, names in taken.items()
    ]


def _with(server: Server, settings: Mapping[str, Any]) -> Server:
    """The server with these settings of the user."""
    return replace(
        server,
        settings={**server.settings, **settings, **_weights(server, settings)},
        unresolved=tuple(each for each in server.unresolved if re.split(r"[=:]", each)[0] not in settings),
    )


def _weights(server: Server, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The format of the weights of a model that the user names: it stays what the text states, unless that name states another one."""
    if "model" not in settings:
        return {}
    # That of a tag of Ollama's is its end: qwen3:8b-q8_0.
    tag = gguf_format(f"{str(server.settings.get('model') or '').partition(':')[2]}.gguf")
    stated = str(settings.get("weights") or server.settings.get("weights") or tag or "").partition(" ")[0]
    model = settings["model"]
    return {"weights": f"{stated} {FILE_NAME}" if stated and ":" not in model and not model.lower().endswith(".gguf") else None}


def _is_plain(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 10**18)


def used_in(text: str) -> Iterator[str]:
    """The variables with which a text is filled in, and those that it lists without a value."""
    return (match[1] or match[2] for match in _USED.finditer(text))


def read_variables(env: object) -> dict[str, str]:
    """The variables that the user gives. Raises :class:`~hwcalc.errors.UsageError` for what is none."""
    if env is None:
        return {}
    if isinstance(env, Mapping):
        pairs = [*env.items()]
        if all(isinstance(key, str) and _is_plain(value) for key, value in pairs):
            return {str(key): value if isinstance(value, EnvText) else GivenText(str(value)[:MOST_VALUE]) for key, value in pairs}
    raise UsageError("env must map the names of variables to their values.", hint='Write: env={"MODEL": "org/name"}')


def _looks_like_manifest(text: str) -> bool:
    """True if the first line that says something has a key of YAML, or begins JSON."""
    for line in text.split("\n", 400)[:400]:
        plain = line.strip()
        if not plain or plain.startswith(("#", "---", "%", "{{", "```")):
            continue
        return plain.startswith(("{", "[")) or bool(_KEY.match(line))
    return False
