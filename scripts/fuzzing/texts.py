"""Texts of other programs in the hands of the library: commands and manifests that start servers, and traces of requests.

They find what readers of shells, YAML and rows do with damage, at a tenth of the cost of a command.
"""

from __future__ import annotations

import json
import random
from typing import Final

from scripts.fuzzing.case import Case
from scripts.fuzzing.mutate import damaged_text, encoded

LARGEST: Final = 1024**2
LAUNCHES: Final = (
    'vllm serve Qwen/Qwen3-8B --tensor-parallel-size 2 --max-model-len 32k --kv-cache-dtype fp8 --speculative-config \'{"method": "ngram"}\'\n',
    'export TP=${TP:-4}\nfor one in a b; do echo "$one"; done\npython -m sglang.launch_server --model-path "$MODEL" \\\n  --tp "$TP" --mem-fraction-static .8 &\n',
    "llama-server -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M -c 16384 -np 4 -ngl 99 -ctk q8_0 -ot '.*exps=CPU'\n",
    'FROM vllm/vllm-openai:v0.11.0\nENV VLLM_USE_V1=1\nENTRYPOINT ["vllm", "serve"]\nCMD ["Qwen/Qwen3-8B", "--max-num-seqs=64"]\n',
    (
        "services:\n  chat:\n    image: vllm/vllm-openai:v0.20.0\n    environment: {HF_TOKEN: x}\n    command: >\n      --model Qwen/Qwen3-8B --gpu-memory-utilization 0.9\n"
        "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 2, capabilities: [gpu]}]}}}\n"
    ),
    (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: chat}\nspec:\n  replicas: 3\n  template:\n    spec:\n      nodeSelector: {nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3}\n"
        "      containers:\n      - name: vllm\n        image: vllm/vllm-openai:v0.12.0\n        command: [sh, -c]\n        args: ['vllm serve $(MODEL) --tensor-parallel-size 4']\n"
        "        env: [{name: MODEL, value: Qwen/Qwen3-8B}]\n        resources: {limits: {nvidia.com/gpu: '4'}}\n"
    ),
    (
        "servingEngineSpec:\n  modelSpec:\n  - {name: a, repository: vllm/vllm-openai, tag: v0.11.0, modelURL: Qwen/Qwen3-8B, replicaCount: 2, requestGPU: 1,\n"
        "     vllmConfig: {maxModelLen: 4096, extraArgs: [--enforce-eager]}}\n"
    ),
    "resources: {accelerators: 'H100:8', cloud: aws}\nnum_nodes: 2\nenvs: {M: Qwen/Qwen3-8B}\nrun: |\n  vllm serve $M --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE\n",
    "[Service]\nEnvironment=OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_KV_CACHE_TYPE=q8_0\nExecStart=/usr/bin/ollama serve\n",
    "models:\n  small:\n    cmd: |\n      ${bin} --model /models/a.gguf --port ${PORT} -c 32768\nmacros: {bin: /usr/bin/llama-server}\n",
    "FROM qwen3:8b\nPARAMETER num_ctx 32768\nPARAMETER num_gpu 20\n",
    "#!/bin/bash\n#SBATCH --gres=gpu:a100:4\n#SBATCH --nodes=2\nsrun trtllm-serve Qwen/Qwen3-8B --tp_size 8 --extra_llm_api_options o.yaml\n",
)
TRACES: Final = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,27\n",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,a,1.2,ChatGPT,472,18,490,Conversation log\n",
    '{"timestamp": 0, "input_length": 1100, "output_length": 500, "hash_ids": [0, 1, 2]}\n{"timestamp": 3000, "input_length": 1024, "output_length": 20, "hash_ids": [0, 7]}\n',
    '{"chat_id": 3, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 40, "output_length": 9, "type": "text", "turn": 1, "hash_ids": [5, 6, 7]}\n',
    '[{"id": "x", "conversations": [{"from": "human", "value": "a question"}, {"from": "gpt", "value": "an answer"}]}]',
    '{"backend": "vllm", "request_rate": "inf", "completed": 2, "input_lens": [100, 200], "output_lens": [7, 8], "start_times": [50.0, 52.5], "errors": ["", ""]}',
    "arrival,prompt,output,priority\n0,100,20,1\n0.5,200,30,0\n",
)
"""Texts of each kind, as their programs write them."""


def launch(chance: random.Random) -> Case:
    """A command, a script or a manifest, damaged; one in fifty is deep or long."""
    text = damaged_text(chance.choice(LAUNCHES), chance, chance.choice((0, 1, 1, 2, 4, 8)))
    if chance.random() < 0.1:
        text += chance.choice(("---\n", "\n", " && ")) + chance.choice(LAUNCHES)
    if chance.random() < 0.02:
        text = chance.choice(
            (
                "[",
                "{a: ",
                "- ",
                "${A:-",
                "$(",
                "`",
                '"',
                "'",
                "x: &a [*a, ",
                "A=1 ",
                "if true; then ",
                "((",
                "<<E\n",
                "!!python/object:os.system ",
            )
        ) * chance.choice((100, 3_000, 30_000))
    keywords = (
        {"env": {"MODEL": chance.choice(("Qwen/Qwen3-8B", "$MODEL", "${MODEL}", "", "x" * 5000))}}
        if chance.random() < 0.3
        else {}
    )
    return Case(
        family="launch",
        words=(json.dumps(keywords), "plan" if chance.random() < 0.1 else "read"),
        files={"text": encoded(text)[:LARGEST]},
    )


def trace(chance: random.Random) -> Case:
    """A file of requests, damaged; its name says nothing of its format."""
    text = chance.choice(TRACES)
    text = damaged_text(text * chance.choice((1, 1, 5)), chance, chance.choice((0, 1, 1, 2, 4)))
    if chance.random() < 0.01:
        text = chance.choice(("[", '{"a":', "9", ",", "\n", '"', "0,1\n")) * 30_000
    data = encoded(text)[:LARGEST]
    if chance.random() < 0.03:
        data = chance.choice((b"PAR1", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd")) + data
    return Case(family="trace", words=(), files={"trace": data})


def called_launch(case: Case) -> None:
    """Read the text of a case of :func:`launch`, and plan what it starts. Raises what the library raises."""
    import hwcalc

    keywords, wanted = case.words
    servers = hwcalc.read_launch(case.files["text"].decode("utf-8", "replace"), **json.loads(keywords))
    for server in servers:
        json.dumps(server.to_dict())
    if wanted == "plan" and servers:
        json.dumps(hwcalc.plan(servers[0], offline=True).to_dict())


def called_trace() -> None:
    """Read the file of a case of :func:`trace` in the current folder, and say what it is. Raises what the library raises."""
    import hwcalc

    repr(hwcalc.workload("trace").summary())
