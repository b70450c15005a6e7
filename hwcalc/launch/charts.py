"""Values of Helm charts, and settings of projects of their own: where each keeps its models, sizes, images and GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.launch.arguments import Reading
from hwcalc.launch.around import Around, all_flags, finished, servers_with
from hwcalc.launch.commands import container_servers
from hwcalc.launch.kubernetes import Cluster, Place, around_of, of_llm_configs
from hwcalc.launch.server import CUT_FROM, Server
from hwcalc.launch.values import at, container_words, filled, hub_name, mapping, mappings, number, rows, sizes_of, text, texts
from hwcalc.launch.words import Word
from hwcalc.profiles.engine_flags import EngineFlags, engine_flags

_SWITCHES: Final = ("enablePrefixCaching", "enableChunkedPrefill")
"""Keys of the production stack's ``vllmConfig`` that are read where they are true or false."""
_NO_FLAGS: Final = ("extraArgs", "v0", "v1")


class Chart(Record):
    """A form of values: whether a document has it, and its reader."""

    holds: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any], Cluster], list[Server]]


def _snake(name: str) -> str:
    """``maxModelLen`` as ``max_model_len``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


# --- vLLM production stack ------------------------------------------------------------------------------------------


def _of_stack(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of the production stack's values, one for each model."""
    spec = mapping(document.get("servingEngineSpec"))
    return [_of_model_spec(each, spec, cluster) for each in mappings(spec.get("modelSpec"))]


def _of_model_spec(model: Mapping[str, Any], spec: Mapping[str, Any], cluster: Cluster) -> Server:
    reading = Reading(engine_flags("vllm"))
    config = mapping(model.get("vllmConfig"))
    for name, value in config.items():
        if name not in _NO_FLAGS and (name not in _SWITCHES or isinstance(value, bool)):
            reading.entry(_snake(str(name)), value, cluster.places.item(config, name))
    reading.read(filled(config.get("extraArgs"), cluster.variables, cluster.places))
    if model.get("enableLoRA") is True:
        reading.entry("enable_lora", value=True)
    if text(model.get("modelRevision")):
        reading.entry("revision", model["modelRevision"])
    settings: dict[str, Any] = {"replicas": number(model.get("replicaCount"))}
    extra: dict[str, Any] = {}
    count = number(model.get("requestGPU"))
    if count is not None:
        stages = reading.settings.get("pp")
        pods = stages if isinstance(model.get("raySpec"), Mapping) and isinstance(stages, int) else 1
        settings["gpus_per_replica"] = count * pods
        extra |= {"gpus_per_pod": count} if pods > 1 else {}
    kind = text(model.get("requestGPUType")) or ""
    if at(model, "lmcacheConfig", "enabled") is True:
        extra["lmcache"] = True
    image = _image(model.get("repository"), model.get("tag"))
    selector: dict[str, Any] = {}
    for term in rows(model.get("nodeSelectorTerms")):
        for match in rows(at(term, "matchExpressions")):
            if at(match, "operator") == "In":
                selector[text(at(match, "key")) or ""] = texts(at(match, "values"))
    own = {text(at(each, "name")) or "": text(at(each, "value")) or "" for each in rows(model.get("env"))}
    reading.environment(own)
    place = Place(settings=settings, extra=extra, name=text(model.get("name")) or "", selector=selector)
    around = around_of({"image": image}, {}, cluster, place)
    around = replace(around, variables={**around.variables, **own})
    if "mig-" in kind:
        cut = {"gpu": f"MIG {kind.partition('mig-')[2]}", CUT_FROM: around.settings.get("gpu")}
        around = replace(around, settings={**around.settings, **cut})
    _take_model(reading, model, "modelURL", cluster)
    if count is not None and not {"gpu", "instance"} & around.settings.keys():
        reading.say("gpu")
    return finished(reading, around, line=cluster.places.line(model))


def _take_model(reading: Reading, document: Mapping[str, Any], name: str, cluster: Cluster) -> None:
    """Read the model that a document has under this name."""
    model = text(document.get(name))
    if model is not None:
        flag = next(flag for flag in reading.flags.flags if flag.key == "model")
        reading.value(flag, Word(text=model, raw=model, spot=cluster.places.item(document, name)), name)


def _image(repository: Any, tag: Any) -> str | None:
    name, said = text(repository), text(tag)
    return None if name is None else name if said is None else f"{name}:{said}"


# --- llm-d ----------------------------------------------------------------------------------------------------------


