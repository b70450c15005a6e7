"""Manifests: which kind a document is, and where Compose, SkyPilot, llama-swap, workflows and blueprints keep their servers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.errors import UsageError
from hwcalc.launch.around import Around
from hwcalc.launch.charts import CHARTS
from hwcalc.launch.commands import container_servers, servers_of_script
from hwcalc.launch.documents import Places, read_documents
from hwcalc.launch.env_file import ALLOWS, MISSING, TOO_MANY, EnvFile, Named
from hwcalc.launch.kubernetes import Cluster, Place, is_object, pod_specs, servers_of_object, servers_of_pod
from hwcalc.launch.server import Server
from hwcalc.launch.shell import read_script
from hwcalc.launch.values import at, container_words, filled, mapping, mappings, number, rows, settings_in, text, texts, walk
from hwcalc.launch.words import Origin, SaidText, Spot, Word, filled_word, known_of
from hwcalc.profiles.launch import launch_words
from hwcalc.text import brief, printable, shown
from hwcalc.yaml_tree import TreeError

_MOST_SERVERS: Final = 500
_MOST_REPEATED: Final = 10
"""Keys that stand twice of which a text is told."""
_OF_SERVICE: Final = frozenset({"image", "command", "entrypoint", "build"})
_REPLACED: Final = frozenset({"command", "entrypoint", "devices", "gpus"})
"""Keys of a service whose value replaces that of the service that it extends."""
_ALONE: Final = "a text without a path has no folder"
"""Why no file beside a text is read that has no path."""
_LONGEST_NAME: Final = 80
_MOST_EXTENDED: Final = 20
"""Services that extend each other in a row."""
_MOST_INHERITED: Final = 100_000
"""Values that the services of a file inherit, all together, and variables that they have of files."""


def servers_of_manifest(
    given: str,
    variables: Mapping[str, str],
    origin: Origin | None = None,
    env_files: Mapping[Named, EnvFile] = MappingProxyType({}),
) -> list[Server] | None:
    """The servers of a manifest; ``None`` for a text that is none. Raises :class:`~hwcalc.errors.UsageError` for one that is too deep or large.

    ``origin`` is where it stands in its file, by default it is the file. ``env_files`` are files beside it that its services name.
    """
    places = Places()
    try:
        documents = [each for each in read_documents(given, places, origin) if each is not None]
    except TreeError as error:
        if "nested" in error.problem or "more than" in error.problem or "larger" in error.problem:
            verb = "is nested more" if "nested" in error.problem else "has more" if "more than" in error.problem else "is larger"
            message = f"the manifest {verb} than {error.problem.partition('than ')[2]}."
            raise UsageError(message, hint="Give the part that starts the servers.") from error
        return None
    documents = [
        each for document in documents for each in (rows(at(document, "items")) if at(document, "kind") == "List" else [document])
    ]
    if not any(isinstance(each, (Mapping, list)) for each in documents) or all(_is_command(each) for each in documents):
        return None
    cluster = Cluster.of(documents, variables, places, env_files)
    servers = [*islice((server for document in documents for server in _of_document(document, cluster)), _MOST_SERVERS)]
    for line, key, lines in places.repeated[:_MOST_REPEATED] if servers else ():
        said = f"line {line}: the key {shown(key, 40)} stands twice, first in line {line - lines}: this one is read, and docker compose and kubectl refuse both."
        near = max(
            (place for place, each in enumerate(servers) if each.line <= line), key=lambda place: servers[place].line, default=0
        )
        servers[near] = replace(servers[near], repeated=(*servers[near].repeated, said))
    return servers


def _is_command(document: Any) -> bool:
    """True if a document is a list of texts, or no container at all: a command that looks like one."""
    if isinstance(document, list):
        return all(isinstance(each, str) for each in document)
    return not isinstance(document, Mapping)


def _of_document(document: Any, cluster: Cluster) -> list[Server]:
    if is_object(document):
        return servers_of_object(document, cluster)
    if isinstance(document, Mapping):
        for holds, read in _KINDS:
            if holds(document):
                return read(document, cluster)
        for chart in CHARTS:
            if chart.holds(document):
                return chart.read(document, cluster)
    pods = (each for spec in pod_specs(document) for each in servers_of_pod(spec, cluster, Place()))
    return of_steps(document, cluster) or [*pods]


# --- Compose --------------------------------------------------------------------------------------------------------


def _is_compose(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("services"), Mapping) or (
        bool(document) and all(isinstance(each, Mapping) and _OF_SERVICE & each.keys() for each in document.values())
    )


def is_compose(given: str) -> bool:
    """True if a text is a file of Compose with services."""
    with suppress(TreeError):
        return any(isinstance(at(each, "services"), Mapping) for each in read_documents(given, Places()))
    return False


def env_files_in(given: str, variables: Mapping[str, str]) -> list[Named]:
    """The files of variables that the services of a text name, each once."""
    found: dict[Named, None] = {}
    if "env_file" in given:
        with suppress(TreeError):
            places = Places()
            documents = [each for each in read_documents(given, places) if isinstance(each, Mapping) and _is_compose(each)]
            cluster = Cluster.of(documents, variables, places)
            services = (service for each in documents for service in _extended(_services(each), cluster)[0].values())
            found |= {named: None for service in services for named, _ in _named_files(service, cluster)}
    return [*found]


def _services(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(document.get("services")) or document


def _named_files(service: Any, cluster: Cluster) -> list[tuple[Named, Spot]]:
    """The files of variables that a service names, in their order, and where it does."""
    given = at(service, "env_file")
    out: list[tuple[Named, Spot]] = []
    for place, each in enumerate([given] if isinstance(given, str) else rows(given)):
        path = text(at(each, "path") if isinstance(each, Mapping) else each)
        if path:
            raw = text(at(each, "format")) == "raw"
            named = Named(path=filled_word(path, cluster.variables).text, required=at(each, "required") is not False, raw=raw)
            out.append((named, cluster.places.item(service, "env_file") if given is each else cluster.places.item(given, place)))
    return out


def _of_files(service: Mapping[str, Any], cluster: Cluster, room: int) -> tuple[dict[str, Word], dict[str, str]]:
    """The variables that a service has of files, as far as there is room, of which later ones count more; and the files that are not read, with the
    reason.
    """
    variables: dict[str, Word] = {}
    unread: dict[str, str] = {}
    for named, spot in _named_files(service, cluster):
        found = cluster.env_files.get(named)
        fault = _ALONE if found is None else found.fault
        if found is not None and len(found.variables) > room:
            found, fault = None, TOO_MANY
        if fault and (named.required or fault != MISSING):
            unread[f"the env_file {brief(printable(named.name), _LONGEST_NAME)}"] = fault
        for name, value in {} if found is None else found.variables.items():
            room -= 1
            said = SaidText.of_file(value, name, printable(named.name), spot)
            variables[name] = Word(text=value, raw=value, source=value, quoted=True, spot=said.spot, said=said)
    return variables, unread


def _taken_of(files: Mapping[str, Word], words: Sequence[Word], server: Server) -> dict[str, str]:
    """The variables of files that bear on the plan of a server, with their files."""
    placed = {word.said.name for word in server.places.values() if word.said is not None and word.said.file}
    scripts = " ".join(word.raw for word in words)
    return {
        name: word.said.file
        for name, word in files.items()
        if word.said is not None
        and (
            name in placed
            or ALLOWS in name
            or (name in launch_words().visible_devices and "gpus_per_replica" in server.settings)
            or re.search(rf"\$\$\{{?{re.escape(name)}\b", scripts)
        )
    }


def of_compose(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of the services of a Compose file."""
    services, remarks = _extended(_services(document), cluster)
    contents = {name: text(at(each, "content")) for name, each in mapping(document.get("configs")).items()}
    out: list[Server] = []
    room = _MOST_INHERITED
    for name, service in services.items():
        if isinstance(service, Mapping):
            of_files = _of_files(service, cluster, room)
            room -= len(of_files[0])
            named = (
                (text(at(each, "target")), contents.get(text(at(each, "source")) or "")) for each in rows(service.get("configs"))
            )
            files = {target: content for target, content in named if target is not None and content is not None}
            left = remarks.get(name, "")
            read = _of_service(str(name), service, cluster, files, of_files)
            if left:
                without = {
                    f"the extended service {left.removeprefix('extends: ')}": "the text lacks it, docker compose config has it"
                }
                read = [
                    replace(each, unresolved=(*each.unresolved, left), unplanned={**each.unplanned, **without}) for each in read
                ]
            out += read
    return out


