"""The server that the words of a command make, with what stands around it: its image, its variables, and what a manifest says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from msgspec.structs import replace

from hwcalc.formulas.record import Record
from hwcalc.launch.arguments import Reading, gguf_format
from hwcalc.launch.server import FILE_NAME, Server
from hwcalc.launch.words import Word
from hwcalc.profiles.engine_flags import EngineFlags, Image, Program, engine_flags, engines
from hwcalc.profiles.launch import launch_words

_VERSION: Final = re.compile(r"v?(\d+\.\d+(?:\.\d+)*(?:(?:\.|-)?(?:post|rc|dev|a|b)\d+)*)(?:[-+_].*)?")
_PLACEHOLDER_IMAGE: Final = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+|<.*>")
_MOUNTS: Final = ("/model", "/mnt/")
"""How paths begin that exist in a container alone, as a rule."""
_STANDS_FOR_FILE: Final = frozenset({"model", "model_path", "path_to_model", "path/to/model", "MODEL"})
_PIP: Final = r"(?<![\w-]){name}(?:\[[\w,-]*\])?==([0-9][\w.+!-]*)"


class Around(Record):
    """What stands around a command: the image that it runs in, its variables, and what a manifest says of its GPUs.

    ``settings`` and ``extra`` are kept with every server. ``variables`` are values, or words where the text leaves them open; ``outer`` are those
    with which Compose fills in scripts before they run. ``mounts`` has the source of each folder, ``files`` the content of the files in the same text.
    """

    image: str | None = None
    variables: Mapping[str, Any] = MappingProxyType({})
    outer: Mapping[str, str] | None = None
    settings: Mapping[str, Any] = MappingProxyType({})
    extra: Mapping[str, Any] = MappingProxyType({})
    unresolved: tuple[str, ...] = ()
    mounts: Mapping[str, str] = MappingProxyType({})
    files: Mapping[str, str] = MappingProxyType({})
    hint: str = ""
    """Names that may tell the engine."""
    name: str = ""
    line: int = 1
    depth: int = 0
    tells: bool = False
    """True if an image's tag and `--gpus all` are worth a word."""
    model: str | None = None
    """The model that the manifest names apart from the arguments, which counts if they name a folder or none."""
    joins: bool = False
    """True if the text starts Ray."""
    places: Mapping[str, Word] = MappingProxyType({})
    """The words of a manifest that say ``settings``."""


def all_flags() -> tuple[EngineFlags, ...]:
    """The flags of all engines."""
    return tuple(engine_flags(name) for name in engines())


# --- images ---------------------------------------------------------------------------------------------------------


def image_of(name: str) -> tuple[EngineFlags, Image] | None:
    """The engine of an image, by the longest part of its name that is known."""
    lowered = name.partition("@")[0].lower()
    found = [(flags, image) for flags in all_flags() for image in flags.images if image.repository.lower() in lowered]
    return max(found, key=lambda each: len(each[1].repository), default=None)


def image_version(name: str, image: Image) -> str | None:
    """The engine's version, if the name of an image states it.

    >>> from hwcalc.profiles.engine_flags import Image
    >>> image_version("vllm/vllm-openai:v0.6.4.post1", Image(repository="vllm"))
    '0.6.4.post1'
    """
    if not image.versioned:
        return None
    plain = name.partition("@")[0]
    if image.in_name is not None:
        match = re.search(image.in_name, plain)
        return match[1].replace("-", ".") if match else None
    tag = tag_of(plain)
    if image.version is not None:
        match = re.search(image.version, tag)
        return match[0] if match and (match.start() == 0 or not match[0][0].isdigit()) else None
    match = _VERSION.fullmatch(tag)
    return match[1] if match else None


def tag_of(name: str) -> str:
    """The tag of an image; empty without one."""
    last = name.rpartition("/")[2]
    return last.partition(":")[2]


def starts_server(name: str, image: Image) -> bool:
    """True if the entry point of an image is the server."""
    return image.starts and (image.tag is None or image.tag in tag_of(name))


# --- servers --------------------------------------------------------------------------------------------------------


def servers_with(
    flags: EngineFlags,
    words: Sequence[Word],
    around: Around,
    own: Mapping[str, Any] = MappingProxyType({}),
    *,
    program: Program | None = None,
    line: int | None = None,
    remark: str = "",
) -> list[Server]:
    """The server of an engine with these arguments; empty if none would start. It stands where ``around`` does, unless a line is given."""
    reading = Reading(flags)
    if remark:
        reading.say(remark)
    around = replace(around, variables={**around.variables, **own})
    reading.environment(around.variables)
    reading.flag_variables(around.variables)
    reading.read(words)
    if reading.excluded:
        return []
    take_configs(reading, around)
    if program is not None and program.launcher is not None:
        reading.extra["launcher"] = program.launcher
    if program is not None and program.by_flag and reading.free and "model" not in reading.settings:
        spelled = next(each.spelled for each in flags.flags if each.key == "model")
        reading.fault(f"{reading.free[0].text} without {spelled}", spelled)
    return [finished(reading, around, line=line)]


def take_configs(reading: Reading, around: Around) -> None:
    """Read the files of flags that the arguments name, where the same text holds them."""
    from hwcalc.launch.documents import read_documents

    for name, word in reading.configs:
        content = around.files.get(word.text)
        document = None if content is None else next(iter(read_documents(content)), None)
        if not isinstance(document, Mapping):
            said = name.lstrip("-").replace("-", "_") if reading.flags.config_wins else name
            reading.say(f"{said} {word.text}")
            reading.ask(word)
            continue
        reading.config(document, wins=reading.flags.config_wins)


