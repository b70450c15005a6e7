"""Objects of Kubernetes: where each kind keeps its containers, their GPUs, the nodes that they run on, and how many replicas there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.launch.arguments import Reading
from hwcalc.launch.around import Around, all_flags, finished, image_of, servers_with
from hwcalc.launch.commands import container_servers, flags_called, program_at
from hwcalc.launch.documents import Places, read_documents
from hwcalc.launch.env_file import EnvFile, Named
from hwcalc.launch.server import CUT_FROM, Server
from hwcalc.launch.values import (
    at,
    container_words,
    filled,
    hub_name,
    mapping,
    mappings,
    number,
    rows,
    settings_in,
    sizes_of,
    split_text,
    text,
    texts,
    walk,
)
from hwcalc.launch.words import Origin, Spot, Word, filled_word
from hwcalc.profiles.engine_flags import engine_flags
from hwcalc.profiles.launch import launch_words

_USUAL: Final = "vllm"
"""The engine that KServe, Ray and KAITO start where the text names none."""
_PRESET: Final = "{} (preset)"


class Cluster(Record):
    """All objects of a text: the maps of settings among them, the variables that the user gives, and what files beside the text say."""

    variables: Mapping[str, str]
    maps: Mapping[str, Mapping[str, str]]
    places: Places
    env_files: Mapping[Named, EnvFile] = MappingProxyType({})

    @staticmethod
    def of(
        documents: list[Any],
        variables: Mapping[str, str],
        places: Places,
        env_files: Mapping[Named, EnvFile] = MappingProxyType({}),
    ) -> Cluster:
        """The objects of these documents."""
        maps = {}
        for each in documents:
            if at(each, "kind") in ("ConfigMap", "Secret") and isinstance(at(each, "data"), Mapping):
                name = text(at(each, "metadata", "name")) or ""
                maps[name] = {str(key): value for key, value in mapping(at(each, "data")).items() if isinstance(value, str)}
        return Cluster(variables=dict(variables), maps=maps, places=places, env_files=env_files)


class Place(Record):
    """What the objects around a pod say of it: settings, words in ``extra``, remarks, the model, how many pods one server has, and its variables."""

    settings: Mapping[str, Any] = MappingProxyType({})
    extra: Mapping[str, Any] = MappingProxyType({})
    unresolved: tuple[str, ...] = ()
    model: str | None = None
    pods: int = 1
    gpus: int | None = None
    """The GPUs of the whole server, if the object says so."""
    variables: Mapping[str, Any] = MappingProxyType({})
    name: str = ""
    role: str | None = None
    selector: Mapping[str, Any] = MappingProxyType({})
    places: Mapping[str, Word] = MappingProxyType({})
    """The words that say the settings."""
    based: bool = False
    """True if an image that is missing stands in the base of a kustomization."""


def is_object(document: Any) -> bool:
    """True if a document is an object of Kubernetes."""
    return isinstance(document, Mapping) and isinstance(document.get("kind"), str) and "apiVersion" in document


def servers_of_object(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of an object."""
    read = _READERS.get(document["kind"])
    if read is not None:
        return read(document, cluster)
    place = Place(settings=_replicas(at(document, "spec")), name=_name(document), based=True)
    return [server for spec in pod_specs(document) for server in servers_of_pod(spec, cluster, place)]


def _name(document: Mapping[str, Any]) -> str:
    return text(at(document, "metadata", "name")) or ""


def pod_specs(value: Any) -> Iterator[Mapping[str, Any]]:
    """Whatever has containers."""
    return (each for each in walk(value) if isinstance(each.get("containers"), list))


def _replicas(spec: Any) -> dict[str, Any]:
    return {"replicas": number(at(spec, "replicas"))}


# --- pods -----------------------------------------------------------------------------------------------------------


