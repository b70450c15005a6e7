"""No code of a model repository runs: no Python file, no pickle, nothing that a config names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.hub.repositories import CONFIG, TEXT, sharded
from tests.hub.server import Hub
from tests.hwcalc.command import Capture, run

EVIL: Final = {
    **CONFIG,
    "auto_map": {"AutoConfig": "configuration_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.EvilModel"},
    "custom_pipelines": {"evil": {"impl": "modeling_evil.EvilPipeline"}},
    "trust_remote_code": True,
}
CODE: Final = "from pathlib import Path\nPath('it-ran').touch()\nclass EvilConfig: pass\nclass EvilModel: pass\n"


@pytest.mark.parametrize("model_type", ["llama", "evil"])
def test_a_folder_with_code(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, model_type: str) -> None:
    """It is planned, or refused, by its config alone."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(EVIL | {"model_type": model_type, "architectures": ["EvilModel"]}))
    for name in ("configuration_evil.py", "modeling_evil.py", "__init__.py", "sitecustomize.py"):
        (folder / name).write_text(CODE)
    (folder / "pytorch_model.bin").write_bytes(b"cposix\nsystem\n(S'touch it-ran'\ntR.")
    monkeypatch.chdir(folder)
    for words in (["."], ["explain", "."], ["sweep", "--seq", "1k", "."]):
        status, out, err = run(capsys, *words)

        assert status in {0, 3}
        assert "Traceback" not in out + err
    assert not (folder / "it-ran").exists()


def test_the_hub_is_asked_for_no_code(hub: Path, loopback: Hub, capsys: Capture) -> None:
    """Only for JSON files and weight files, whatever else is there and whatever the config names."""
    loopback.add(
        "org/evil",
        {"config.json": json.dumps(EVIL).encode(), "modeling_evil.py": CODE.encode(), "configuration_evil.py": CODE.encode()},
    )
    loopback.add("org/plain", {"config.json": TEXT, "modeling_evil.py": CODE.encode(), **sharded(2)})
    for model in ("org/evil", "org/plain"):
        assert run(capsys, model, "--seq", "1k")[0] == 0

    assert loopback.paths()
    assert {path.rpartition(".")[2] for path in loopback.paths()} <= {"json", "safetensors"}
