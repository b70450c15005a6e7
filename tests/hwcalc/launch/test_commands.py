"""Commands are read by the rules of their engines. Expected values follow the engines' own parsers, as ``profiles/engines/*/flags.yaml`` cites them."""

from __future__ import annotations

import pytest

from hwcalc import read_launch


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        # vLLM: k is 1,000 and K is 1,024; a fraction only of the decimal units.
        ("vllm serve org/m --max-model-len 32k", "max_model_len", 32_000),
        ("vllm serve org/m --max-model-len 32K", "max_model_len", 32_768),
        ("vllm serve org/m --max-num-batched-tokens=25.6k", "max_num_batched_tokens", 25_600),
        ("vllm serve org/m --max-model-len auto", "max_model_len", "auto"),
        ("vllm serve org/m --gpu-memory-util 0.8", "gpu_memory_utilization", 0.8),
        ("vllm serve org/m --max_num_seqs 3", "max_num_seqs", 3),
        ("vllm serve org/m -tp=4", "tp", 4),
        ("vllm serve org/m -tp 2 -tp 8", "tp", 8),
        ("vllm serve --served-model-name a --dtype half org/m", "model", "org/m"),
        ("python3 -u -m vllm.entrypoints.openai.api_server --model org/m", "model", "org/m"),
        ("TP=2 && vllm serve org/m --tensor-parallel-size $TP", "tp", 2),
        ("vllm serve org/m --tensor-parallel-size ${TP:-8}", "tp", 8),
        ("vllm serve org/m --max-model-len $((1 << 14))", "max_model_len", 16_384),
        ("vllm serve org/m --max-model-len $(((3 + 1) * 256 >> 2))", "max_model_len", 256),
        ("GPUS=(0 1 5)\nvllm serve org/m -tp ${#GPUS[@]}", "tp", 3),
        ("M=org/m-0.6B\nvllm serve ${M/0.6B/8B}", "model", "org/m-8B"),
        ("if false; then\n  vllm serve org/n\nfi\nvllm serve org/m", "model", "org/m"),
        ("docker run -e A=1 vllm/vllm-openai:v0.9.1 --model org/m", "engine_version", "0.9.1"),
        ("docker run lmcache/vllm-openai:v0.3.7 --model org/m", "engine_version", None),
        ("mistralrs-server --port 1234 --isq q4k plain -m org/m -a llama", "model", "org/m"),
        ("mistralrs-server --port 1234 --isq q4k plain -m org/m -a llama", "quantization", "q4k"),
        ("./mistralrs-server gguf -m org/m-GGUF -f m-Q4_K_M.gguf -t org/m", "model", "org/m-GGUF"),
        ("./mistralrs-server gguf -m org/m-GGUF -f m-Q4_K_M.gguf -t org/m", "weights", "Q4_K_M (file m-Q4_K_M.gguf)"),
        ("mistralrs-server -p 1 --pa-gpu-mem-usage 0.8 vision-plain -m org/m", "gpu_memory_utilization", 0.8),
        ("sglang serve --model-path org/m --tp 2", "tp", 2),
        ("./llama-server -m m-Q4_K_M.gguf -c 4096 -np 2", "slots", 2),
        ("llama-server -hf org/m-GGUF:Q8_0", "weights", "Q8_0"),
        ("trtllm-serve org/m --max_seq_len 4096", "max_model_len", 4096),
        ("text-generation-launcher --model-id org/m --num-shard 2", "tp", 2),
        ("lmdeploy serve api_server org/m --quant-policy 8", "kv_cache_dtype", "int8"),
        ("OLLAMA_NUM_PARALLEL=3 ollama serve", "slots", 3),
        ("mistralrs serve -m org/m --pa-cache-type f8e4m3", "kv_cache_dtype", "f8e4m3"),
        ("docker run ghcr.io/ericlbuehler/mistral.rs:cuda-90 serve text -m org/m --max-seqs 8", "max_num_seqs", 8),
    ],
)
def test_a_flag(text: str, key: str, value: object) -> None:
    """One server, with the value in the engine's units."""
    [server] = read_launch(text)

    assert value == server.to_dict()[key]


