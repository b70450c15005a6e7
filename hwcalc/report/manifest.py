"""The server of a plan as a manifest: for Docker Compose, for Kubernetes, and as values of vLLM's production stack.

What an engine is told is its command, as ``--emit ENGINE`` writes it. What stands around it is in the engine's ``flags.yaml`` (``container``) and
in ``launch.yaml`` (``vendors``), by which manifests are read too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from hwcalc.engines.devices import HOST
from hwcalc.engines.engine import Engine
from hwcalc.errors import UsageError
from hwcalc.formulas.record import Record
from hwcalc.profiles.engine_flags import EngineFlags, engine_flags
from hwcalc.profiles.gpus import find_gpu, node_label
from hwcalc.profiles.launch import Vendor, launch_words
from hwcalc.profiles.mig import slice_named
from hwcalc.text import brief, shell_word
from hwcalc.units import GIB

if TYPE_CHECKING:
    from hwcalc.engines.options import CommandInput
    from hwcalc.planner.result import Plan
    from hwcalc.profiles.engine_flags import Container
    from hwcalc.profiles.hardware_file import Gpu

CHART: Final = "helm"
CHART_ENGINE: Final = "vllm"
"""The form that is values of the production stack, and the engine that it starts."""
FORMS: Final[Mapping[str, str]] = {
    "compose": "docker compose -f FILE up",
    "kubernetes": "kubectl apply -f FILE",
    CHART: "helm repo add vllm https://vllm-project.github.io/production-stack; helm install vllm vllm/vllm-stack -f FILE",
}
"""Form of a manifest -> the command that starts what stands in it."""
EACH_NODE: Final = "says what each node is told (on Kubernetes each is a pod of a LeaderWorkerSet)"
"""What a command does that no manifest does."""
_CPU: Final = "cpu"
"""The key of an image for a machine without an accelerator."""
_SETTINGS: Final = "/etc/kvplan"
_MODELS: Final = "/models"
_DOWNLOADS: Final = "/data"
"""The folder of a container that models are downloaded to: its engine is told, whoever the image runs as."""
_CHART_KEYS: Final = {
    "--max-model-len": "maxModelLen",
    "--dtype": "dtype",
    "--tensor-parallel-size": "tensorParallelSize",
    "--max-num-seqs": "maxNumSeqs",
    "--gpu-memory-utilization": "gpuMemoryUtilization",
    "--max-loras": "maxLoras",
}
"""Flag of vLLM -> the key of ``vllmConfig`` that the chart has for it (helm/templates/deployment-vllm-multi.yaml of production-stack a6c01db)."""
_CHART_PREFIXES: Final = {"--enable-prefix-caching": True, "--no-enable-prefix-caching": False}


class _Served(Record):
    """A planned server in a container: ``command`` and ``arguments``, which the image's own entry point gets where there is no command."""

    flags: EngineFlags
    container: Container
    model: str
    image: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    gpu: Gpu | None
    gpus: int
    host_bytes: int
    file: tuple[str, str] | None
    """The name and the text of the file that the command reads."""
    local: str | None
    """The file or folder on this machine that the model is."""
    replicas: int
    suffix: str
    """The end of its name, where several servers have one model."""

    @property
    def name(self) -> str:
        """The model's name as a Service of Kubernetes may be called: letters, digits and hyphens, a letter first (RFC 1035)."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.model.rpartition("/")[2].lower()).strip("-")[:50].strip("-")
        return (plain if plain[:1].isalpha() else f"model-{plain}".strip("-")) + self.suffix

    @property
    def vendor_name(self) -> str:
        return _CPU if self.gpu is None else self.gpu.vendor

    @property
    def vendor(self) -> Vendor | None:
        return launch_words().vendors.get(self.vendor_name)

    @property
    def resource(self) -> str:
        """The resource of Kubernetes that its accelerators are: that of the vendor, or that of a slice."""
        assert self.vendor is not None
        cut = None if self.gpu is None else slice_named(self.gpu.id)
        return self.vendor.resource if cut is None else f"{launch_words().slices}{cut[1]}"


def manifest(plan: Plan, form: str, rules: Engine, given: CommandInput, replicas: int = 1, suffix: str = "") -> str:
    """The manifest of this form, of so many equal servers where it has a place for their number.

    Raises :class:`~hwcalc.errors.UsageError` for a plan that it cannot hold.
    """
    served = replace(_served(plan, form, rules, given), replicas=replicas, suffix=suffix)
    documents = {"compose": _compose, "kubernetes": _kubernetes, CHART: _helm}[form](served, plan)
    where = "" if served.gpu is None else f", {served.gpus} x {served.gpu.name}"
    head = [f"{brief(served.model, 80)} on {rules.label}{where}", f"Start it: {FORMS[form]}"]
    if form != "compose" and served.vendor is not None:
        label = served.vendor.label
        head.append(
            f"What your nodes are labelled: kubectl get nodes -L {label}"
            if label is not None
            else "Add a nodeSelector if nodes have other accelerators too."
        )
    if served.local is not None and form != "compose":
        head.append(f"The volume claim models holds {served.local.rpartition('/')[2]}.")
    body = "---\n".join(map(_yaml, documents))
    return "".join(f"# {line}\n" for line in head) + body.rstrip("\n")


def _yaml(document: Mapping[str, Any]) -> str:
    """The document with each value written out, short lists on a line, and files as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Dumper.add_representer(
        str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
    )
    # A line that is folded could begin with anything.
    return str(yaml.dump(document, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=None))