def _of_llm_d(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """The servers of llm-d's model service: one that decodes, and one that reads prompts."""
    artifacts = mapping(document.get("modelArtifacts"))
    uri, name = text(artifacts.get("uri")) or "", text(artifacts.get("name"))
    model = hub_name(uri)
    if model is None or "{{" in model:
        model = name if model is not None or not uri else None
    parts = {role: mapping(document.get(role)) for role in ("decode", "prefill")}
    parts = {role: part for role, part in parts.items() if part and part.get("create") is not False}
    out = [server for role, part in parts.items() for server in _of_role(part, role, document, model, uri, cluster)]
    if [*parts] == ["decode"]:
        out = [replace(each, settings={key: value for key, value in each.settings.items() if key != "role"}) for each in out]
    return out


def _of_role(
    part: Mapping[str, Any], role: str, document: Mapping[str, Any], model: str | None, uri: str, cluster: Cluster
) -> list[Server]:
    settings: dict[str, Any] = {"replicas": number(part.get("replicas"))}
    extra: dict[str, Any] = {}
    sizes = mapping(part.get("parallelism"))
    read, said = sizes_of(sizes, {"tensor": "tp", "data": "dp", "pipeline": "pp"}, cluster.places)
    settings |= read
    local = number(sizes.get("dataLocal"))
    extra |= {} if local is None else {"data_parallel_size_local": local}
    kind = text(at(document, "accelerator", "type"))
    if kind is not None and kind not in ("nvidia", "amd", "cpu"):
        settings["gpu"] = kind
    remarks = () if model or not uri else (f"model: uri {uri}",)
    out: list[Server] = []
    for container in mappings(part.get("containers")):
        place = Place(settings=settings, extra=extra, unresolved=remarks, model=model, name=role, role=role, places=said)
        around = around_of(container, mapping(part), cluster, place)
        if "gpus_per_replica" not in around.settings and sizes:
            total = (settings.get("tp") or 1) * (local or 1)
            around = replace(around, settings={**around.settings, "gpus_per_replica": total})
        words = container_words(container, around.variables, cluster.places)
        command = text(container.get("modelCommand"))
        if command in ("vllmServe", "imageDefault") or not container.get("command"):
            out += servers_with(engine_flags("vllm"), words, around)
        else:
            out += container_servers(around, words, {})[-1:]
    return out


# --- other charts ---------------------------------------------------------------------------------------------------


def _of_parameters(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A chart with ``model`` and ``modelParameters`` (AI on EKS)."""
    reading = Reading(engine_flags("vllm"))
    given = mapping(document.get("modelParameters"))
    for name, value in given.items():
        reading.entry(_snake(str(name)), value, cluster.places.item(given, name))
    served = mapping(at(document, "inference", "modelServer"))
    kind = text(at(document, "inference", "accelerator"))
    resources = mapping(at(served, "deployment", "resources"))
    held = [mapping(at(each, part)) for each in resources.values() for part in ("limits", "requests")]
    counts = [number(value) for each in held for name, value in each.items() if "/" in str(name)]
    per_pod = next((count for count in reversed(counts) if count is not None), None)
    sizes = [reading.settings.get(key) for key in ("tp", "pp")]
    settings: dict[str, Any] = {"replicas": number(at(served, "deployment", "replicas"))}
    version = text(served.get("vllmVersion"))
    settings |= {} if version is None else {"engine_version": version}
    extra: dict[str, Any] = {}
    if per_pod is not None:
        total = (sizes[0] or 1) * (sizes[1] or 1) if all(size is None or isinstance(size, int) for size in sizes) else per_pod
        settings["gpus_per_replica"] = max(total, per_pod)
        extra |= {"gpus_per_pod": per_pod} if total > per_pod else {}
    instance = text(at(served, "deployment", "instanceType"))
    settings |= {} if instance is None else {"instance": instance}
    if kind not in (None, "gpu"):
        settings["gpu"] = kind
    image = _image(at(served, "image", "repository"), at(served, "image", "tag"))
    _take_model(reading, document, "model", cluster)
    if not {"gpu", "instance"} & settings.keys():
        for name in ("gpus_per_replica", "gpu"):
            if name not in settings:
                reading.say(name)
    return [finished(reading, Around(image=image, settings=settings, extra=extra))]


def _of_triton(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A chart of Triton with TensorRT-LLM on several nodes."""
    reading = Reading(engine_flags("tensorrt-llm"))
    sizes = mapping(at(document, "tensorrtLLM", "parallelism"))
    tp, pp = (number(sizes.get(name)) or None for name in ("tensor", "pipeline"))
    total, per_node = (tp or 1) * (pp or 1), number(document.get("gpuPerNode"))
    settings = {"tp": tp, "pp": pp, "gpu": text(document.get("gpu")), "gpus_per_replica": total}
    settings["replicas"] = number(at(document, "autoscaling", "replicas", "minimum"))
    extra = {"gpus_per_pod": per_node} if per_node is not None and total > per_node else {}
    reading.say("model: an engine folder")
    return [finished(reading, Around(image=text(at(document, "triton", "image", "name")), settings=settings, extra=extra))]


def _of_server_arguments(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A chart with ``model`` and ``<engine>.serverArgs`` (AI Hypercomputer)."""
    for flags in all_flags():
        held = mapping(document.get(flags.engine.replace("-", "")) or document.get(flags.engine))
        arguments = held.get("serverArgs")
        if not isinstance(arguments, Mapping):
            continue
        reading = Reading(flags)
        reading.config(arguments, cluster.places, wins=True)
        model = mapping(document.get("model"))
        for name, key in (("tp_size", "tp"), ("pp_size", "pp")):
            if number(model.get(name)) is not None:
                reading.settings.setdefault(key, number(model.get(name)))
        if text(model.get("name")) is not None:
            reading.settings.setdefault("model", text(model.get("name")))
        settings = {"gpus_per_replica": number(at(document, "job", "gpus")) or number(at(document, "workload", "gpus"))}
        image = _image(at(document, "workload", "image"), None) or _image(
            at(document, "image", "repository"), at(document, "image", "tag")
        )
        return [finished(reading, Around(image=image, settings=settings))]
    return []


def _blocks(document: Mapping[str, Any]) -> list[tuple[EngineFlags, Mapping[str, Any]]]:
    """The engines that a document has a block of flags for."""
    return [
        (flags, held)
        for flags in all_flags()
        if isinstance(held := document.get(flags.engine), Mapping) and "serverArgs" not in held
    ]


def _of_block(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """Settings of a project of its own: a block of flags under the engine's name, and the model beside it."""
    flags, held = _blocks(document)[0]
    reading = Reading(flags)
    reading.config(held, cluster.places, wins=True)
    model = document.get("model")
    named = text(model) or text(at(model, "id")) or text(at(model, "name")) or text(at(model, "model_id"))
    if named is not None:
        reading.settings.setdefault("model", named)
    workers = mapping(at(document, "instances", "workers"))
    instance = text(workers.get("type")) or text(document.get("instance_type"))
    settings = {"instance": instance, "replicas": number(workers.get("desired_capacity"))}
    return [finished(reading, Around(settings=settings))]


def _of_flags(document: Mapping[str, Any], cluster: Cluster) -> list[Server]:
    """A file of flags, as ``--config`` takes it."""
    flags = _file_of(document)
    if flags is None:
        return []
    reading = Reading(flags)
    reading.config(document, cluster.places, wins=True)
    return [finished(reading, Around())]


def _file_of(document: Mapping[str, Any]) -> EngineFlags | None:
    """The engine whose flags the keys of a document are."""
    if not document or len(document) > 200:
        return None
    best = None
    for flags in (each for each in all_flags() if not each.by_name):
        known = sum(
            flags.find(f"--{str(name).replace('_', '-')}")[0] is not None or f"--{name}" in flags.spelled for name in document
        )
        if known == len(document) and known > 1 and any(flags.named.get(str(name).replace("-", "_")) for name in document):
            return flags
        if known * 10 >= len(document) * 9 and known > 3 and best is None:
            best = flags
    return best


CHARTS: Final = (
    Chart(holds=lambda document: isinstance(at(document, "servingEngineSpec", "modelSpec"), list), read=_of_stack),
    Chart(holds=lambda document: "modelArtifacts" in document, read=_of_llm_d),
    Chart(holds=lambda document: isinstance(document.get("modelParameters"), Mapping), read=_of_parameters),
    Chart(holds=lambda document: isinstance(at(document, "tensorrtLLM", "parallelism"), Mapping), read=_of_triton),
    Chart(
        holds=lambda document: any(isinstance(at(each, "serverArgs"), Mapping) for each in document.values()),
        read=_of_server_arguments,
    ),
    Chart(holds=lambda document: bool(_blocks(document)), read=_of_block),
    Chart(
        holds=lambda document: (
            "llm_configs" in document or any(at(each, "args", "llm_configs") for each in rows(document.get("applications")))
        ),
        read=of_llm_configs,
    ),
    Chart(holds=lambda document: _file_of(document) is not None, read=_of_flags),
)
"""The forms of values, in the order in which they are tried."""