@pytest.mark.parametrize(
    "text",
    [
        "docker rm $(docker ps -q --filter ancestor=vllm/vllm-openai)",
        'pkill -f "vllm serve"',
        "vllm bench serve --model m",
        "vllm serve --help",
    ],
)
def test_no_server(text: str) -> None:
    """Nothing that starts a server."""
    assert [] == read_launch(text)


def test_each_setting_has_its_line() -> None:
    """In a list, in a script of a manifest, and in a command."""
    text = """kind: Pod
apiVersion: v1
spec:
  containers:
    - image: vllm/vllm-openai
      args:
        - --model=org/m
        - -tp=2
    - image: vllm/vllm-openai
      command: [sh, -c]
      args:
        - |
          echo hello
          vllm serve org/n \\
            --max-num-seqs 3
"""
    first, second = read_launch(text)

    assert {"model": 7, "tp": 8} == first.lines
    assert {"model": 14, "max_num_seqs": 15} == second.lines
    assert {"model": 2, "tp": 3} == read_launch("# one\nvllm serve org/m \\\n  -tp 2\n")[0].lines


@pytest.mark.parametrize(
    "text",
    [
        "GPUS=$(nvidia-smi -L | wc -l)\nMODEL=$(cat model.txt)\nvllm serve $MODEL -tp $GPUS",
        "export GPUS=$(nvidia-smi -L | wc -l)\ndeclare MODEL=$(cat model.txt)\nvllm serve ${MODEL} -tp ${GPUS}",
        "if [ -f model.txt ]; then MODEL=$(cat model.txt); GPUS=`wc -l < gpus`; fi\nvllm serve $MODEL -tp $GPUS",
        "bash -c 'GPUS=$(nvidia-smi -L | wc -l); MODEL=$(cat model.txt); vllm serve $MODEL -tp $GPUS'",
        "services:\n  a:\n    image: vllm/vllm-openai\n    entrypoint: [sh, -c]\n    command: ['MODEL=$$(cat m); GPUS=$$(cat g); vllm serve $$MODEL -tp $$GPUS']\n",
    ],
)
def test_a_given_value_wins_over_one_that_cannot_be_known(text: str) -> None:
    """Else nothing could be said of what a script looks up."""
    [server] = read_launch(text, env={"MODEL": "org/m", "GPUS": "2"})

    assert (server.model, server.tp) == ("org/m", 2)
    assert server.unresolved == ()


def test_a_variable_of_a_server_that_a_script_looks_up() -> None:
    """Its environment has the value that was given; one that the text states stays."""
    text = "{}MODEL_ID=$(cat m){}text-generation-launcher --max-total-tokens $LEN"
    for begin, end in (("export ", "\n"), ("", " ")):
        [server] = read_launch(f"LEN=4096\n{text.format(begin, end)}", env={"MODEL_ID": "org/m", "LEN": "8192"})
        assert (server.model, server.max_model_len) == ("org/m", 4096)


_ARRAY = "ARGS+=(--kv-cache-dtype fp8)"
_LISTS = [
    # What bash gives for FP8= and for FP8=1.
    ('[ -n "$FP8" ] && {}', "auto", "fp8"),
    ("[[ -n $FP8 ]] && {}", "auto", "fp8"),
    ('test -n "$FP8" && {}', "auto", "fp8"),
    ('[ "$FP8" = 1 ] &&\n  {}', "auto", "fp8"),
    ('[ -z "$FP8" ] || {}', "auto", "fp8"),
    ('! [ -z "$FP8" ] \\\n  && {}', "auto", "fp8"),
    ('[ -n "$FP8" ] && { echo smaller; {}; }', "auto", "fp8"),
    ('if true; then [ -n "$FP8" ] && {}; fi', "auto", "fp8"),
    ('[ -n "$FP8" ] && true || {}', "fp8", "auto"),
    ('[ -n "$FP8" ] && A=1 && {} || A=2', "auto", "fp8"),
    ('[ -n "$FP8" ] || false && {}', "auto", "fp8"),
    ("[[ x$FP8 == *1 ]] && {}", "auto", "fp8"),
    ('[[ x$FP8 == *"*"* ]] || [ -n "$FP8" ]; {}', "fp8", "fp8"),
    ("true && {}", "fp8", "fp8"),
    ("true || {}", "auto", "auto"),
    ("false && {}", "auto", "auto"),
    ("false || {}", "fp8", "fp8"),
    ("false && A=1; {}", "fp8", "fp8"),
]