def _served(plan: Plan, form: str, rules: Engine, given: CommandInput) -> _Served:
    """The planned server in a container. Raises :class:`~hwcalc.errors.UsageError` where no image has it, or where it needs several nodes."""
    flags = engine_flags(rules.name)
    if form == CHART and rules.name != CHART_ENGINE:
        raise UsageError(
            f"--emit helm writes values of vLLM's production stack, and the plan is of {rules.label}.",
            hint=f"Use: --emit kubernetes, or add: --engine {CHART_ENGINE}",
        )
    if flags.container is None:
        raise UsageError(f"{rules.label} runs in no container.", hint=f"Use: --emit {rules.name}, which is its command.")
    gpu, gpus = _accelerators(plan, form, given)
    images = flags.container.images
    image = images.get(_CPU if gpu is None else gpu.vendor)
    if image is None:
        known = ", ".join(images)
        what = "machines without an accelerator" if gpu is None else f"accelerators of {gpu.vendor}"
        raise UsageError(f"No image of {rules.label} for {what} is known.", hint=f"Known: {known}. Use: --emit {rules.name}")
    file = rules.command.file(given)
    words = list(rules.command.words(given)) if file is None else list(file.command)
    environment = list(given.environment if file is None else file.environment)
    if words[0] == "env":
        count = next(place for place, word in enumerate(words[1:], 1) if "=" not in word)
        environment, words = environment + words[1:count], words[count:]
    text = "" if file is None else file.text
    local = _local(given, words, text)
    if local is not None:
        there = f"{_MODELS}/{local.rpartition('/')[2]}"
        words = [there if word == local else word for word in words]
        text = text.replace(f" {local}\n", f" {there}\n")
    if file is not None:
        words = [f"{_SETTINGS}/{file.name}" if word == file.name else word for word in words]
    command, arguments = flags.program, words[len(flags.program) :]
    if flags.container.script is not None:
        script = flags.container.script.replace("{command}", _quoted(words))
        command, arguments = ("sh",), ["-c", script]
    return _Served(
        flags=flags,
        container=flags.container,
        model=plan.model.id,
        image=_tagged(image, given.version or rules.version(None), gpu),
        command=() if flags.container.entry else command,
        # Both Compose and Kubernetes fill in what stands behind a dollar sign.
        arguments=tuple(word.replace("$", "$$") if form != CHART else word for word in (*arguments, *flags.container.words)),
        environment=dict(each.partition("=")[::2] for each in environment),
        gpu=gpu,
        gpus=gpus,
        host_bytes=sum(each.total for each in plan.memory.devices if each.device == HOST),
        file=None if file is None else (file.name, text),
        local=local,
        replicas=1,
        suffix="",
    )


def _accelerators(plan: Plan, form: str, given: CommandInput) -> tuple[Gpu | None, int]:
    """The accelerator and how many of them; ``None`` for a plan in host memory alone."""
    if given.on_host:
        return None, 0
    if plan.fit is None or plan.fit.gpu is None:
        raise UsageError(f"--emit {form} names the accelerators of a server, and the plan has none.", hint="Add: --gpu h100")
    from hwcalc.hardware.named import gpu_named

    gpu = gpu_named(plan.fit.gpu)
    if gpu.vendor not in launch_words().vendors:
        raise UsageError(
            f"--emit {form} knows no containers on {gpu.name}.", hint=f"Use: --emit {plan.request.engine}, which is the command."
        )
    if plan.fit.gpus > gpu.node:
        fewer = plan.fit.min_gpus is not None and plan.fit.min_gpus <= gpu.node
        raise UsageError(
            f"--emit {form} starts a server on one node, which has {gpu.node} of {gpu.name}, and the plan takes {plan.fit.gpus:,}.",
            hint=f"Use: --emit {plan.request.engine}, which {EACH_NODE}{f'; or plan fewer: --gpus {gpu.node}' if fewer else '.'}",
        )
    return gpu, plan.fit.gpus


