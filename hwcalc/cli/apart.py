"""``kvplan disaggregate``: prompts and tokens on servers of their own."""

from __future__ import annotations

from typing import Any, Final

from hwcalc.cli.options import OPTIONAL_MODEL, OUTPUT, Option, command, given_options, plan_options, reading, say_unreachable
from hwcalc.cli.output import Answer, formatted, view_of

SERVERS: Final = (
    Option(
        "decode_gpu",
        ("--decode-gpu",),
        "G",
        "Accelerator of a server for tokens. Default: --gpu.",
        complete="gpus",
        group="hardware",
    ),
    Option("decode_gpus", ("--decode-gpus",), "N", "How many of it in a server. Default: --gpus.", group="hardware"),
    *(
        Option(
            f"decode_{size}",
            (f"--decode-{size}",),
            "N",
            f"{words} parallel size of a server for tokens. Default: --{size}.",
            group="hardware",
        )
        for size, words in (("tp", "Tensor"), ("pp", "Pipeline"), ("dp", "Data"), ("ep", "Expert"))
    ),
    Option("prefill_servers", ("--prefill-servers",), "N", "Servers for prompts. Default: what balances.", group="hardware"),
    Option("decode_servers", ("--decode-servers",), "N", "Servers for tokens. Default: what balances.", group="hardware"),
    Option(
        "link",
        ("--link",),
        "L",
        "What each GPU sends a cache over: gpu (that between the GPUs of a node), ib-ndr, 100gbe, ... Default: gpu.",
        complete="links",
        group="hardware",
        short="Network of the cache: ib-ndr, 100gbe, ...",
    ),
)
"""Those of the two pools and what is between them."""
_OWN: Final = (
    *SERVERS,
    Option("total_gpus", ("--total-gpus",), "N", "GPUs of both pools together. Default: as many as balance.", group="hardware"),
)


@command(
    (OPTIONAL_MODEL, *plan_options("disaggregate"), *_OWN, *OUTPUT),
    {
        "How many servers of each kind balance?": "kvplan disaggregate Qwen/Qwen3-8B --engine vllm --seq 8k --gpu h100 --ttft 1s",
        "The best of 16 GPUs over InfiniBand": "kvplan disaggregate Qwen/Qwen3-8B --engine vllm --gpu h100 --total-gpus 16 --link ib-ndr",
        "The fewest for 10 requests a second, tokens on other GPUs": "kvplan disaggregate Qwen/Qwen3-8B --engine vllm --seq 8k --gpu h100 --decode-gpu h200 --rate 10",
    },
)
def disaggregate(*, model: str | None, **options: Any) -> Answer:
    """Plan prefill and decode on servers of their own.

    Two pools, the transfer of the cache between them, and their balance. Exit status 1: the limits cannot be kept. Options of hardware and layout are those of a server for prompts; those with --decode are of a server for tokens.
    """
    from hwcalc.library.disaggregate import disaggregate

    view, given = view_of(**options), given_options("disaggregate", options)
    own = {option.name: options[option.name] for option in _OWN if options.get(option.name) is not None}
    with reading(model, "disaggregate"):
        found = disaggregate(model, **own, **given)
    say_unreachable(found.notes)
    status = 0 if found.holds else 1
    from hwcalc.report.apart import apart_text

    return formatted(found, view, apart_text, status=status)
