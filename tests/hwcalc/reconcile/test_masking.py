"""Nothing that ``kvplan reconcile`` prints of a log holds a secret, wherever it stands and however it is quoted."""

from __future__ import annotations

import string
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwcalc.documents import dumps
from hwcalc.masking import masked
from hwcalc.reconcile import reconcile
from hwcalc.report.reconcile import reconcile_csv, reconcile_text
from hwcalc.report.view import View
from tests.effort import cases
from tests.hwcalc.command import Capture, run
from tests.hwcalc.reconcile.test_any_log import SMALL

NAMES: Final = (
    "api_key", "api-key", "apiKey", "API_KEYS", "AZURE_KEY", "AccountKey", "OPENAI_API_KEY", "token", "hf_token", "HF_TOKEN", "auth_tokens",
    "secret", "client_secret", "AWS_SECRET_ACCESS_KEY", "password", "passwd", "pwd", "db_pwd", "authorization", "Authorization",
    "proxy-authorization", "bearer", "Basic", "X-Amz-Signature", "signature", "X-Amz-Security-Token", "credential", "credentials", "cookie",
    "Set-Cookie",
)  # fmt: skip
FORMS: Final = (
    "'{name}': '{secret}'", "'{name}': ['{secret}']", "'{name}': [['other'], '{secret}']", "'{name}': ('{secret}', 4)", "'{name}': {{'x': '{secret}'}}",
    '"{name}": "{secret}"', '"{name}":["other","{secret}"]', '"{name}": "Basic {secret}"', "'{name}': 'Bearer {secret}'", "{name}='{secret}'",
    '{name}="{secret}"', "{name}=['{secret}']", "{name}={secret}", "{name}: {secret}", "{name}: Basic {secret}", "{name}=Bearer {secret}",
    "{name} = {secret}", "{name} {secret}", "--{name} {secret}", "--{name}={secret}", "-H '{name}: {secret}'", "https://host/x?a=1&{name}={secret}",
    "[(b'{name}', b'{secret}')]", "{name}=SecretStr('{secret}')", '{{\\"{name}\\": \\"{secret}\\"}}', "['--{name}', '{secret}']",
    "{name} is {secret}", "{name} => '{secret}'", "'{name}': 'two words {secret}'", "'{name}': 'it\\'s {secret}'", "<{name}>{secret}</{name}>",
    "env['{name}'] = '{secret}'",
)  # fmt: skip
SECRETS: Final = st.text(string.ascii_letters + string.digits + "+/=._-~", min_size=8, max_size=600).map(
    lambda text: f"Zq7{text}"
)
LINES: Final = (
    "non-default args: {{{secret}, 'max_model_len': 1024}}",
    "Initializing a V1 LLM engine (v0.33.0) with config: {secret}, max_seq_len=1024",
    "Available KV cache memory: 8.00 GiB {secret}",
    "({secret} pid=1) INFO # GPU blocks: 4096 {secret}",
    "Swapped 3 GiB of memory {secret}",
    "{secret} Swapped 3 GiB of memory",
)


@given(st.sampled_from(NAMES), st.sampled_from(FORMS), st.sampled_from(LINES), SECRETS)
@settings(max_examples=cases(80, 200))
def test_a_secret_is_in_no_output(name: str, form: str, line: str, secret: str) -> None:
    """Text, Markdown, CSV and JSON, with the lines that were not understood. What the log says of memory is read all the same."""
    stated = "Available KV cache memory: 8.00 GiB\n# GPU blocks: 4096\n"
    found = reconcile(SMALL, line.format(secret=form.format(name=name, secret=secret)) + "\n" + stated, verbose=True)
    texts = [reconcile_text(found, View(format=one, width=10_000)) for one in ("table", "markdown")]

    for text in (*texts, reconcile_csv(found), dumps(found.to_dict())):
        assert secret[:7] not in text
    assert {"available_bytes", "blocks"} <= {fact.name for fact in found.facts}


def test_the_facts_of_vllms_own_line(capsys: Capture, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keys are printed as a list. The settings beside them are read."""
    log = tmp_path_factory.mktemp("log") / "server.log"
    log.write_text(
        "non-default args: {'api_key': ['sk-live1234567890', 'plain99'], 'hf_token': 'word', 'max_model_len': 1024}\n"
        "Available KV cache memory: 8.00 GiB\n# GPU blocks: 4096\n",
        encoding="utf-8",
    )
    _, out, _ = run(capsys, "reconcile", "meta-llama/Llama-3.1-8B", "--log", str(log), "--json", "-v")

    assert "'api_key': ***, 'hf_token': ***, 'max_model_len': 1024}" in out
    assert not [secret for secret in ("live", "plain99", "'word'") if secret in out]
    assert '"max_model_len"' in out


@pytest.mark.parametrize(
    "text",
    [
        "GPU KV cache size: 1,043,072 tokens, max_num_batched_tokens=8192, num_key_value_heads=8",
        "tokenizer='org/name', tokenizer_mode=auto, skip_tokenizer_init=False, 'hf_token': None, token=''",
        "131072 bytes per token: 2 GiB, 0.5 MiB per token",
        "Maximum concurrency for 8,192 tokens per request: 4.61x",
    ],
)
def test_what_is_no_secret(text: str) -> None:
    """Counts of tokens, tokenizers and empty settings stay."""
    assert masked(text) == text