def _local(given: CommandInput, words: Sequence[str], text: str) -> str | None:
    """The file or folder on this machine that a command, or the file that it reads, names as the model."""
    made = [value for flag, value in pairwise(words) if flag == "-m"] + re.findall(r"^FROM (\S+)$", text, re.MULTILINE)
    named = (
        given.path,
        *(each for each in (given.model, *made) if each.startswith(("/", ".")) or each.lower().endswith(".gguf")),
    )
    return next((each for each in named if each is not None and (each in words or f" {each}\n" in text)), None)


def _tagged(image: str, version: str, gpu: Gpu | None) -> str:
    """The image with its version filled in.

    >>> _tagged("vllm/vllm-openai:v{version}", "0.33", None), _tagged("llama.cpp:server-{release}", "v0.5.0", None)
    ('vllm/vllm-openai:v0.33.0', 'llama.cpp:server-v0.5.0')
    """
    plain = version.removeprefix("v")
    numbers = plain if plain.count(".") > 1 else f"{plain}.0"
    number = "" if gpu is None else (gpu.compute_capability or "").replace(".", "")
    return image.replace("{release}", version).replace("{version}", numbers).replace("{sm}", number)


def _quoted(words: Sequence[str]) -> str:
    return " ".join(map(shell_word, words))


def _compose(served: _Served, plan: Plan) -> list[dict[str, Any]]:
    """The file of Docker Compose: a service, the settings that it reads, and a volume for downloaded models."""
    service: dict[str, Any] = {"image": served.image}
    if served.command:
        service["entrypoint"] = list(served.command)
    service["command"] = list(served.arguments)
    environment = {**served.environment, served.container.downloads: _DOWNLOADS, "HF_TOKEN": "${HF_TOKEN:-}"}
    port = served.container.port
    service |= {"ports": [f"{port}:{port}"], "volumes": [f"models:{_DOWNLOADS}"]}
    if served.local is not None:
        path = served.local if served.local.startswith(("/", ".")) else f"./{served.local}"
        service["volumes"].append(f"{path}:{_MODELS}/{path.rpartition('/')[2]}:ro")
    if served.vendor is not None:
        service["ipc"] = "host"
        if served.vendor.devices:
            service["devices"] = list(served.vendor.devices)
            if served.vendor.visible is not None:
                environment |= {served.vendor.visible: ",".join(map(str, range(served.gpus)))}
        else:
            # The container toolkit counts whole GPUs; the first slice of the first is 0:0.
            of_slice = served.gpu is not None and served.gpu.slice_of is not None
            which = {"device_ids": ["0:0"]} if of_slice else {"count": served.gpus}
            devices = [{"driver": served.vendor_name, **which, "capabilities": ["gpu"]}]
            service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    service["environment"] = environment
    document: dict[str, Any] = {"services": {served.name: service}}
    if served.file is not None:
        name, text = served.file
        service["configs"] = [{"source": "settings", "target": f"{_SETTINGS}/{name}"}]
        document["configs"] = {"settings": {"content": text.replace("$", "$$")}}
    return [{**document, "volumes": {"models": {}}}]


