"""Which variables the words of a container are filled in with: those of who fills in the manifest, or those that the container has.

Sources: Compose fills ``${A}`` in from the shell and from ``.env`` before a container has its ``environment`` (Compose's reference,
"Interpolation"), and leaves ``$$A`` to a shell in it; the kubelet puts in ``$(A)`` of ``env`` alone (Kubernetes, "Define Dependent
Environment Variables").
"""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc.launch.read import read_launch

COMPOSE: Final = """\
services:
  chat:
    image: vllm/vllm-openai:v0.33.0
    environment: {{MAX_LEN: "8192"}}
    {words}
"""
KUBERNETES: Final = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: llm}}
spec:
  template:
    spec:
      containers:
        - name: chat
          image: vllm/vllm-openai:v0.33.0
          {words}
          env: [{{name: MAX_LEN, value: "8192"}}]
"""
SERVE: Final = "vllm serve Qwen/Qwen3-8B --max-model-len"


@pytest.mark.parametrize(
    ("manifest", "words", "length"),
    [
        (COMPOSE, 'command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "${MAX_LEN:-65536}"]', 65_536),
        (COMPOSE, 'command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "${MAX_LEN}"]', None),
        (COMPOSE, "command: --model Qwen/Qwen3-8B --max-model-len ${MAX_LEN}", None),
        (COMPOSE, f'entrypoint: ["sh", "-c", "{SERVE} $$MAX_LEN"]', 8192),
        (KUBERNETES, 'args: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "$(MAX_LEN)"]', 8192),
        (KUBERNETES, 'args: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "${MAX_LEN}"]', None),
        (KUBERNETES, f'command: ["sh", "-c", "{SERVE} $MAX_LEN"]', 8192),
    ],
)
def test_a_variable_of_the_container_is_not_that_of_the_manifest(manifest: str, words: str, length: int | None) -> None:
    """One that only the container has leaves a value of the manifest open. What the user gives counts more than either."""
    text = manifest.format(words=words)
    (server,) = read_launch(text)
    assert server.settings.get("max_model_len") == length
    (filled,) = read_launch(text, env={"MAX_LEN": "4096"})
    assert filled.settings.get("max_model_len") == 4096