def _extended(services: Mapping[str, Any], cluster: Cluster) -> tuple[dict[str, Any], dict[str, str]]:
    """The services with what they inherit by ``extends``, and what is to be said of those that extend one that the text does not have."""
    made: dict[str, Any] = {}
    remarks: dict[str, str] = {}
    sizes: dict[str, int] = {}
    total = 0

    def resolve(name: str, extending: tuple[str, ...]) -> Any:
        nonlocal total
        if name in made:
            return made[name]
        service = services[name]
        given = mapping(service).get("extends")
        if given is not None:
            base = text(at(given, "service") if isinstance(given, Mapping) else given) or ""
            file = text(at(given, "file"))
            if file is not None or base not in services or base in (name, *extending) or len(extending) >= _MOST_EXTENDED:
                remarks[name] = f"extends: {base}" + (f" of {file}" if file is not None else "")
            else:
                inherited = resolve(base, (*extending, name))
                remarks[name] = remarks.get(base, "")
                if base not in sizes:
                    sizes[base] = cluster.places.share(inherited)
                total += sizes[base]
                if isinstance(inherited, Mapping) and total <= _MOST_INHERITED:
                    service = _merged(inherited, service, cluster)
                else:
                    remarks[name] = f"extends: {base}"
        made[name] = service
        return service

    for name in services:
        resolve(name, ())
    return {name: made[name] for name in services}, remarks


