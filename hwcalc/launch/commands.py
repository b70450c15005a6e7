"""Which command of a script starts which server: programs, wrappers, containers, and what stands around them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.launch.arguments import Reading, scalar
from hwcalc.launch.around import Around, all_flags, finished, image_of, servers_with, starts_server
from hwcalc.launch.server import Server
from hwcalc.launch.shell import Command, Script, read_script
from hwcalc.launch.words import EnvText, Origin, Spot, Word, known_of
from hwcalc.profiles.engine_flags import EngineFlags, Program
from hwcalc.profiles.launch import launch_words

_PYTHON: Final = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?")
_DEEPEST: Final = 8
_FEWEST_KNOWN: Final = 3
"""Flags that a command must have in common with an engine whose program is not named."""


# --- programs -------------------------------------------------------------------------------------------------------


def flags_called(word: str) -> EngineFlags | None:
    """The flags of the engine that a word names, however it is written; ``None`` for an unknown one.

    >>> flags_called("OLlama").engine, flags_called("TRTLLM").engine
    ('ollama', 'tensorrt-llm')
    """
    plain = re.sub(r"[^a-z0-9]", "", word.lower())
    return next((each for each in all_flags() if plain in {re.sub(r"[^a-z0-9]", "", name) for name in each.called}), None)


def base_name(text: str) -> str:
    """The last part of a path, without ``.exe``."""
    return text.replace("\\", "/").rpartition("/")[2].removesuffix(".exe")


def program_at(words: Sequence[Word]) -> tuple[EngineFlags, Program, int, str] | None:
    """The server that these words start: its engine, its program, how many words name it, and what is not sure."""
    if not words:
        return None
    first, remark = base_name(words[0].text), ""
    if words[0].unknown:
        named = re.search(r"[A-Za-z_]\w*", words[0].text.rpartition("/")[2])
        first = named[0].lower().replace("_", "-") if named else ""
        remark = f"engine: {words[0].source or words[0].text}"
    texts = [first, *(word.text for word in words[1:8])]
    skip = 0
    if _PYTHON.fullmatch(first) or (words[0].unknown and "-m" in texts[1:4]):
        place = 1
        while place < len(texts) and texts[place].startswith("-") and not texts[place].startswith("-m") and place < 6:
            place += 2 if texts[place] in ("-X", "-W") else 1
        if place >= len(texts):
            return None
        module = texts[place][2:] if texts[place].startswith("-m") and texts[place] != "-m" else ""
        if texts[place] == "-m" and place + 1 < len(texts):
            module, place = texts[place + 1], place + 1
        elif texts[place].endswith(".py"):
            module = texts[place].removesuffix(".py").replace("/", ".")
        skip = place - 2
        texts = ["python", "-m", module, *texts[place + 1 :]]
    best: tuple[EngineFlags, Program, int, str] | None = None
    for flags in all_flags():
        for program in flags.programs:
            size = len(program.words)
            matches = tuple(texts[:size]) == program.words
            if not matches and size > 2 and program.words[1] == "-m" and texts[:2] == ["python", "-m"] and len(texts) >= size:
                matches = texts[2].endswith(f".{program.words[2]}") and tuple(texts[3:size]) == program.words[3:]
            if not matches and size == 1 and words[0].unknown:
                matches = first.endswith(program.words[0]) or first.startswith(program.words[0])
            if not matches and words[0].unknown and size > 1 and tuple(texts[1:size]) == program.words[1:] and texts[1] != "-m":
                matches = program.words[0] in first
            if not matches:
                continue
            if program.own and not (
                words[0].text.startswith(("./", "/")) and any(word.text in ("-m", "-hf", "--model") for word in words)
            ):
                continue
            if best is None or size > len(best[1].words):
                best = (flags, program, size + skip, remark)
    if best is not None and best[2] < len(words) and words[best[2]].text in best[0].not_started:
        return None
    return best


def guessed(words: Sequence[Word], hint: str, variables: Mapping[str, Any]) -> EngineFlags | None:
    """The engine whose flags these are, for a program that nobody knows; ``None`` if no engine knows enough of them."""
    spelled = [
        word.text.partition("=")[0].partition(".")[0]
        for word in words
        if word.text.startswith("-") and not word.text[1:2].isdigit()
    ][:200]
    hint = f"{hint} {' '.join(variables)}".lower()
    best: tuple[int, int, EngineFlags] | None = None
    for flags in all_flags():
        known = sum(flags.find(each)[0] is not None for each in spelled)
        named = int(flags.name.replace(".", "") in hint.replace(".", "").replace("-", "") or flags.engine in hint)
        fewest = len(spelled) + 1 if flags.by_name else _FEWEST_KNOWN
        if (known < fewest and not named) or known * 4 < len(spelled) * 3 or not known:
            continue
        if best is None or (named, known) > best[:2]:
            best = (named, known, flags)
    return None if best is None else best[2]


# --- scripts --------------------------------------------------------------------------------------------------------


def servers_of_script(script: Script, around: Around) -> list[Server]:
    """The servers that the commands of a script start."""
    out: list[Server] = []
    loaded = _Loaded()
    joins = around.joins or any(base_name(command.words[0].text) == "ray" for command in script.commands if command.words)
    around = replace(around, files={**around.files, **script.files}, joins=joins)
    around = _with_installed(around, script)
    for command in script.commands:
        if len(out) >= _MOST_SERVERS:
            break
        out += _of_words(command.words, command, {**command.own}, around, loaded)
    out += loaded.servers(around)
    return out or _by_variables(script, around)


def _by_variables(script: Script, around: Around) -> list[Server]:
    """The server of a text that starts none, and sets variables that nobody else reads."""
    for flags in all_flags():
        names = [name for name in {**script.variables, **script.exported} if flags.alone and name.startswith(flags.alone)]
        if names and around.depth == 0:
            loaded = _Loaded()
            loaded.serves = (flags, Command(words=(), variables={}, own={**script.variables, **script.exported}))
            return [_unpulled(server) for server in loaded.servers(around)]
    return []


_MOST_SERVERS: Final = 500


def _with_installed(around: Around, script: Script) -> Around:
    """With the versions that `pip install` names."""
    said = [" ".join(word.text for word in command.words) for command in script.commands if len(command.words) < 60]
    installed = " ".join(each for each in said if "pip" in each and "install" in each)
    return replace(around, hint=f"{around.hint} {installed[:4000]}") if installed else around


class _Loaded:
    """Pieces of a server that loads models while it runs: its variables, and the model of a file or of a call."""

    def __init__(self) -> None:
        self.serves: tuple[EngineFlags, Command] | None = None
        self.models: list[tuple[EngineFlags, str, Mapping[str, Any], Mapping[str, Any], int]] = []
        self.made: set[str] = set()

    def servers(self, around: Around) -> list[Server]:
        """The servers: one for each model, or the one that waits for a model."""
        if self.serves is None and not self.models:
            return []
        flags = self.serves[0] if self.serves else self.models[0][0]
        own = dict(self.serves[1].own) if self.serves else {}
        line = self.serves[1].line if self.serves else self.models[0][4]
        around, out = replace(around, variables={**around.variables, **own}), []
        for _, model, settings, extra, at in self.models or [(flags, "", {}, {}, line)]:
            reading = Reading(flags)
            reading.environment(around.variables)
            if model:
                reading.settings["model"] = model
            reading.settings |= settings
            reading.extra |= extra
            if not model:
                reading.say("model: pulled later" if self.serves else "model")
            out.append(finished(reading, around, line=at))
        return out


def _of_words(words: Sequence[Word], command: Command, own: dict[str, Any], around: Around, loaded: _Loaded) -> list[Server]:
    """The servers that these words start, directly or through a wrapper."""
    table = launch_words()
    if around.depth > _DEEPEST or not words:
        return []
    first = base_name(words[0].text)
    match = program_at(words)
    if match is not None:
        flags, program, size, remark = match
        if program.kind in ("model", "modelfile") or (flags.alone and not flags.flags_take_model):
            _load(flags, program, words[size:], command, around, loaded)
            return []
        line = words[0].line or command.line
        return servers_with(flags, words[size:], around, own, program=program, line=line, remark=remark)
    if first in table.containers or first == "docker-compose":
        return _of_container(words, command, own, around, loaded)
    if first in table.shells:
        return _of_shell(words, command, own, around)
    if first in table.wrappers:
        return _of_wrapper(words, command, own, around, loaded)
    if words[0].unknown and len(words) > _FEWEST_KNOWN:
        flags_ = guessed(words[1:], around.hint, own)
        if flags_ is not None:
            named = words[0].source.strip('"') or words[0].text
            return servers_with(flags_, words[1:], around, own, line=words[0].line, remark=f"engine: image {named}")
    return []


def _of_shell(words: Sequence[Word], command: Command, own: dict[str, Any], around: Around) -> list[Server]:
    """``bash -c "..."``: the script in it, with the words behind it as its arguments."""
    for place, word in enumerate(words[1:], start=1):
        if not word.text.startswith("-"):
            return []
        if not word.text.startswith("--") and "c" in word.text and place + 1 < len(words):
            script = place + 2 if words[place + 1].text == "--" and place + 2 < len(words) else place + 1
            return _of_text(words[script], command, own, around, arguments=words[script + 2 :])
    return []


def _of_text(word: Word, command: Command, own: dict[str, Any], around: Around, arguments: Sequence[Word] = ()) -> list[Server]:
    """The servers of a script in a word."""
    text = word.raw or word.text
    # What the container leaves open is closed by what the user says, and not by a file of variables.
    closing = {name: value for name, value in (around.outer or {}).items() if not isinstance(value, EnvText)}
    variables, taken = known_of({**closing, **around.variables, **command.variables, **own})
    origin = word.spot.inside(text) if word.line else Origin.on_line(command.line)
    more: dict[str, Any] = {"files": around.files, "taken": taken, "outer": around.outer}
    script = read_script(text, variables, arguments, origin=origin, depth=around.depth + 1, **more)
    inner = replace(around, depth=around.depth + 1, variables={**around.variables, **own})
    return servers_of_script(script, inner)


def _of_wrapper(words: Sequence[Word], command: Command, own: dict[str, Any], around: Around, loaded: _Loaded) -> list[Server]:
    """A command behind another program and its options."""
    table = launch_words()
    option = table.processes.get(base_name(words[0].text))
    count = next((word.text for name, word in pairwise(words) if name.text == option), "")
    if count.isascii() and count.isdecimal() and 0 < int(count) < 10**6:
        around = replace(around, settings={"gpus_per_replica": int(count), **around.settings})
    for place in range(1, min(len(words), 64)):
        word = words[place]
        match = re.match(r"([A-Za-z_]\w*)=(.*)", word.text, re.DOTALL)
        if match is not None and not word.text.startswith("-"):
            own[match[1]] = match[2] if word.known else replace(word, text=match[2])
            continue
        text = base_name(word.text)
        if word.text.startswith("-"):
            continue
        if any(sign in word.text for sign in " \n") and word.quoted:
            servers = _of_text(word, command, own, around)
            if servers:
                return servers
            continue
        rest = words[place:]
        if program_at(rest) is not None or text in table.starters:
            return _of_words(rest, command, own, around, loaded)
    return []


def _of_container(words: Sequence[Word], command: Command, own: dict[str, Any], around: Around, loaded: _Loaded) -> list[Server]:
    """``docker run [options] IMAGE [arguments]``, and ``docker exec``."""
    table = launch_words()
    place = next((at for at, word in enumerate(words) if word.text in ("run", "create", "exec")), None)
    if place is None or place > 6:
        return []
    composed = any("compose" in word.text for word in words[:place])
    executes = words[place].text == "exec" or composed
    variables: dict[str, Any] = {}
    mounts: dict[str, str] = {}
    entry: Word | None = None
    devices: Word | None = None
    at = place + 1
    while at < len(words) and words[at].text.startswith("-") and words[at].text != "--":
        word = words[at]
        option, equals, given = word.text.partition("=")
        at += 1
        if equals:
            value = replace(word, text=given)
        elif option in table.container_switches or at >= len(words):
            continue
        else:
            value = words[at]
            at += 1
        if option in ("-e", "--env"):
            name, sign, text = value.text.partition("=")
            if sign:
                variables[name] = text if value.known else replace(value, text=text)
        elif option in ("-v", "--volume"):
            source, _, target = value.text.partition(":")
            mounts[target.partition(":")[0]] = source
        elif option == "--mount":
            parts = dict(each.partition("=")[::2] for each in value.text.split(","))
            mounts[parts.get("target", parts.get("dst", parts.get("destination", "")))] = parts.get(
                "source", parts.get("src", "")
            )
        elif option == "--gpus":
            devices = replace(value, source=word.text if equals else f"{word.text} {value.text}")
        elif option == "--entrypoint":
            entry = value
    if at >= len(words):
        return []
    image, rest = words[at], tuple(words[at + 1 :])
    if entry is not None and entry.text:
        rest = (entry, *rest)
    inside = around if executes else _in_container(around, image, devices, variables, mounts)
    return container_servers(
        inside, rest, {**own, **variables} if executes else {**variables}, command, image_word=image, loaded=loaded
    )


def _in_container(
    around: Around, image: Word, devices: Word | None, variables: Mapping[str, Any], mounts: Mapping[str, str]
) -> Around:
    """The surroundings of a command in a container that ``docker run`` starts."""
    remarks: list[str] = [*around.unresolved]
    settings = dict(around.settings)
    name: str | None = image.text
    if image.unknown and not re.search(r"[\w.-]+/[\w./-]+:", image.text):
        remarks.append(f"image={image.raw}")
        name = None
    if devices is not None:
        count = gpu_count(devices.text)
        if count is not None:
            settings["gpus_per_replica"] = count
        else:
            remarks.append(f"gpus_per_replica: {devices.source}")
    return replace(
        around,
        image=name,
        variables={**around.variables, **variables},
        settings=settings,
        unresolved=tuple(remarks),
        mounts={**around.mounts, **mounts},
        tells=True,
    )


def gpu_count(text: str) -> int | None:
    """The number of GPUs that ``--gpus`` names; ``None`` for all of them.

    >>> gpu_count("2"), gpu_count('"device=0,1"'), gpu_count("all")
    (2, 2, None)
    """
    plain = text.strip("\"' ")
    if plain.isdigit() and len(plain) < 6:
        return int(plain)
    match = re.search(r"device=([\w,:-]+)", plain)
    if match is not None:
        return len([each for each in match[1].split(",") if each])
    match = re.search(r"count=(\d{1,5})", plain)
    return int(match[1]) if match else None


def container_servers(
    around: Around,
    words: Sequence[Word],
    own: dict[str, Any],
    command: Command | None = None,
    *,
    image_word: Word | None = None,
    loaded: _Loaded | None = None,
) -> list[Server]:
    """The servers of a container: of its command, else of its image with the words as arguments."""
    command = command or Command(words=tuple(words), variables={}, own=own, line=around.line)
    waiting = loaded or _Loaded()
    table = launch_words()
    known = image_of(around.image) if around.image else None
    if words:
        if program_at(words) is not None or base_name(words[0].text) in table.starters:
            servers = _of_words(words, command, own, around, waiting)
            return servers if loaded is not None else [*servers, *waiting.servers(around)]
        if words[0].quoted and any(sign in words[0].text for sign in " \n") and len(words) == 1:
            return _of_text(words[0], command, own, around)
    if known is not None and starts_server(around.image or "", known[1]):
        flags = known[0]
        if words and words[0].text == "serve":
            words = words[1:]
        if flags.alone and not flags.flags_take_model:
            alone = _Loaded()
            alone.serves = (flags, replace(command, own={**own}))
            return [_unpulled(server) for server in alone.servers(around)]
        return servers_with(flags, words, around, own, line=command.line)
    if (words and words[0].text.startswith("-")) or (image_word is not None and image_word.unknown and words) or around.hint:
        variables = {**around.variables, **own}
        flags_ = guessed(words, f"{around.hint} {around.image or ''}", variables) or (known[0] if known and words else None)
        if flags_ is not None and any(word.text.startswith("-") for word in words):
            remark = "" if known else _image_remark(around, image_word)
            return servers_with(flags_, words, around, own, line=command.line, remark=remark)
    return []


def _unpulled(server: Server) -> Server:
    return replace(server, unresolved=tuple("model" if each == "model: pulled later" else each for each in server.unresolved))


def _image_remark(around: Around, image: Word | None) -> str:
    if image is not None and image.unknown:
        return f"engine: image {image.raw}"
    return f"engine: the image {around.image} does not say it" if around.image else ""


def _load(flags: EngineFlags, program: Program, words: Sequence[Word], command: Command, around: Around, loaded: _Loaded) -> None:
    """Note a server that loads models while it runs, or a model that it is told."""
    if any(word.text in flags.excluded for word in words):
        return
    free = [word.text for word in words if not word.text.startswith("-")]
    if program.kind is None:
        loaded.serves = (flags, command)
    elif program.kind == "modelfile":
        texts = [word.text for word in words]
        named = next((texts[at + 1] for at, text in enumerate(texts[:-1]) if text in ("-f", "--file")), "Modelfile")
        content = around.files.get(named)
        loaded.made |= set(free[:1])
        if content is not None:
            model, settings, extra, _ = modelfile(content, flags)
            loaded.models.append((flags, model, settings, extra, command.line))
    elif free and free[0] not in loaded.made:
        loaded.models.append((flags, free[0], {}, {}, command.line))


def modelfile(text: str, flags: EngineFlags) -> tuple[str, dict[str, Any], dict[str, Any], dict[str, Word]]:
    """The model of a Modelfile, its settings, its other parameters, and the words that say them."""
    model, settings, extra, places = "", {}, {}, {}
    rows = {row.name: row for row in flags.parameters}
    quote = ""
    for number, line in enumerate(text.split("\n")[:20_000], start=1):
        if quote:
            quote = "" if line.rstrip().endswith(quote) else quote
            continue
        words = line.split("#")[0].split() if "#" in line else line.split()
        if len(words) < 2:
            continue
        instruction = words[0].upper()
        quote = _quote_left_open(line, instruction)
        last = words[1] if instruction == "FROM" or len(words) == 2 else words[2]
        spot = Spot(written=last, origin=Origin(at=((number, line.find(last, line.find(words[1])) + 1),)))
        if instruction == "FROM":
            model = words[1]
            places["model"] = Word(text=last, spot=spot)
        elif instruction == "ADAPTER":
            settings["lora"] = {"modules": [words[1]]}
        elif instruction == "PARAMETER" and len(words) > 2 and words[1].lower() in rows:
            row = rows[words[1].lower()]
            places[row.key or row.name] = Word(text=last, spot=spot)
            if row.key is not None:
                settings[row.key] = scalar(words[2])
            elif not row.without_effect:
                extra[row.name] = scalar(words[2])
    return model, settings, extra, places


def _quote_left_open(line: str, instruction: str) -> str:
    """The quotes of a Modelfile's value that goes on over the next lines; empty where the line closes them, or has none."""
    value = line.split(None, 2 if instruction in ("MESSAGE", "PARAMETER") else 1)[-1].strip()
    quote = next((each for each in ('"""', '"') if value.startswith(each)), "")
    return "" if value.endswith(quote) and len(value) >= 2 * len(quote) else quote
