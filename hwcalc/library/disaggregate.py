"""Prompts and tokens on servers of their own: :func:`disaggregate`."""

from __future__ import annotations

from typing import Unpack

from hwcalc._version import __version__
from hwcalc.documents import SCHEMA_VERSION
from hwcalc.errors import UsageError
from hwcalc.library.plan import load_request
from hwcalc.model import Definition, ModelLike
from hwcalc.planner.apart import (
    Apart,
    Side,
    balanced,
    decode_options,
    decoded_per_s,
    end_of,
    limits_and_lengths,
    prompts_per_s,
    side_info,
    together_of,
    transfer_of,
)
from hwcalc.planner.asked import take_options
from hwcalc.planner.context import open_request
from hwcalc.planner.options import PlanOptions, takes
from hwcalc.units import parse_tokens


@takes(PlanOptions)
def disaggregate(
    model: ModelLike | None = None,
    *,
    decode_gpu: str | None = None,
    decode_gpus: int | str | None = None,
    decode_tp: int | str | None = None,
    decode_pp: int | str | None = None,
    decode_dp: int | str | None = None,
    decode_ep: int | str | None = None,
    prefill_servers: int | str | None = None,
    decode_servers: int | str | None = None,
    total_gpus: int | str | None = None,
    link: str | None = None,
    **options: Unpack[PlanOptions],
) -> Apart:
    """Plan two pools: servers that compute prompts, and servers that generate tokens, with the transfer of the cache between them.

    ``options`` are keywords of :func:`hwcalc.plan`, and those of hardware and layout are of a server for prompts; ``decode_gpu``, ``decode_tp`` and the like
    are those of a server for tokens, by default the same. ``ttft``, ``itl``, ``e2e`` and ``min_rate`` are the limits. The numbers of servers
    are ``prefill_servers`` and ``decode_servers``; or the fewest for ``rate`` requests per second; or those that serve most with
    ``total_gpus``, or for each GPU. ``link`` is what each GPU sends its part of a cache over: ``gpu`` (that between the GPUs of a node,
    the default), ``ib-ndr``, ``100gbe``. Raises a subclass of :class:`~hwcalc.errors.KvplanError`.
    """
    _, asked = take_options("disaggregate", options)
    own = {"gpu": decode_gpu, "gpus": decode_gpus, "tp": decode_tp, "pp": decode_pp, "dp": decode_dp, "ep": decode_ep}
    of_decode = {name: value for name, value in own.items() if value is not None}
    counts = {
        name: None if value is None else parse_tokens(value, name)
        for name, value in (("prefill_servers", prefill_servers), ("decode_servers", decode_servers), ("total_gpus", total_gpus))
    }
    first, second = counts["prefill_servers"], counts["decode_servers"]
    if (first is None) is not (second is None):
        raise UsageError(
            "one of two numbers of servers is given.", hint="Give both --prefill-servers and --decode-servers, or none."
        )
    if asked.gpu is None and asked.instance is None:
        raise UsageError("two pools need accelerators.", hint="Name that of the servers for prompts: --gpu h100")
    spec, request = load_request(model, asked)
    prefill_opened = open_request(spec, **request)
    _, decode_asked = take_options("disaggregate", of_decode)
    decode_opened = open_request(spec, **decode_options(request, decode_asked.values))
    limits, lengths = limits_and_lengths(prefill_opened, prefill_opened.setup.others)
    prefill, decode = Side(prefill_opened, limits, lengths), Side(decode_opened, limits, lengths)
    transfer = transfer_of(prefill, decode, link)
    prompts, busy = prompts_per_s(prefill, transfer.seconds, "expected")
    prompts_low, _ = prompts_per_s(prefill, transfer.seconds, "high")
    reading = end_of(prefill.reading(), "expected")
    decoded, users, limiting = decoded_per_s(decode, "expected", reading + transfer.seconds)
    decoded_low, _, _ = decoded_per_s(decode, "high", end_of(prefill.reading(), "high") + transfer.seconds)
    if first is None or second is None:
        first, second = balanced(prompts, decoded, (prefill.gpus, decode.gpus), counts["total_gpus"], limits.rate)
    served = min(first * prompts, second * decoded)
    at = served if limits.rate is None else min(served, limits.rate)
    taken = at * reading / (first * prefill.times.servers)
    waits = taken * reading / (2 * (1 - taken)) if taken < 1 else float("inf")
    # As many users as the rate has at once in each server, at most those that it holds.
    step = decode.decoding(max(1, users))
    per_step = end_of(step, "expected")
    first_token = waits + reading + transfer.seconds
    known = prefill.times.speed_class is not None and decode.times.speed_class is not None
    same = prefill.gpu.id == decode.gpu.id and prefill_opened.setup.parallel == decode_opened.setup.parallel
    gpus = first * prefill.gpus + second * decode.gpus
    classes = dict.fromkeys(side.times.speed_class.name for side in (prefill, decode) if side.times.speed_class is not None)
    return Apart(
        schema_version=SCHEMA_VERSION,
        kvplan_version=__version__,
        model=spec.id,
        engine=prefill_opened.engine.name,
        engine_version=prefill_opened.deployment.version or None,
        prompt_tokens=lengths[0],
        cached_tokens=lengths[1],
        output_tokens=lengths[2],
        prefill=side_info(
            prefill,
            first,
            prompts,
            prompts_low,
            prefill.reading(),
            "ttft" if limits.ttft is not None and busy < 0.9 else "time",
            busy=busy,
        ),
        decode=side_info(decode, second, decoded, decoded_low, step, limiting, users=users),
        transfer=transfer,
        gpus=gpus,
        requests_per_s=served,
        requests_per_s_low=min(first * prompts_low, second * decoded_low),
        limiting="prefill" if first * prompts <= second * decoded else "decode",
        holds=served > 0 and (limits.rate is None or served >= limits.rate * (1 - 1e-9)),
        ttft_s=first_token,
        itl_s=per_step / decode.times.accepted_tokens,
        e2e_s=first_token + decode.steps * per_step,
        output_tokens_per_s=served * lengths[2],
        together=together_of(prefill, gpus) if same and known else None,
        definition=Definition.ESTIMATE if known else Definition.BOUND,
        source="; ".join(classes) if known else "bound alone: nothing like it was measured",
        notes=tuple(dict.fromkeys((*prefill_opened.notes, *decode_opened.notes))),
    )
