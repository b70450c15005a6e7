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
    ("manifest", "words", "length", "given"),
    [
        (COMPOSE, 'command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "${MAX_LEN:-65536}"]', 65_536, 4096),
        (COMPOSE, 'command: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "${MAX_LEN}"]', None, 4096),
        (COMPOSE, "command: --model Qwen/Qwen3-8B --max-model-len ${MAX_LEN}", None, 4096),
        (COMPOSE, f'entrypoint: ["sh", "-c", "{SERVE} $$MAX_LEN"]', 8192, 8192),
        (COMPOSE, f'entrypoint: ["sh", "-c", "{SERVE} $MAX_LEN"]', None, 4096),
        (COMPOSE, f"entrypoint: sh -c '{SERVE} ${{{{MAX_LEN:-2048}}}}'", 2048, 4096),
        (COMPOSE, f'entrypoint: ["sh", "-c", "export MAX_LEN=2048; {SERVE} $MAX_LEN"]', None, 4096),
        (COMPOSE, f'entrypoint: ["sh", "-c", "export MAX_LEN=2048; {SERVE} $${{{{MAX_LEN}}}}"]', 2048, 2048),
        (COMPOSE, f'entrypoint: ["sh", "-c", "exec sh -c \'{SERVE} $MAX_LEN\'"]', None, 4096),
        (KUBERNETES, 'args: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "$(MAX_LEN)"]', 8192, 4096),
        (KUBERNETES, 'args: ["--model", "Qwen/Qwen3-8B", "--max-model-len", "${MAX_LEN}"]', None, 4096),
        (KUBERNETES, f'command: ["sh", "-c", "{SERVE} $MAX_LEN"]', 8192, 4096),
    ],
)
def test_a_variable_of_the_container_is_not_that_of_the_manifest(
    manifest: str, words: str, length: int | None, given: int
) -> None:
    """One that only the container has leaves a value of the manifest open. What the user gives fills in Compose's text, and no container."""
    text = manifest.format(words=words.replace("{{", "{").replace("}}", "}"))
    (server,) = read_launch(text)
    assert server.settings.get("max_model_len") == length
    (filled,) = read_launch(text, env={"MAX_LEN": "4096"})
    assert filled.settings.get("max_model_len") == given


@pytest.mark.parametrize(
    ("passed", "slots"),
    [
        ("{}", None),
        ("[OLLAMA_NUM_PARALLEL]", 8),
        ("{OLLAMA_NUM_PARALLEL: }", 8),
        ('["OLLAMA_NUM_PARALLEL=${OLLAMA_NUM_PARALLEL}"]', 8),
    ],
)
def test_what_the_user_gives_is_in_a_container_where_the_service_passes_it_on(passed: str, slots: int | None) -> None:
    """A name without a value has that of the shell that runs Compose; without the name the container has none (Compose's reference, "environment")."""
    (server,) = read_launch(
        f"services: {{ollama: {{image: 'ollama/ollama:0.11.0', environment: {passed}}}}}", env={"OLLAMA_NUM_PARALLEL": "8"}
    )
    assert server.settings.get("slots") == slots


def test_what_a_script_of_a_container_leaves_open_is_closed_by_what_the_user_says() -> None:
    """``$$A`` of no ``environment`` is the container's: who knows it says it."""
    text = COMPOSE.format(words=f'entrypoint: ["sh", "-c", "{SERVE} $$LENGTH"]')
    assert [server.max_model_len for server in read_launch(text)] == [None]
    assert [server.max_model_len for server in read_launch(text, env={"LENGTH": "4096"})] == [4096]