def _merged(inherited: Mapping[str, Any], own: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """A mapping with what it inherits, as Compose merges: mappings by their keys, lists behind each other, a command as a whole.

    Of several requests for GPUs the last one counts: the variable of visible devices is set by each.
    """
    out = {**inherited, **own}
    for key, given in own.items():
        before, value = inherited.get(key), given
        if key in _REPLACED or before is None:
            continue
        if key == "env_file" and value is not None:
            # A single one is a list of one.
            before, value = (each if isinstance(each, list) else [each] for each in (before, value))
        if value is None:
            out[key] = before
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            out[key] = _merged(before, value, cluster)
        elif isinstance(before, (Mapping, list)) and isinstance(value, (Mapping, list)):
            out[key] = [*_listed(before), *_listed(value)]
            cluster.places.joined(out[key], before, value)
    cluster.places.joined(out, inherited, own)
    return out


def _listed(value: Mapping[str, Any] | list[Any]) -> list[Any]:
    """A list, or a mapping as the list that says the same: ``A=1``."""
    return value if isinstance(value, list) else [f"{key}={text(each)}" for key, each in value.items() if text(each) is not None]


def _of_service(
    name: str,
    service: Mapping[str, Any],
    cluster: Cluster,
    files: Mapping[str, str],
    outside: tuple[dict[str, Word], dict[str, str]],
) -> list[Server]:
    """The servers of a service, with the variables that it has of files, and those files that are not read."""
    line = cluster.places.line(service)
    remarks: list[str] = []
    own: dict[str, Any] = {}
    of_files, unread = outside
    given = service.get("environment")
    listed = ((place, *each.partition("=")) for place, each in enumerate(texts(given)))
    pairs = ((place, key, value if equals else None) for place, key, equals, value in listed)
    for place, key, value in ((key, str(key), value) for key, value in given.items()) if isinstance(given, Mapping) else pairs:
        spot = cluster.places.item(given, place)
        if value is None and key in cluster.variables:
            # A name alone has the value that would fill it in.
            own[key] = filled_word(f"${{{key}}}", cluster.variables, spot)
        elif value is not None or isinstance(given, Mapping):
            word = filled_word(text(value) or "", cluster.variables, spot)
            own[key] = "" if word.remark else word
        else:
            # A name that nobody gives a value is not set, by a file either.
            of_files.pop(key, None)
    image = text(service.get("image"))
    if image is not None and "$" in image:
        word = filled_word(image, cluster.variables)
        if word.known and (re.fullmatch(r"\$\{[^}]*\}", image) or not word.taken):
            remarks += [f"image={image} (default taken)"] if word.taken else []
            image = word.text
        elif re.fullmatch(r"\$\{?\w+\}?", image):
            remarks.append(f"image={image}")
            image = None
    replicas = number(at(service, "deploy", "replicas"))
    settings = {"replicas": number(service.get("scale")) if replicas is None else replicas}
    count, remark = _reserved(service, cluster.variables)
    if count is not None:
        settings["gpus_per_replica"] = count
    remarks += [remark] if remark else []
    mounts = dict(_mounts(service.get("volumes")))
    words = container_words(service, cluster.variables, cluster.places, ("entrypoint", "command"))
    around = Around(
        image=image,
        variables={**of_files, **own},
        outer=cluster.variables,
        settings=settings,
        unresolved=tuple(remarks),
        mounts=mounts,
        files=files,
        hint=name,
        name=name,
        line=line,
    )
    of_files = {key: word for key, word in of_files.items() if key not in own}
    return [
        replace(each, unplanned={**each.unplanned, **unread}, env_files=_taken_of(of_files, words, each))
        for each in container_servers(replace(around, hint=""), words, {}) or _hinted(around, words)
    ]


def _hinted(around: Around, words: list[Word]) -> list[Server]:
    """A service whose image says nothing, told by its name and its flags."""
    return container_servers(around, words, {}) if words and any(word.text.startswith("-") for word in words) else []


def _mounts(volumes: Any) -> list[tuple[str, str]]:
    out = []
    for each in rows(volumes):
        if isinstance(each, str) and len(each) < 2000:
            plain = re.sub(r"\$\{[^}]*(?:\}[^:]*\})?\}?", lambda match: match[0].replace(":", ";"), each)
            source, _, target = plain.partition(":")
            out.append((target.partition(":")[0], source.replace(";", ":")))
        elif isinstance(each, Mapping):
            out.append((text(each.get("target")) or "", text(each.get("source")) or ""))
    return out


def _reserved(service: Mapping[str, Any], variables: Mapping[str, Any]) -> tuple[int | None, str]:
    """The number of GPUs of a service, and a remark on it."""
    devices = rows(at(service, "deploy", "resources", "reservations", "devices"))
    given = service.get("gpus")
    if given is not None:
        devices = [*devices, *(rows(given) or [{"count": given}])]
    for device in mappings(devices):
        if rows(device.get("device_ids")):
            ids = texts(device.get("device_ids"))
            words = [filled_word(each, variables) for each in ids]
            if any(not word.known for word in words):
                return None, f"gpus_per_replica: device_ids {ids}"
            remark = f"gpus_per_replica: device_ids {ids} (default taken)" if any(word.taken for word in words) else ""
            return sum(len(word.text.split(",")) for word in words), remark
        said = text(device.get("count"))
        if said is not None:
            word = filled_word(said, variables)
            count = number(word.text) if word.known else None
            if count is None:
                return None, f"gpus_per_replica: count {said}"
            return count, f"gpus_per_replica: count {said} (default taken)" if word.taken else ""
    return None, ""


# --- SkyPilot -------------------------------------------------------------------------------------------------------


def _is_sky(document: Mapping[str, Any]) -> bool:
    return "run" in document and ("resources" in document or "setup" in document or "num_nodes" in document)


def of_sky(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of a task of SkyPilot."""
    nodes = number(document.get("num_nodes")) or 1
    resources = mapping(document.get("resources"))
    choices = [resources, *map(mapping, (*rows(resources.get("any_of")), *rows(resources.get("ordered"))))]
    accelerators = next((each["accelerators"] for each in choices if each.get("accelerators") is not None), None)
    kinds, count, remarks = _accelerators(accelerators)
    settings: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    if kinds:
        settings["gpu"] = kinds[0] if len(kinds) == 1 else f"one of {', '.join(kinds)}"
        settings["gpus_per_replica"] = count * nodes
    if nodes > 1:
        extra |= {"nodes": nodes, **({"gpus_per_node": count} if kinds else {})}
    instance = next((each["instance_type"] for each in choices if isinstance(each.get("instance_type"), str)), None)
    service = document.get("service")
    replicas = number(at(service, "replicas")) if not number(service) else number(service)
    replicas = number(at(service, "replica_policy", "min_replicas")) if replicas is None else replicas
    settings |= {"instance": instance, "replicas": replicas}
    image = text(resources.get("image_id"))
    image = image.removeprefix("docker:") if image is not None and image.startswith("docker:") else None
    own = {
        str(key): word
        for part in ("envs", "secrets")
        for key, value in mapping(document.get(part)).items()
        if (word := text(value))
    }
    known: dict[str, str] = {"SKYPILOT_NUM_NODES": str(nodes)} | ({"SKYPILOT_NUM_GPUS_PER_NODE": str(count)} if kinds else {})
    taken = {name: f"${name} ({value})" for name, value in known.items()}
    setup = text(document.get("setup")) or ""
    script = read_script(
        text(document.get("run")) or "",
        {**known, **own, **cluster.variables},
        origin=cluster.places.item(document, "run").inside(text(document.get("run")) or ""),
        taken=taken,
    )
    around = Around(
        image=image,
        variables={**own, **cluster.variables},
        settings=settings,
        extra=extra,
        unresolved=tuple(remarks),
        hint=setup[:8000],
    )
    servers = servers_of_script(script, around)
    # A server that counts its nodes itself says so already.
    return [
        replace(each, extra={name: value for name, value in each.extra.items() if name != "nodes" or "nnodes" not in each.extra})
        for each in servers
    ]


def _accelerators(given: Any) -> tuple[list[str], int, list[str]]:
    """The kinds of accelerators, how many of one of them a node has, and what is left open."""
    items = list(given.items()) if isinstance(given, Mapping) else [(each, None) for each in texts(given)]
    kinds, counts = [], []
    for name, value in items:
        kind, colon, many = str(name).partition(":")
        counts.append(number(many if colon else value) or 1)
        kinds.append(kind.strip())
    return kinds, counts[0] if counts else 1, []


# --- llama-swap -----------------------------------------------------------------------------------------------------


def _is_swap(document: Mapping[str, Any]) -> bool:
    return any(isinstance(at(each, "cmd"), str) for each in mapping(document.get("models")).values())


def of_swap(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of llama-swap: a command for each model, with macros in macros."""
    shared = mapping(document.get("macros"))
    out: list[Server] = []
    for name, model in mapping(document.get("models")).items():
        command = text(at(model, "cmd"))
        if command is None:
            continue
        macros = {str(key): value for key, value in ({**shared, **mapping(at(model, "macros"))}).items()}
        macros["MODEL_ID"] = name
        own = dict(each.partition("=")[::2] for each in texts(at(model, "env")) if "=" in each)
        given = _expanded(command, macros)
        spot = cluster.places.item(model, "cmd")
        script = read_script(_uncommented(given), {**own, **cluster.variables}, origin=spot.inside(given))
        around = Around(variables={**own, **cluster.variables}, name=str(name), line=spot.line)
        out += servers_of_script(script, around)
    return out


def _uncommented(command: str) -> str:
    """A command with blanks for its lines of comments, which llama-swap leaves out of it."""
    return re.sub(r"(?:\A|\n)[ \t]*#[^\n]*", lambda match: " " * len(match[0]), command)


def _expanded(command: str, macros: Mapping[str, Any]) -> str:
    """A command with its macros put in. It is cut where macros would make it endless."""
    for _ in range(12):
        filled_ = re.sub(r"\$\{([\w.-]+)\}", lambda match: text(macros.get(match[1])) or match[0], command)
        if filled_ == command or len(filled_) > 256 * 1024:
            return filled_[: 256 * 1024]
        command = filled_
    return command


# --- workflows, blueprints, recipes ---------------------------------------------------------------------------------


def of_steps(document: Any, cluster: Cluster) -> list[Server]:
    """The servers that the ``run`` of a workflow's steps starts, or the scripts of whatever has such keys."""
    out: list[Server] = []
    for each in walk(document):
        for key in ("run", "script", "cmd", "command"):
            given = each.get(key)
            if isinstance(given, list) and key == "script":
                given = "\n".join(texts(given))
            if not isinstance(given, str):
                continue
            own = {str(name): value for name, value in mapping(each.get("env")).items() if isinstance(value, str)}
            known, taken = known_of({**own, **cluster.variables})
            script = read_script(given, known, origin=cluster.places.item(each, key).inside(given), taken=taken)
            out += servers_of_script(script, Around(variables={**own, **cluster.variables}, depth=1))
    return out


def of_blueprint(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The server of a blueprint of OCI."""
    own: dict[str, Any] = {}
    for each in rows(document.get("recipe_container_env")):
        if text(at(each, "key")) is not None:
            own[text(at(each, "key")) or ""] = text(at(each, "value")) or ""
    words = filled(document.get("recipe_container_command_args"), {**own, **cluster.variables}, cluster.places)
    nodes = number(document.get("multinode_num_nodes_to_use_from_shared_pool")) or 1
    count = number(document.get("recipe_nvidia_gpu_count")) or number(document.get("recipe_amd_gpu_count"))
    settings: dict[str, Any] = {
        "instance": text(document.get("recipe_node_shape")),
        "replicas": number(document.get("recipe_replica_count")),
    }
    extra: dict[str, Any] = {}
    if count is not None:
        settings["gpus_per_replica"] = count * nodes
    if nodes > 1:
        extra |= {"nodes": nodes} | ({} if count is None else {"gpus_per_pod": count})
    slice_ = text(document.get("mig_resource_request"))
    if slice_ is not None:
        settings["gpu"] = f"MIG {slice_}"
    around = Around(
        image=text(document.get("recipe_image_uri")),
        variables={**own, **cluster.variables},
        settings=settings,
        extra=extra,
        hint=text(document.get("recipe_image_uri")) or "",
        name=text(document.get("deployment_name")) or "",
    )
    return container_servers(around, words, {})


def of_recipe(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The server of a recipe of vLLM's: the model with its usual arguments."""
    model = mapping(document.get("model"))
    named = Word(text=text(model.get("model_id")) or "", spot=cluster.places.item(model, "model_id"))
    words = [Word(text="vllm"), Word(text="serve"), named]
    words += filled(model.get("base_args"), cluster.variables, cluster.places)
    own = settings_in(model.get("base_env"))
    return container_servers(Around(variables={**own, **cluster.variables}), words, {})


_KINDS: Final = (
    (lambda document: "recipe_id" in document and "recipe_container_command_args" in document, of_blueprint),
    (_is_sky, of_sky),
    (_is_swap, of_swap),
    (lambda document: at(document, "model", "model_id") is not None and "base_args" in mapping(document.get("model")), of_recipe),
    (_is_compose, of_compose),
)
"""Which documents are of which kind, and their readers."""