def _kubernetes(served: _Served, plan: Plan) -> list[dict[str, Any]]:
    """The objects of Kubernetes: a Deployment with its probes, a Service, and the settings that the server reads."""
    container, labels = served.container, {"app": served.name}
    health = {"httpGet": {"path": container.health, "port": "http"}, "periodSeconds": 10}
    held: dict[str, Any] = {"name": served.flags.engine, "image": served.image}
    if served.command:
        held["command"] = list(served.command)
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN", "optional": True}}}
    held |= {
        "args": list(served.arguments),
        "env": [*({"name": name, "value": value} for name, value in served.environment.items()), token],
        "ports": [{"name": "http", "containerPort": container.port}],
        "resources": _resources(served),
        # Half an hour to download and load the weights.
        "startupProbe": {**health, "failureThreshold": 180},
        "readinessProbe": health.copy(),
        "livenessProbe": {**health, "failureThreshold": 6},
    }
    volumes: list[tuple[str, str, dict[str, Any]]] = []
    if served.vendor is not None:
        memory = {"medium": "Memory", "sizeLimit": launch_words().shared_memory}
        volumes.append(("shm", "/dev/shm", {"emptyDir": memory}))  # noqa: S108 - a mount of the container
    if served.local is not None:
        volumes.append(("models", _MODELS, {"persistentVolumeClaim": {"claimName": "models"}}))
    if served.file is not None:
        volumes.append(("settings", _SETTINGS, {"configMap": {"name": served.name}}))
    if volumes:
        held["volumeMounts"] = [{"name": name, "mountPath": path} for name, path, _ in volumes]
    pod: dict[str, Any] = {"containers": [held]}
    label = _label(served)
    if label is not None:
        pod = {"nodeSelector": dict([label]), **pod}
    if volumes:
        pod["volumes"] = [{"name": name, **source} for name, _, source in volumes]
    named = {"name": served.name, "labels": labels}
    template = {"metadata": {"labels": labels.copy()}, "spec": pod}
    spec = {"replicas": served.replicas, "selector": {"matchLabels": labels.copy()}, "template": template}
    ports = {"selector": labels.copy(), "ports": [{"port": container.port, "targetPort": "http"}]}
    objects = [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": named, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": served.name}, "spec": ports},
    ]
    if served.file is not None:
        objects.insert(
            0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": served.name}, "data": dict([served.file])}
        )
    return objects


def _resources(served: _Served) -> dict[str, Any]:
    """The accelerators of a container, and the host memory that the plan counts."""
    out: dict[str, Any] = {}
    if served.host_bytes:
        out["requests"] = {"memory": f"{-(-served.host_bytes // GIB)}Gi"}
    if served.vendor is not None:
        out["limits"] = {served.resource: served.gpus}
    return out


def _label(served: _Served) -> tuple[str, str] | None:
    """The label of nodes with the accelerator, as the vendor's discovery writes it; ``None`` where its value is not known."""
    if served.gpu is None or served.vendor is None or served.vendor.label is None:
        return None
    whole = served.gpu if served.gpu.slice_of is None else find_gpu(served.gpu.slice_of)
    return served.vendor.label, node_label(whole)


def _helm(served: _Served, plan: Plan) -> list[dict[str, Any]]:
    """The values of vLLM's production stack, with a key for each flag that the chart has one for."""
    if served.local is not None:
        raise UsageError(
            "the production stack loads a model of the Hub, and the plan is of one on this machine.",
            hint="Name it by its id: ORG/NAME, or use: --emit compose",
        )
    config: dict[str, Any] = {}
    more: list[str] = []
    revision: dict[str, str] = {}
    pending = list(reversed(served.arguments[1:]))
    while pending:
        word = pending.pop()
        if word in _CHART_KEYS:
            value = pending.pop()
            config[_CHART_KEYS[word]] = int(value) if value.isdecimal() else value
        elif word in _CHART_PREFIXES:
            config["enablePrefixCaching"] = _CHART_PREFIXES[word]
        elif word == "--revision":
            revision["modelRevision"] = pending.pop()
        else:
            more.append(word)
    # The chart turns it off unless it is told; vLLM has it on, but for some models with states.
    if "enablePrefixCaching" not in config:
        if plan.cache.state_bytes_per_sequence:
            raise UsageError(
                "the production stack turns prefix caching off unless it is told, and the default of this model depends on the release.",
                hint="Add: --engine-option enable_prefix_caching=true, or =false",
            )
        config["enablePrefixCaching"] = True
    if more:
        config["extraArgs"] = more
    repository, _, tag = served.image.rpartition(":")
    spec: dict[str, Any] = {
        "name": served.name,
        "repository": repository,
        "tag": tag,
        "modelURL": served.arguments[0],
        **revision,
        "replicaCount": served.replicas,
        # vLLM's docs/configuration/optimization.md: a core for each GPU, and two.
        "requestCPU": 2 + served.gpus,
        # As in the chart's own values.yaml.
        "requestMemory": "16Gi",
        "requestGPU": served.gpus,
    }
    if served.vendor is not None:
        spec["requestGPUType"] = served.resource
    if "tensorParallelSize" in config:
        spec["shmSize"] = launch_words().shared_memory
    label = _label(served)
    if label is not None:
        match = {"key": label[0], "operator": "In", "values": [label[1]]}
        spec["nodeSelectorTerms"] = [{"matchExpressions": [match]}]
    if served.environment:
        spec["env"] = [{"name": name, "value": value} for name, value in served.environment.items()]
    return [{"servingEngineSpec": {"modelSpec": [{**spec, "vllmConfig": config}]}}]
