"""Where words of commands stand in a text: what a finding points at, and what a change replaces."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc import read_launch
from tests.hwcalc.launch.test_texts import ROWS

BLOCK: Final = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai
    command: [bash, -c]
    args:
    - |
      export A=1
      vllm serve org/m \\
        --max-model-len 4096
"""
FOLDED: Final = """\
services:
  a:
    image: vllm/vllm-openai
    command: >
      --model org/m
      --max-model-len "4096"
"""
SERVE_CONFIG: Final = """\
apiVersion: ray.io/v1
kind: RayService
spec:
  serveConfigV2: |
    applications:
    - args:
        llm_configs:
        - model_loading_config: {model_id: org/m}
          engine_kwargs:
            max_model_len: 4096
"""
HERE: Final = "kubectl apply -f - <<EOF\napiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai\n    args: [--model, org/m, --max-model-len, '4096']\nEOF\n"
UNIT: Final = "[Service]\nExecStart=/usr/bin/vllm serve org/m \\\n  --port 1 \\\n  --max-model-len 4096\n"
SHARED: Final = """\
services:
  a: {image: vllm/vllm-openai, command: [org/m, --max-model-len, &n '4096']}
  b: {image: vllm/vllm-openai, command: [org/m, --max-model-len, *n]}
"""
VALUES: Final = "servingEngineSpec:\n  modelSpec:\n  - modelURL: org/m\n    vllmConfig:\n      maxModelLen: 4096\n"


@pytest.mark.parametrize(
    ("text", "line", "column", "written"),
    [
        ("# one\nvllm serve org/m \\\n  --max-model-len 4096\n", 3, 19, "4096"),
        ("vllm serve org/m --max-model-len=4096 > log", 1, 18, "--max-model-len=4096"),
        ("bash -c \"vllm serve org/m --x '{\\\"a\\\": 1}' --max-model-len 4096\"", 1, 60, "4096"),
        ('ARGS=(--max-model-len 4096)\nvllm serve org/m "${ARGS[@]}"\n', 1, 23, "4096"),
        ('FROM vllm/vllm-openai\nCMD ["--model", "org/m", \\\n  "--max-model-len", "4096"]\n', 3, 22, '"4096"'),
        (BLOCK, 11, 25, "4096"),
        (FOLDED, 6, 23, '"4096"'),
        (SERVE_CONFIG, 10, 28, "4096"),
        (HERE, 7, 45, "'4096'"),
        (UNIT, 4, 19, "4096"),
        (VALUES, 5, 20, "4096"),
        ("services:\r\n  a:\r\n    image: vllm/vllm-openai\r\n    command: --max-model-len 4096 org/m\r\n", 4, 30, "4096"),
    ],
)  # fmt: skip
def test_where_a_value_stands(text: str, line: int, column: int, written: str) -> None:
    """The line and the column, counted from 1, of the word that says it, with its quotes."""
    [server] = read_launch(text)
    spot = server.places["max_model_len"].spot

    assert (server.max_model_len, spot.line, spot.column, spot.written) == (4096, line, column, written)
    assert text.split("\n")[line - 1].startswith(written, column - 1)


@pytest.mark.parametrize(
    "text",
    [
        "LEN=4096\nvllm serve org/m --max-model-len $LEN\n",
        SHARED,
        "services:\n  a:\n    image: vllm/vllm-openai\n    command: --model {{ .Values.m }} --max-model-len 4096\n",
    ],
    ids=["a variable", "an anchor", "a template before it"],
)
def test_a_value_that_stands_nowhere_by_itself(text: str) -> None:
    """Its line is known, and no place at which it could be changed."""
    for server in read_launch(text):
        spot = server.places["max_model_len"].spot
        assert server.max_model_len == 4096
        assert spot.line > 1
        assert not spot.column or "4096" not in spot.written


def test_every_word_stands_where_it_says() -> None:
    """In texts of every kind: the text has it there, unless no column is said."""
    seen = 0
    for name, row in ROWS:
        lines = row["text"].split("\n")
        for server in read_launch(row["text"], row.get("env")):
            for spot in (word.spot for word in (*server.words, *server.places.values())):
                if spot.column and "\n" not in spot.written:
                    assert lines[spot.line - 1].startswith(spot.written, spot.column - 1), (name, spot)
                    seen += 1
    assert seen > 900