def finished(reading: Reading, around: Around, *, line: int | None = None) -> Server:
    """The server of what was read, with what stands around it."""
    flags = reading.flags
    settings, extra = reading.settings, reading.extra
    _take_free(reading)
    _take_file(reading)
    name = flags.name
    model = settings.get("model")
    diffusion = flags.diffusion
    if diffusion is not None and (
        reading.images or (isinstance(model, str) and any(each.lower() in model.lower() for each in diffusion.models))
    ):
        name = diffusion.name
        reading.say("an image model: no KV cache of a language model")
    settings = {"engine": name, **around.settings, **settings}
    _take_image(reading, settings, around)
    _take_devices(reading, settings, around.variables)
    _take_model(reading, settings, around)
    for each in around.unresolved:
        if "gpus_per_replica" not in settings or not each.startswith("gpus_per_replica: --"):
            reading.say(each)
    for whole in ("speculative", "lora"):
        if settings.get(whole) in ({}, None):
            settings.pop(whole, None)
    return Server(
        settings={key: value for key, value in settings.items() if value is not None},
        extra={**around.extra, **extra},
        unresolved=tuple(reading.unresolved),
        irrelevant=tuple(reading.irrelevant),
        unknown=tuple(reading.unknown),
        unplanned=reading.unplanned,
        asks=tuple(reading.asks),
        places={**around.places, **reading.places},
        words=tuple(reading.words),
        name=around.name,
        line=around.line if line is None else line,
        faults=tuple(reading.faults),
        joins=around.joins,
        variables=frozenset(reading.variables),
    )


def _take_free(reading: Reading) -> None:
    """The words without flags: the model, if the engine takes it so, and words that may stand for flags."""
    settings = reading.settings
    for word in reading.free:
        if reading.flags.positional and "model" not in settings and "model" not in reading.open:
            flag = next(each for each in reading.flags.flags if each.key == "model")
            reading.value(flag, word, "MODEL")
        elif not word.known:
            reading.ask(word)
            words = (
                "model: {} holds the words"
                if not reading.flags.positional and "model" not in settings and not reading.open
                else "{}"
            )
            reading.say(words.format(word.source.strip('"') if word.array else word.text))


def _take_file(reading: Reading) -> None:
    """The model of a repository of GGUF files, or of a file, and the format that its name states."""
    settings = reading.settings
    repository, file, url = settings.pop("repository", None), settings.pop("file", None), settings.pop("url", None)
    docker = settings.pop("docker_repository", None)
    if repository is not None:
        settings["model"], _, quantization = str(repository).partition(":")
        if quantization:
            settings["weights"] = quantization
        if file is not None and gguf_format(file):
            settings["weights"] = f"{gguf_format(file)} (file {file})"
        return
    model = settings.get("model") or url or docker
    if model is None:
        return
    settings["model"] = model
    if isinstance(model, str) and (known := gguf_format(model)):
        settings["weights"] = f"{known} {FILE_NAME}"
    elif file is not None and gguf_format(file):
        settings["weights"] = f"{gguf_format(file)} (file {file})"
    elif not reading.flags.positional and model in _STANDS_FOR_FILE:
        settings.pop("model")
        reading.say(f'model: "{model}" stands for a file')


def _take_image(reading: Reading, settings: dict[str, Any], around: Around) -> None:
    """The image, and the engine's version if the image states it, or what `pip install` names."""
    name = around.image
    if name is not None and _PLACEHOLDER_IMAGE.fullmatch(name):
        reading.say(f"image {name}")
        name = None
    if name is not None:
        settings.setdefault("image", name)
        known = image_of(name)
        version = None if known is None else image_version(name, known[1])
        if version is not None and "$" not in tag_of(name) and known is not None and known[0] is reading.flags:
            settings.setdefault("engine_version", version)
        elif around.tells and known is not None and (known[1].starts or "/" in known[1].repository) and tag_of(name):
            reading.say(f"engine_version: tag {tag_of(name)}")
    if "engine_version" not in settings and around.hint:
        match = re.search(_PIP.format(name=re.escape(reading.flags.engine)), around.hint)
        if match is not None:
            settings["engine_version"] = match[1]


def _take_devices(reading: Reading, settings: dict[str, Any], variables: Mapping[str, Any]) -> None:
    """Set the number of GPUs that the variables of visible devices name."""
    if "gpus_per_replica" in settings:
        return
    for name in launch_words().visible_devices:
        value = variables.get(name)
        if isinstance(value, Word):
            if value.known:
                value = value.text
            else:
                reading.say(f"gpus_per_replica: {name}={value.text}")
                continue
        if not isinstance(value, str):
            continue
        if "$" in value:
            reading.say(f"gpus_per_replica: {name}={value}")
        elif re.fullmatch(r"[\w-]+(?:,\s*[\w-]+)*", value) and value.lower() not in ("all", "void", "none", "-1", "no"):
            settings["gpus_per_replica"] = len(value.split(","))
            reading.unresolved[:] = [each for each in reading.unresolved if not each.startswith("gpus_per_replica:")]
            return


def _take_model(reading: Reading, settings: dict[str, Any], around: Around) -> None:
    """The model that the manifest names apart, and the folder that a mount hides."""
    model = settings.get("model")
    if around.model is not None and (model is None or str(model).startswith("/mnt/models")):
        settings["model"] = around.model
        reading.unresolved[:] = [each for each in reading.unresolved if not each.startswith("model=")]
        return
    if isinstance(model, str) and model.startswith("/") and not model.lower().endswith(".gguf"):
        for target, source in around.mounts.items():
            if target and (model == target or model.startswith(target.rstrip("/") + "/")):
                reading.say(f"model: {target} is the mounted {source}")
                return
        if model.startswith(_MOUNTS):
            reading.say(f"model: {model} is a mount")
