"""Files of other forms than YAML: units of systemd, Dockerfiles, Modelfiles, the presets of llama-server, and jobs of Slurm."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from hwcalc.launch.arguments import Reading, parse_json
from hwcalc.launch.around import Around, all_flags, finished
from hwcalc.launch.commands import container_servers, modelfile, servers_of_script
from hwcalc.launch.server import Server
from hwcalc.launch.shell import read_script
from hwcalc.launch.words import NOWHERE, Origin, SaidText, Spot, Word, words_of
from hwcalc.profiles.engine_flags import Flag

_INSTRUCTION: Final = re.compile(
    r"(?m)^[ \t]*(FROM|ENV|ENTRYPOINT|CMD|RUN|ARG|EXPOSE|WORKDIR|COPY|PARAMETER|TEMPLATE|SYSTEM|ADAPTER|MESSAGE|LICENSE)[ \t]+\S"
)
_OF_MODELFILE: Final = frozenset({"PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "MESSAGE", "LICENSE"})
_OF_DOCKERFILE: Final = frozenset({"ENV", "ENTRYPOINT", "CMD", "RUN", "EXPOSE", "WORKDIR", "COPY", "ARG"})
_FIRST: Final = frozenset({"FROM", "ARG", "ENV", "ENTRYPOINT", "CMD", "PARAMETER", "ADAPTER"})
"""The instructions that a file may begin with."""
_MOST_SECTIONS: Final = 500
_INSTANCE: Final = re.compile(r"(?<!%)%[iI](?![A-Za-z])")
"""systemd's specifiers for the instance of a template: what stands behind ``@`` in the unit's name."""


def servers_of_file(text: str, variables: Mapping[str, str], name: str) -> list[Server] | None:
    """The servers of a file that its form tells; ``None`` for a text of another form."""
    head = text[:200_000]
    if re.search(r"(?m)^[ \t]*\[Service\][ \t]*$", head) or _first_line(head).startswith(("Environment=", "EnvironmentFile=")):
        return of_unit(text, variables)
    found = [match[1] for match in _INSTRUCTION.finditer(head)]
    if _first_line(head).partition(" ")[0] in _FIRST and found:
        if _OF_MODELFILE & set(found) or (found == ["FROM"] and name.lower().startswith("modelfile")):
            return of_modelfile(text)
        if _OF_DOCKERFILE & set(found):
            return of_dockerfile(text, variables)
    if re.search(r"(?m)^[ \t]*\[[^\]\n]+\][ \t]*$", head) and re.search(
        r"(?m)^[ \t]*(?:model|hf-repo|hf|m|LLAMA_ARG_\w+)[ \t]*=", head
    ):
        return of_presets(text)
    if re.search(r"(?m)^#SBATCH\s", head):
        return of_job(text, variables)
    return None


def servers_of_settings(text: str, variables: Mapping[str, str]) -> list[Server]:
    """The server of a file of settings whose first line is a comment with the command that reads it; empty for other texts.

    Such a comment is ``# trtllm-serve MODEL --config settings.yaml``.
    """
    first, _, settings = text.lstrip().partition("\n")
    name = first.rpartition(" ")[2]
    if not first.startswith("# ") or not any(f" {flag} {name}" in first for flags in all_flags() for flag in flags.config):
        return []
    script = read_script(first.removeprefix("# "), variables)
    return servers_of_script(script, Around(files={name: settings}, tells=False))


def _first_line(text: str) -> str:
    """The first line that is no comment."""
    return next((line.strip() for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")), "")


# --- systemd --------------------------------------------------------------------------------------------------------


def of_unit(text: str, variables: Mapping[str, str]) -> list[Server]:
    """The servers of a unit: ``ExecStart=`` with ``Environment=``. A script that it runs is not known; its variables may say what it is told.

    The instance of a template, ``%i``, is the variable ``i``, which the unit leaves open.
    """
    joined = re.sub(r"\\[ \t]*\n", lambda _: "\\\n", text)
    own: dict[str, str] = {}
    instance = variables.get("i")
    starts: list[tuple[str, int]] = []
    spots: list[Spot] = []
    lines, whole = joined.split("\n"), Origin.whole(text)
    at = 0
    while at < len(lines):
        line, first = lines[at].strip(), at + 1
        while line.endswith("\\") and at + 1 < len(lines):
            at += 1
            following = lines[at].strip()
            # Comments between continued lines are no part of them.
            line = line if following.startswith(("#", ";")) else f"{line[:-1]} {following}"
        at += 1
        key, equals, value = line.partition("=")
        if not equals or line.startswith(("#", ";")):
            continue
        if key.strip() == "Environment":
            own |= {
                name: _INSTANCE.sub(lambda _: instance or "", said) if _INSTANCE.search(said) else said
                for name, said in _assignments(value, _lines(text, whole, first, at)).items()
                if instance is not None or not _INSTANCE.search(said)
            }
        elif key.strip() == "ExecStart" and value.strip():
            starts.append((_INSTANCE.sub("${i}", value.strip().lstrip("-@:+!")), first))
            spots.append(_lines(text, whole, first, at))
    own |= variables
    out: list[Server] = []
    for (command, line_number), spot in zip(starts, spots, strict=True):
        script = read_script(command, own, origin=spot.inside(command))
        out += servers_of_script(script, Around(variables=own, line=line_number))
    if out:
        return out
    around = Around(variables=own, line=starts[0][1] if starts else 1)
    return _of_hidden(text, own, starts, around)


def _lines(text: str, whole: Origin, first: int, last: int) -> Spot:
    """The lines from the first to the last of a file."""
    begin, end = whole.starts[first - 1], whole.starts[last] if last < len(whole.starts) else len(text)
    return Spot(written=text[begin:end], origin=whole.cut(begin, end))


def _assignments(text: str, spot: Spot = NOWHERE) -> dict[str, str]:
    """The variables of ``Environment="A=1" B=2``, which stands in a piece of the file."""
    out: dict[str, str] = {}
    origin = spot.inside(text)
    for match in re.finditer(
        r"\"([A-Za-z_]\w*)=((?:[^\"\\]|\\.)*)\"|'([A-Za-z_]\w*)=([^']*)'|([A-Za-z_]\w*)=(\S*)", text[:10_000]
    ):
        at = next(group for group in (1, 3, 5) if match[group])
        value = Spot(written=match[at + 1], origin=origin.cut(*match.span(at + 1)))
        out[match[at]] = SaidText.of(match[at], Word(text=match[at + 1], spot=value))
    return out


def _of_hidden(text: str, own: dict[str, str], starts: list[tuple[str, int]], around: Around) -> list[Server]:
    """The server of a unit that runs a script: the engine that the text speaks of, and the variables that are named like its flags."""
    for flags in all_flags():
        if flags.alone and any(name.startswith(flags.alone) for name in own):
            reading = Reading(flags)
            reading.environment(own)
            reading.say("model")
            return [finished(reading, around)]
    if not starts:
        return []
    said = " ".join(command for command, _ in starts).lower()
    for spoken in (said, text.lower()):
        for flags in all_flags():
            names = {flags.engine, flags.name, *(program.words[0] for program in flags.programs if len(program.words[0]) > 6)}
            if not any(re.search(rf"(?<![a-z]){re.escape(each)}", spoken) for each in names):
                continue
            reading = Reading(flags)
            reading.say(f"everything: ExecStart runs {starts[0][0].split()[0]}")
            for name, value in own.items():
                flag = _flag_named(reading, name)
                if flag is None or flag.key is None or flag.key == "model" or "." in flag.key:
                    continue
                reading.value(flag, Word(text=value, raw=value), name)
            return [finished(reading, around)]
    return []


def _flag_named(reading: Reading, variable: str) -> Flag | None:
    """The flag that a variable of a script is named after: ``GPU_MEM_UTIL`` has the beginnings of its words."""
    flag, negated = reading.flags.find(f"--{variable.lower().replace('_', '-')}")
    if flag is not None:
        return None if negated else flag
    words = variable.lower().split("_")
    near = []
    for each in reading.flags.flags:
        parts = each.name.split("_")
        if (
            each.key
            and len(parts) == len(words) > 1
            and all(part.startswith(word) for part, word in zip(parts, words, strict=True))
        ):
            near.append(each)
    return near[0] if len(near) == 1 else None


# --- Docker ---------------------------------------------------------------------------------------------------------


def of_dockerfile(text: str, variables: Mapping[str, str]) -> list[Server]:
    """The server of the last stage of a Dockerfile."""
    image: str | None = None
    own: dict[str, Any] = {}
    known: dict[str, str] = dict(variables)
    entry: list[Word] | None = None
    command: list[Word] | None = None
    line_number, start, whole = 0, 1, Origin.whole(text)
    installed: list[str] = []
    pending = ""
    for raw in text.split("\n"):
        line_number += 1
        line = raw.strip()
        if not pending:
            start = line_number
        if line.startswith("#"):
            continue
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        line, pending = pending + line, ""
        instruction, _, rest = line.partition(" ")
        rest = rest.strip()
        kind = instruction.upper()
        if kind == "FROM":
            image, own, entry, command = _one(rest.split(" ")[0], known).text, {}, None, None
        elif kind == "ARG":
            name, equals, value = rest.partition("=")
            if equals and name not in known:
                known[name.strip()] = value.strip().strip("\"'")
        elif kind == "ENV":
            for name, value in (
                _assignments(rest, _lines(text, whole, start, line_number))
                if "=" in rest.split(" ")[0]
                else {rest.partition(" ")[0]: rest.partition(" ")[2]}
            ).items():
                word = _one(value, known)
                own[name] = word if not word.known else value if word.text == value else word.text
                if word.known:
                    known[name] = own[name]
        elif kind in ("ENTRYPOINT", "CMD"):
            document, spot = parse_json(rest) if rest.startswith("[") else None, _lines(text, whole, start, line_number)
            words = (
                words_of(map(str, document), _quoted(rest, spot))
                if isinstance(document, list)
                else [Word(text="sh"), Word(text="-c"), Word(text=rest, raw=rest, quoted=True, spot=spot)]
            )
            entry, command = (words, None) if kind == "ENTRYPOINT" else (entry, words)
        elif kind == "RUN":
            installed.append(rest[:2000])
    words = [*(entry or []), *(command or [])]
    around = Around(image=image, variables={**own, **variables}, hint=" ".join(installed)[:8000], line=start)
    return container_servers(around, words, {})


def _quoted(text: str, spot: Spot) -> Iterator[Spot]:
    """The places of the quoted texts of a list."""
    origin = spot.inside(text)
    for match in re.finditer(r"\"(?:[^\"\\]|\\.)*\"", text):
        yield Spot(written=match[0], origin=origin.cut(match.start(), match.end()))


def _one(text: str, known: Mapping[str, str]) -> Word:
    script = read_script(f'x "{text}"', known) if '"' not in text else read_script(f"x {text}", known)
    words = script.commands[0].words[1:] if script.commands else ()
    return words[0] if words else Word(text=text, raw=text)


# --- Ollama and llama.cpp -------------------------------------------------------------------------------------------


def of_modelfile(text: str) -> list[Server]:
    """The server that runs a Modelfile."""
    flags = next(each for each in all_flags() if each.parameters)
    model, settings, extra, places = modelfile(text, flags)
    reading = Reading(flags)
    known = {row.name for row in flags.environment}
    for line in re.findall(r"(?m)^#(.*)$", text[:200_000]):
        # What a comment says that the server is started with, such as `# For the server: OLLAMA_NUM_PARALLEL=4`.
        reading.environment({name: value for name, value in _assignments(line).items() if name in known})
    if model:
        reading.settings["model"] = model
    reading.settings |= settings
    reading.extra |= extra
    reading.places |= places
    return [finished(reading, Around())]


def of_presets(text: str) -> list[Server]:
    """The servers of a file of presets, one for each section; ``[*]`` is for all of them."""
    flags = next(each for each in all_flags() if each.variables)
    common: dict[str, Word] = {}
    sections: list[tuple[str, dict[str, Word], int]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        plain = line.strip()
        if not plain or plain.startswith(("#", ";")):
            continue
        if plain.startswith("[") and plain.endswith("]") and len(sections) < _MOST_SECTIONS:
            sections.append((plain[1:-1].strip(), {}, number))
            continue
        name, equals, value = plain.partition("=")
        if equals:
            value = value.strip()
            spot = Spot(written=value, origin=Origin(at=((number, line.rindex(value) + 1),)))
            (sections[-1][1] if sections else common)[name.strip()] = Word(text=value, raw=value, spot=spot)
    shared = [held for name, held, _ in sections if name == "*"]
    for held in shared:
        common |= held
    out: list[Server] = []
    for name, held, line_number in sections:
        if name == "*":
            continue
        words: list[Word] = []
        variables: dict[str, str] = {}
        for key, said in {**common, **held}.items():
            if key.isupper():
                variables[key] = said.text
                continue
            spelled = f"-{key}" if f"-{key}" in flags.spelled else f"--{key}"
            flag, named = flags.spelled.get(spelled), Word(text=spelled, spot=Spot(origin=Origin.on_line(said.line)))
            if flag is not None and flag.takes == "switch":
                words += [named] if said.text.lower() not in ("false", "0", "off") else []
            elif flag is not None or not flags.negations.get(spelled):
                words += [named, said]
            else:
                words.append(named)
        reading = Reading(flags)
        reading.flag_variables(variables)
        reading.read(words)
        if not {"model", "repository", "url"} & reading.settings.keys():
            if not name.count("/"):
                continue
            reading.settings["repository"] = name
        out.append(finished(reading, Around(name=name, line=line_number)))
    return out


# --- Slurm ----------------------------------------------------------------------------------------------------------


def of_job(text: str, variables: Mapping[str, str]) -> list[Server]:
    """The servers of a job of Slurm, whose head says how many nodes and GPUs there are."""
    head: dict[str, str] = dict(re.findall(r"(?m)^#SBATCH\s+(--?[\w-]+)[=\s]+([^\s#]+)", text[:200_000]))
    nodes = _count(head.get("--nodes", head.get("-N", "1")))
    per_node: int | None = None
    gpu: str | None = None
    for option in ("--gres", "--gpus-per-node", "--gpus", "-G", "--gpus-per-task"):
        match = re.fullmatch(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?(\d{1,4})(?:\(.*\))?", head.get(option, ""))
        if match is not None:
            gpu = gpu or (match[1] if match[1] != "gpu" else None)
            count = int(match[2])
            per_node = count // nodes if option in ("--gpus", "-G") and nodes > 1 and count % nodes == 0 else count
            break
    settings: dict[str, Any] = {} if per_node is None else {"gpus_per_replica": per_node * nodes}
    extra = {"nodes": nodes, "gpus_per_node": per_node} if nodes > 1 and per_node is not None else {}
    settings["gpu"] = gpu
    known = {"SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes)}
    known |= {} if per_node is None else {"SLURM_GPUS_ON_NODE": str(per_node), "SLURM_GPUS_PER_NODE": str(per_node)}
    script = read_script(text, {**known, **variables})
    return servers_of_script(script, Around(settings=settings, extra=extra))


def _count(text: str) -> int:
    match = re.match(r"\d{1,4}", text)
    return max(1, int(match[0])) if match else 1