@pytest.mark.parametrize(("text", "without", "given"), _LISTS)
@pytest.mark.parametrize("sets", [_ARRAY, "KV=fp8", "export KV=fp8"])
def test_a_list_whose_condition_is_known(text: str, without: str, given: str, sets: str) -> None:
    """It is followed: of what surely does not run, nothing is set."""
    for value, expected in (("", without), ("1", given)):
        line = text.replace("{}", sets)
        [server] = read_launch(f'KV=auto\nARGS=()\nFP8={value}\n{line}\nvllm serve org/m --kv-cache-dtype $KV "${{ARGS[@]}}"\n')
        assert server.kv_cache_dtype == expected


@pytest.mark.parametrize(
    "condition", ["[ -f x ]", '[ "$A" = 1 ]', "grep -q fp8 x", '[ -n "$A" ]', '[ -n "$B" ]', "true", "false"]
)
@pytest.mark.parametrize("sets", [_ARRAY, "KV=fp8", "NEW=2"])
def test_a_list_is_read_as_the_if_of_its_condition(condition: str, sets: str) -> None:
    """Also where nobody knows whether it holds."""

    def read(line: str, env: dict[str, str]) -> object:
        text = f'B=$(cat b)\nKV=auto\n{line}\nvllm serve org/m --kv-cache-dtype $KV -tp ${{NEW:-1}} "${{ARGS[@]}}"'
        [server] = read_launch(text, env=env)
        return {key: value for key, value in server.to_dict().items() if key not in ("lines", "line")}

    for env in ({}, {"A": "1"}, {"A": ""}):
        assert read(f"{condition} && {sets}", env) == read(f"if {condition}; then {sets}; fi", env)
        assert read(f"{condition} || {sets}", env) == read(f"if {condition}; then :; else {sets}; fi", env)
        assert read(f"{condition} && {sets} || KV=fp8_e5m2", env) == read(
            f"if {condition}; then {sets}; else KV=fp8_e5m2; fi", env
        )
        assert read(f"if true && {condition}; then {sets}; fi", env) == read(f"if {condition}; then {sets}; fi", env)


def test_a_list_that_a_given_value_decides() -> None:
    """As the environment of the script would."""
    text = 'FP8=${FP8:-}\nARGS=()\n[ -n "$FP8" ] && ARGS+=(--kv-cache-dtype fp8)\nvllm serve org/m "${ARGS[@]}"'

    assert [read_launch(text, env=env)[0].kv_cache_dtype for env in ({}, {"FP8": "1"})] == [None, "fp8"]


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("false && vllm serve org/a; vllm serve org/b", ["org/b"]),
        ("[ -f x ] && vllm serve org/a || vllm serve org/b", ["org/a", "org/b"]),
        ("[ -f x ] || {\n  echo no x\n  exit 1\n}\nvllm serve org/a", ["org/a"]),
        ('G=$(cat g)\nM=org/a\n[ -n "$G" ] || G=1\nfalse && M=org/b\nvllm serve $M', ["org/a"]),
        ("if false; then M=org/a; else M=org/b; fi\nvllm serve $M", ["org/b"]),
        ("M=org/a\nif [ -f x ]; then :; elif true; then M=org/b; else M=org/c; fi\nvllm serve $M", ["org/a"]),
        ("M=org/a\ncd /srv && M=org/b vllm serve org/c", ["org/c"]),
    ],
)
def test_servers_of_a_list(text: str, models: list[str]) -> None:
    """One that surely does not run is none, and one that may run is one."""
    assert models == [server.model for server in read_launch(text)]
