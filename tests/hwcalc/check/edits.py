"""Edits of ``kvplan check`` applied to the texts that they are of."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

from hwcalc.launch.told import read_told
from hwcalc.profiles.engine_flags import engine_flags
from tests.hwcalc.check.files import checked
from tests.hwcalc.command import QWEN, Capture


def applied(edits: list[dict[str, Any]], path: Path, words: list[str], capsys: Capture) -> int:
    """The number of these edits of a script of one line that were made, each of which makes it hold. Words such as those of another checkpoint are left out."""
    before, made = path.read_text(encoding="utf-8"), 0
    for edit in edits:
        said, _, command = edit["flags"], "", ""
        if "kvplan check" in edit["yaml"] and not said:
            said, _, command = edit["yaml"].rpartition("kvplan check")
            said = said.removesuffix(" in the file and ")
        elif not said:
            continue
        text = before
        for name, value in read_told(engine_flags(_engine(before)), said).items():
            flag = re.compile(rf"(?<=\s){re.escape(_SHORT.get(name, name))}[ =]\S+")
            text = flag.sub(f"{name} {value}", text) if flag.search(text) else f"{text} {name} {value}"
        path.write_text(text, encoding="utf-8")
        gpus = re.search(r"with (\d+) GPUs", edit["effect"])
        more = ["--gpus", gpus[1]] if gpus is not None else []
        line = shlex.split(command) if command else [str(path), *words, *more]
        if edit["accepting"]:
            # It stands in the place of another limit.
            allowed = line.index("--max-growth") if "--max-growth" in line else len(line)
            line[allowed : allowed + 2] = edit["accepting"].split()
        status, document = checked(capsys, *line)
        assert status == 0, (edit, document["checks"][0]["requirements"])
        made += 1
    path.write_text(before, encoding="utf-8")
    return made


def _engine(text: str) -> str:
    return "sglang" if "sglang" in text else "llamacpp" if "llama-server" in text else "vllm"


_SHORT: Final = {"--tp-size": "--tp"}
"""Flags as they stand in these texts."""


COUNTED: Final = """\
services:
  chat:
    image: vllm/vllm-openai:v0.11.0
    command: --model {model} --max-model-len 32768 {sizes}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, {gpus}}}]}}}}}}
"""


POD: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: chat}}
spec:
  containers:
  - image: vllm/vllm-openai:v0.11.0
    args: [{args}]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
"""


def counted(kind: str, model: str, sizes: str, gpus: int) -> str:
    """A manifest that gives its server so many GPUs."""
    if kind == "pod":
        words = f"--model {model} --max-model-len 32768 {sizes}".split()
        return POD.format(args=", ".join(json.dumps(word) for word in words), gpus=gpus)
    of_gpus = f"count: {gpus}" if kind == "count" else f"device_ids: {json.dumps([str(gpu) for gpu in range(gpus)])}"
    return COUNTED.format(model=model, sizes=sizes, gpus=of_gpus)


TWO: Final = f"""\
services:
  small: {{image: "vllm/vllm-openai:v0.11.0", command: --model {QWEN} --max-model-len 4096}}
  big: {{image: "vllm/vllm-openai:v0.11.0", command: --model meta-llama/Llama-3.1-8B-Instruct --max-model-len 65536}}
"""