def variables_of(container: Mapping[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The variables of a container; a word where a value comes from elsewhere."""
    out: dict[str, Any] = {}
    for each in rows(container.get("envFrom")):
        out |= cluster.maps.get(text(at(each, "configMapRef", "name")) or "", {})
    for each in rows(container.get("env")):
        name = text(at(each, "name"))
        if name is None:
            continue
        value = text(at(each, "value"))
        if value is None:
            reference = at(each, "valueFrom", "configMapKeyRef")
            value = cluster.maps.get(text(at(reference, "name")) or "", {}).get(text(at(reference, "key")) or "")
        if value is not None:
            out[name] = filled_word(value, {**out, **cluster.variables}, cluster.places.item(each, "value"))
        elif name not in cluster.variables:
            out[name] = Word(text=f"${name}", raw=f"${name}", unknown=(f"${name}",))
    for name, value in mapping(container.get("env")).items():
        if (said := text(value)) is not None:
            out[str(name)] = said
    return out


def devices_of(resources: Any) -> tuple[int | None, str | None]:
    """The number of accelerators that the resources of a container ask for, and the slice of one that they name."""
    table = launch_words()
    for part in ("limits", "requests"):
        held = mapping(at(resources, part))
        for name, value in held.items():
            count = number(value)
            if count is None:
                continue
            if str(name) in table.resources:
                return count, None
            if str(name).startswith(table.slices):
                return count, f"MIG {str(name).removeprefix(table.slices)}"
    return None, None


def nodes_of(spec: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The accelerator and the instance type that the labels of nodes name."""
    table = launch_words()
    labels: dict[str, list[str]] = {}
    for name, value in {**mapping(spec.get("nodeSelector")), **mapping(more)}.items():
        labels[str(name)] = texts(value)
    for each in walk(spec.get("affinity")):
        for match in rows(each.get("matchExpressions")):
            if at(match, "operator") == "In" and text(at(match, "key")) is not None:
                labels.setdefault(text(at(match, "key")) or "", texts(at(match, "values")))
    out: dict[str, Any] = {}
    for key, names in (("gpu", table.gpu_labels), ("instance", table.instance_labels)):
        values = next((labels[name] for name in names if labels.get(name)), [])
        values = [each for each in values if each.lower() not in ("true", "false", "yes", "no", "on")]
        if values:
            out[key] = values[0] if len(values) == 1 else f"one of {', '.join(values)}"
    pool = next(
        (f"{name} {values[0]}" for name, values in labels.items() if "nodepool" in name.replace("-", "") and values), None
    )
    if pool is not None and "gpu" not in out:
        out["pool"] = pool
    return out


def files_of(container: Mapping[str, Any], spec: Mapping[str, Any], cluster: Cluster) -> dict[str, str]:
    """The files that maps of settings in the same text put into a container."""
    volumes = {text(at(each, "name")): text(at(each, "configMap", "name")) for each in rows(spec.get("volumes"))}
    out: dict[str, str] = {}
    for each in rows(container.get("volumeMounts")):
        held = cluster.maps.get(volumes.get(text(at(each, "name"))) or "", {})
        folder, sub = text(at(each, "mountPath")) or "", text(at(each, "subPath"))
        for key, content in held.items():
            out[folder if sub == key else f"{folder.rstrip('/')}/{key}"] = content
    return out


def servers_of_pod(spec: Mapping[str, Any], cluster: Cluster, place: Place) -> list[Server]:
    """The servers of the containers of a pod; of several each has the name of its container behind that of the pod."""
    containers = mappings(spec.get("containers"))
    found = [
        (text(each.get("name")), server) for each in containers for server in servers_of_container(each, spec, cluster, place)
    ]
    if len(found) < 2:
        return [server for _, server in found]
    return [replace(server, name="/".join(filter(None, (server.name, name)))) for name, server in found]


def around_of(container: Mapping[str, Any], spec: Mapping[str, Any], cluster: Cluster, place: Place) -> Around:
    """The surroundings of the command of a container."""
    variables = {**place.variables, **variables_of(container, cluster), **cluster.variables}
    settings = dict(place.settings)
    extra = dict(place.extra)
    remarks = [*place.unresolved]
    count, slice_ = devices_of(container.get("resources"))
    nodes = nodes_of(spec, place.selector)
    pool = nodes.pop("pool", None)
    settings |= nodes
    if slice_ is not None:
        settings |= {"gpu": slice_, CUT_FROM: nodes.get("gpu")}
    if place.gpus is not None:
        settings["gpus_per_replica"] = place.gpus
        if count is not None and place.pods > 1:
            extra["gpus_per_pod"] = count
    elif count is not None:
        settings["gpus_per_replica"] = count * place.pods
        if place.pods > 1:
            extra |= {"pods_per_replica": place.pods, "gpus_per_pod": count}
    if count is not None and "gpu" not in settings and "instance" not in settings:
        remarks.append("gpu" if pool is None else f"gpu: {pool}")
    if place.role is not None:
        settings["role"] = place.role
    image = text(container.get("image"))
    if image is None and place.based:
        remarks.append("image: not in the text")
    hint = f"{place.name} {text(container.get('name')) or ''} {image or ''}"
    return Around(
        image=image,
        variables=variables,
        settings=settings,
        extra=extra,
        unresolved=tuple(remarks),
        files=files_of(container, spec, cluster),
        hint=hint,
        name=place.name,
        line=cluster.places.line(container),
        model=place.model,
        places=place.places,
    )


def servers_of_container(container: Mapping[str, Any], spec: Mapping[str, Any], cluster: Cluster, place: Place) -> list[Server]:
    """The server of a container: the last that its command starts."""
    around = around_of(container, spec, cluster, place)
    words = container_words(container, around.variables, cluster.places, braces=cluster.variables)
    if words and words[0].text.startswith("-") is False and program_at(words) is None and not container.get("command"):
        known = image_of(around.image) if around.image else None
        if known is None or not known[1].starts:
            around = replace(around, hint="")
    servers = container_servers(around, words, {})
    return servers[-1:]


# --- groups of pods -------------------------------------------------------------------------------------------------


def _of_leader_set(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A LeaderWorkerSet: the leader's server, on as many pods as a group has."""
    template = at(document, "spec", "leaderWorkerTemplate")
    size = number(at(template, "size")) or 1
    known = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0"}
    place = Place(settings=_replicas(at(document, "spec")), pods=size, variables=known, name=_name(document))
    for part in ("leaderTemplate", "workerTemplate"):
        out = [server for spec in pod_specs(at(template, part)) for server in servers_of_pod(spec, cluster, place)]
        if out:
            return out
    return []


# --- KServe ---------------------------------------------------------------------------------------------------------


_SERVED: Final = re.compile(r"--(model[-_]name|model[-_]id|backend|model[-_]dir)(?:=(.*))?", re.DOTALL)


def _of_inference_service(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """An InferenceService: a model with a runtime, or containers."""
    predictor = mapping(at(document, "spec", "predictor"))
    settings = {"replicas": number(predictor.get("minReplicas"))}
    names = {"tensorParallelSize": "tp", "pipelineParallelSize": "pp"}
    sizes, words = sizes_of(predictor.get("workerSpec"), names, cluster.places)
    place = Place(settings=settings | sizes, name=_name(document), places=words)
    if isinstance(predictor.get("containers"), list):
        return servers_of_pod(predictor, cluster, place)
    model = predictor.get("model")
    kind = text(at(model, "modelFormat", "name")) or ""
    runtime = text(at(model, "runtime")) or ""
    if not isinstance(model, Mapping) or not (
        "huggingface" in kind.lower() or "vllm" in f"{kind} {runtime}".lower() or "huggingface" in runtime.lower()
    ):
        return []
    uri = text(model.get("storageUri"))
    remarks = [] if uri is None or hub_name(uri) else [f"model: storageUri {uri}"]
    extra = {"runtime": runtime} if runtime else {}
    around = around_of(model, predictor, cluster, replace(place, model=hub_name(uri), extra=extra, unresolved=tuple(remarks)))
    named, backend, dropped, rest = _served(filled(model.get("args"), around.variables, cluster.places))
    around = replace(around, model=named or around.model)
    if backend == "huggingface":
        around = replace(
            around, settings={**around.settings, "engine": "huggingface"}, extra={**around.extra, "backend": backend}
        )
        reading = Reading(engine_flags(_USUAL))
        reading.irrelevant |= dropped
        own = finished(reading, around)
        return [replace(own, settings={**own.settings, "engine": "huggingface"})]
    flags = engine_flags(_USUAL)
    remark = "" if "vllm" in f"{kind} {runtime}" or extra or named else f"engine: modelFormat {kind}, vLLM by default"
    servers = servers_with(flags, rest, around, remark=remark)
    return [replace(each, irrelevant=tuple(dict.fromkeys((*dropped, *each.irrelevant)))) for each in servers]


def _served(words: list[Word]) -> tuple[str | None, str | None, dict[str, None], list[Word]]:
    """The arguments of KServe's own server: the model, the back end, what names the model for users, and the rest, which are vLLM's."""
    model: str | None = None
    backend: str | None = None
    dropped: dict[str, None] = {}
    rest: list[Word] = []
    pending = list(reversed(words))
    while pending:
        word = pending.pop()
        match = _SERVED.fullmatch(word.text)
        if match is None:
            rest.append(word)
            continue
        value = match[2] if match[2] is not None else (pending.pop().text if pending else "")
        name = match[1].replace("-", "_")
        if name == "model_id":
            model = value
        elif name == "backend":
            backend = value
        else:
            dropped[word.text.partition("=")[0]] = None
    return model, backend, dropped, rest


def _of_llm_service(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """An LLMInferenceService: the server, and one for prefill if there is one."""
    spec = mapping(document.get("spec"))
    out = [_of_workload(spec, spec, document, cluster, None)]
    if isinstance(spec.get("prefill"), Mapping):
        out[0] = replace(out[0], settings={**out[0].settings, "role": "decode"})
        out.append(_of_workload(mapping(spec["prefill"]), spec, document, cluster, "prefill"))
    return out


def _of_workload(
    part: Mapping[str, Any], spec: Mapping[str, Any], document: Mapping[str, Any], cluster: Cluster, role: str | None
) -> Server:
    model = mapping(spec.get("model"))
    uri = text(model.get("uri"))
    named = hub_name(uri)
    runtime = text(spec.get("runtime")) or "vllm"
    flags = flags_called(runtime) or engine_flags(_USUAL)
    settings: dict[str, Any] = {**_replicas(part)}
    extra: dict[str, Any] = {}
    remarks: list[str] = [] if named or uri is None else [f"model: uri {uri}"]
    remarks += [f"baseRefs {text(at(each, 'name'))}" for each in rows(spec.get("baseRefs"))]
    sizes = mapping(part.get("parallelism"))
    read, said = sizes_of(sizes, {"tensor": "tp", "pipeline": "pp", "data": "dp"}, cluster.places)
    settings |= read
    if sizes.get("expert") is True:
        settings["ep"] = True
    local = number(sizes.get("dataLocal"))
    if local is not None:
        extra["data_parallel_size_local"] = local
    total = None
    if sizes:
        total = (settings.get("tp") or 1) * (settings.get("pp") or 1) * (settings.get("dp") or 1)
    pods = max(1, (settings.get("dp") or 1) // (local or 1)) if local else (settings.get("pp") or 1)
    cpu = text(at(spec, "workload", "kvCacheOffloading", "cpu"))
    if cpu is not None:
        extra["kv_offload_cpu"] = cpu
    adapters = mapping(model.get("lora"))
    if adapters:
        lora: dict[str, Any] = {"enable": True}
        modules = [f"{text(at(each, 'name'))}={text(at(each, 'uri'))}" for each in rows(adapters.get("adapters"))]
        lora |= {"modules": modules} if modules else {}
        names = (("maxRank", "max_lora_rank"), ("maxAdapters", "max_loras"), ("maxCpuAdapters", "max_cpu_loras"))
        lora |= {key: number(adapters.get(name)) for name, key in names if number(adapters.get(name)) is not None}
        settings["lora"] = lora
    template = mapping(part.get("template"))
    containers = mappings(template.get("containers"))
    container = next((each for each in containers if each.get("name") == "main"), containers[0] if containers else {})
    place = Place(
        settings=settings,
        extra=extra,
        unresolved=tuple(remarks),
        model=named,
        pods=pods,
        gpus=total,
        name=_name(document),
        role=role,
        places=said,
    )
    around = around_of(container, template, cluster, place)
    words = container_words(container, around.variables, cluster.places, braces=cluster.variables)
    if not sizes and not isinstance(container.get("resources"), Mapping):
        around = replace(around, unresolved=(*around.unresolved, "gpu", "gpus_per_replica"))
    more = around.variables.get("VLLM_ADDITIONAL_ARGS")
    if isinstance(more, Word) and more.known:
        words += split_text(more.text, around.variables, more.spot)
    elif isinstance(more, str):
        words += split_text(more, around.variables, Spot(origin=Origin.on_line(around.line)))
    servers = container_servers(around, words, {}) if container.get("command") else []
    servers = servers or servers_with(flags, words, around)
    return servers[-1] if servers else finished(Reading(flags), around)


# --- Ray, KubeAI, KAITO, Dynamo -------------------------------------------------------------------------------------


def _of_ray(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A RayService, whose applications stand as YAML in a text."""
    given = text(at(document, "spec", "serveConfigV2"))
    groups = rows(at(document, "spec", "rayClusterConfig", "workerGroupSpecs")) or rows(at(document, "spec", "workerGroupSpecs"))
    spot = cluster.places.item(at(document, "spec"), "serveConfigV2")
    applications = next(iter(read_documents(given, cluster.places, spot.inside(given))), None) if given else None
    out: list[Server] = []
    for application in rows(at(applications, "applications")):
        configs = rows(at(application, "args", "llm_configs"))
        for config in configs:
            out += [_of_llm_config(config, cluster)] if isinstance(config, Mapping) else []
        if not configs:
            out += _of_deployment(application, groups, document, cluster)
    return out


def of_llm_configs(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of a file for Ray Serve alone."""
    configs = [
        each for application in rows(document.get("applications")) for each in rows(at(application, "args", "llm_configs"))
    ]
    return [_of_llm_config(each, cluster) for each in configs or rows(document.get("llm_configs")) if isinstance(each, Mapping)]


def _of_llm_config(config: Mapping[str, Any], cluster: Cluster) -> Server:
    """A model of Ray Serve LLM."""
    flags = engine_flags(_USUAL)
    reading = Reading(flags)
    reading.config(mapping(config.get("engine_kwargs")), cluster.places, wins=True)
    loading = mapping(config.get("model_loading_config"))
    source = loading.get("model_source") if isinstance(loading.get("model_source"), str) else loading.get("model_id")
    own = settings_in(at(config, "runtime_env", "env_vars"))
    reading.environment(own)
    replicas = number(at(config, "deployment_config", "num_replicas"))
    if replicas is None:
        replicas = number(at(config, "deployment_config", "autoscaling_config", "min_replicas"))
    settings = {"replicas": replicas, "gpu": text(config.get("accelerator_type"))}
    sizes = (reading.settings.get("tp"), reading.settings.get("pp"))
    if all(size is None or isinstance(size, int) for size in sizes):
        settings["gpus_per_replica"] = (sizes[0] or 1) * (sizes[1] or 1)
    if isinstance(source, str):
        named = "model_source" if source is loading.get("model_source") else "model_id"
        reading.stated("model", source, cluster.places.item(loading, named))
    return finished(reading, Around(settings=settings, variables=own, line=cluster.places.line(config)))


_OWN_NAMES: Final = {
    "MODEL_ID": "model", "MODEL_NAME": "model", "MODEL": "model", "TENSOR_PARALLELISM": "tp", "TENSOR_PARALLEL_SIZE": "tp", "PIPELINE_PARALLELISM": "pp",
    "PIPELINE_PARALLEL_SIZE": "pp", "MAX_MODEL_LEN": "max_model_len", "DTYPE": "dtype", "QUANTIZATION": "quantization",
}  # fmt: skip
"""Variables of people's own programs, by the names that they have as a rule."""


def _of_deployment(application: Any, groups: list[Any], document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A program of one's own on Ray, whose packages say the engine, and whose variables are named as a rule."""
    packages = " ".join(texts(at(application, "runtime_env", "pip")) or texts(at(application, "runtime_env", "pip", "packages")))
    own = settings_in(at(application, "runtime_env", "env_vars"))
    flags = next(
        (
            each
            for each in all_flags()
            if re.search(rf"(?<![\w-]){re.escape(each.engine)}(?![\w-])", f"{packages} {at(application, 'import_path')}")
        ),
        None,
    )
    if flags is None:
        return []
    reading = Reading(flags)
    for name, key in _OWN_NAMES.items():
        if name in own and key not in reading.settings:
            value = own[name]
            reading.settings[key] = number(value) if number(value) is not None and key != "model" else value
    deployment = next(iter(rows(at(application, "deployments"))), None)
    spec = next(pod_specs(groups), {})
    container = next(iter(mappings(spec.get("containers"))), {})
    place = Place(settings={"replicas": number(at(deployment, "num_replicas"))}, name=_name(document))
    around = around_of(container, spec, cluster, place)
    around = replace(around, hint=packages, variables={**around.variables, **own})
    version = re.search(rf"{re.escape(flags.engine)}==([0-9][\w.+]*)", packages)
    reading.say(f"engine: an own Python deployment; {flags.engine}{'' if version is None else '==' + version[1]} in pip")
    return [finished(reading, around)]


def _of_kubeai(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A Model of KubeAI."""
    spec = mapping(document.get("spec"))
    flags = flags_called(text(spec.get("engine")) or "")
    if flags is None:
        return []
    profile, _, many = (text(spec.get("resourceProfile")) or "").partition(":")
    settings: dict[str, Any] = {}
    if profile and not profile.startswith("cpu"):
        settings |= {"gpu": profile, "gpus_per_replica": number(many) or 1}
    replicas = number(spec.get("replicas"))
    settings["replicas"] = number(spec.get("minReplicas")) if replicas is None else replicas
    url = text(spec.get("url")) or ""
    scheme, _, rest = url.partition("://")
    model = rest.partition("?")[0] if scheme in ("hf", "ollama") else None
    remarks = () if model or not url else (f"model: url {url}",)
    around = Around(
        image=text(spec.get("image")),
        variables={**settings_in(spec.get("env")), **cluster.variables},
        settings=settings,
        unresolved=remarks,
        model=model,
        name=_name(document),
        line=cluster.places.line(document),
    )
    return servers_with(flags, filled(spec.get("args"), around.variables, cluster.places), around)


def _of_kaito(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A Workspace of KAITO: a preset, with flags in a map of settings."""
    resource, inference = mapping(document.get("resource")), mapping(document.get("inference"))
    if not inference:
        return []
    flags = engine_flags(_USUAL)
    reading = Reading(flags)
    reading.say("engine: KAITO presets run vLLM by default")
    extra: dict[str, Any] = {}
    instance = text(resource.get("instanceType"))
    settings = {"instance": instance} if instance else {}
    for each in () if instance else ("instance", "gpu"):
        reading.say(each)
    nodes = number(resource.get("count"))
    extra |= {"nodes": nodes} if nodes is not None and nodes > 1 else {}
    if isinstance(resource.get("partition"), Mapping):
        extra["partition"] = dict(resource["partition"])
    mode = text(at(document, "metadata", "annotations", "kaito.sh/performance-mode"))
    extra |= {} if mode is None else {"performance_mode": f"{mode} (annotation)"}
    preset = text(at(inference, "preset", "name"))
    config = text(inference.get("config"))
    if config is not None:
        for content in cluster.maps.get(config, {}).values():
            held = next(iter(read_documents(content)), None)
            for name, value in mapping(at(held, "vllm")).items():
                reading.entry(str(name), value)
        if config not in cluster.maps:
            reading.say(f"config {config}")
    if preset is not None:
        reading.settings["model"] = _PRESET.format(preset)
    elif isinstance(inference.get("template"), Mapping):
        place = Place(settings=settings, extra=extra)
        return [each for spec in pod_specs(inference["template"]) for each in servers_of_pod(spec, cluster, place)]
    if "tp" not in reading.settings and nodes is not None and nodes > 1:
        reading.say("tp and pp: chosen by KAITO")
    line = cluster.places.line(document)
    return [finished(reading, Around(settings=settings, extra=extra, name=_name(document), line=line))]


def _of_kaito_set(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """An InferenceSet of KAITO: so many workspaces of one template."""
    spec = mapping(document.get("spec"))
    template = mapping(spec.get("template"))
    held = {**document, **template, "resource": template.get("resource") or template.get("resources")}
    cluster.places.copied(document, held)
    return [replace(each, settings={**each.settings, **_replicas(spec)}) for each in _of_kaito(held, cluster)]


def _of_dynamo(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A graph of Dynamo: a server for each service that starts one."""
    spec = mapping(document.get("spec"))
    services = [(str(name), each) for name, each in mapping(spec.get("services")).items()]
    services += [(text(at(each, "name")) or "", each) for each in rows(spec.get("components"))]
    out: list[Server] = []
    found: list[tuple[str, list[Server]]] = []
    for name, service in services:
        pod = mapping(at(service, "extraPodSpec"))
        template = mapping(at(service, "podTemplate", "spec"))
        containers = [at(pod, "mainContainer"), *rows(template.get("containers"))]
        container = next((each for each in containers if isinstance(each, Mapping)), None)
        if container is None:
            continue
        held = {**container, "resources": container.get("resources") or at(service, "resources")}
        cluster.places.copied(container, held)
        held["env"] = [*rows(at(service, "envs")), *rows(container.get("env"))]
        nodes = number(at(service, "multinode", "nodeCount")) or 1
        said = (text(at(service, "subComponentType")) or text(at(service, "type")) or "").lower()
        role = said if said in ("prefill", "decode") else None
        place = Place(settings=_replicas(service), pods=nodes, name=name, role=role)
        servers = servers_of_container(held, template or pod, cluster, place)
        found.append((name, servers))
    several = any(server.settings.get("role") == "prefill" for _, servers in found for server in servers)
    for name, servers in found:
        for server in servers:
            # Where one worker reads prompts, the one that its name says decodes.
            decodes = several and server.settings.get("role") is None and "decode" in name.lower()
            out.append(replace(server, settings={**server.settings, "role": "decode"}) if decodes else server)
    return out


def _of_runtime(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A runtime of KServe is a template, and starts nothing by itself."""
    return servers_of_pod(mapping(document.get("spec")), cluster, Place(name=_name(document)))


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any], Cluster], list[Server]]]] = {
    "LeaderWorkerSet": _of_leader_set,
    "InferenceService": _of_inference_service,
    "LLMInferenceService": _of_llm_service,
    "RayService": _of_ray,
    "Model": _of_kubeai,
    "Workspace": _of_kaito,
    "InferenceSet": _of_kaito_set,
    "DynamoGraphDeployment": _of_dynamo,
    "ServingRuntime": _of_runtime,
    "ClusterServingRuntime": _of_runtime,
    "ConfigMap": lambda document, cluster: [],  # noqa: ARG005 - it starts nothing
    "Service": lambda document, cluster: [],  # noqa: ARG005
}
"""Kind -> its reader; any other kind may hold pods."""
