"""The roofline where a part of the model lies in host memory: its layers run one after another, so the times of the devices add up.

What a device holds, it reads at the bandwidth of its own memory. That is a bound whoever multiplies: weights of the host are read from
there by its cores, or to be sent to a GPU. The operations of such a step are left out, since those of the host's cores are not known;
a prompt takes at least as long as if the GPU computed all of it, and as reading the weights for each pass over a batch of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from hwcalc.engines.devices import HOST, DeviceReads
from hwcalc.engines.steps import Step, step
from hwcalc.planner.weight_share import Use, WeightShare

if TYPE_CHECKING:
    from hwcalc.engines.devices import WeightRead
    from hwcalc.planner.speed_result import SpeedInfo

class Divided(NamedTuple):
    """What is asked of the devices: a step of ``batch`` sequences, of which one replica has ``sequences``, and a prompt."""

    batch: int
    sequences: float
    prompt_tokens: int
    stages: int
    bandwidth: float | None
    """Bytes per second of the accelerator's memory."""


def shares_of(places: Iterable[DeviceReads]) -> tuple[WeightShare, ...]:
    """The weights of all devices by format and use."""
    sums: dict[tuple[str, str, int, int], tuple[int, int]] = {}
    for place in places:
        for one in place.weights:
            key = (one.format, one.use, one.copies, one.active)
            elements, size = sums.get(key, (0, 0))
            sums[key] = elements + one.elements, size + one.bytes
    return tuple(
        WeightShare(format=form, use=Use(use), parameters=elements, bytes=size, copies=copies, active=active)
        for (form, use, copies, active), (elements, size) in sums.items()
    )


def is_divided(places: Sequence[DeviceReads]) -> bool:
    """Whether a step reads more than embeddings and caches of one memory after another: the general rule does not hold."""
    host = next((place for place in places if place.device == HOST), None)
    if host is not None and (host.cache_layers or any(one.use != "row" for one in host.weights)):
        return True
    return any(place.at_once > 1 for place in places)


def divided(
    whole: SpeedInfo, places: Sequence[DeviceReads], layer_bytes: Sequence[int], asked: Divided, computing: tuple[Step, ...]
) -> SpeedInfo:
    """The bound where the devices read one after another.

    ``whole`` is that of the same model on GPUs alone, ``layer_bytes`` what a step reads of each layer's cache for one sequence, and
    ``computing`` the step that computes a prompt on a GPU, if its rate is known. A device whose bandwidth is not known takes no time:
    what is left is still a bound.
    """
    reads = [_Reads.of(place, layer_bytes, asked) for place in places]
    known = [one for one in reads if one.rate and (one.weights or one.cache)]
    if not known:
        return whole
    times = {f"{one.device}_reading": (one.weights + one.cache) / one.rate for one in known}
    prompts = {f"{one.device}_prompt_reading": one.prompt_bytes / one.rate for one in known}
    step_s, prompt_s = sum(times.values()), sum(prompts.values())
    memory = "host memory bandwidth" if 2 * times.get(f"{HOST}_reading", 0) >= step_s else "memory bandwidth"
    steps = [*(one.step() for one in known), _sum("step_s", times)]
    steps.append(
        step("decode_tokens_per_s", "batch / step_s", asked.batch / step_s, unit="tokens/s", batch=asked.batch, step_s=step_s)
    )
    steps += [*(one.prompt_step() for one in known), _sum("prompt_reading", prompts), *computing]
    if computing and asked.stages > 1:
        terms = {computing[0].name: computing[0].expected, "pp": asked.stages}
        steps.append(step("prompt_stages", f"{computing[0].name} / pp", computing[0].expected / asked.stages, unit="s", **terms))
    last = {"prompt_reading": prompt_s} | ({steps[-1].name: float(steps[-1].expected)} if computing else {})
    longest = max(last.values())
    steps.append(step("prefill_s", f"max({', '.join(last)})" if computing else "prompt_reading", longest, unit="s", **last))
    return replace(
        whole,
        decode_tokens_per_s_bound=asked.batch / step_s,
        decode_step_s_bound=step_s,
        bound_by=memory,
        prefill_s_bound=longest,
        prefill_bound_by="compute" if longest > prompt_s else memory,
        weight_bytes_per_step=int(sum(one.weights for one in reads)),
        cache_bytes_per_step=int(sum(one.cache for one in reads)),
        steps=tuple(steps),
        source=f"{whole.source}; devices one after another, host memory at its own bandwidth",
    )


class _Reads(NamedTuple):
    """Bytes that one device reads for a step and for each pass of a prompt, and its bytes per second, 0 if they are not known."""

    device: str
    weights: float
    cache: float
    pass_weights: float
    passes: int
    last_pass: float
    rate: float

    @classmethod
    def of(cls, place: DeviceReads, layer_bytes: Sequence[int], asked: Divided) -> _Reads:
        rate = asked.bandwidth if place.gbps is None else place.gbps * 1e9
        tokens = min(asked.prompt_tokens, place.pass_tokens or asked.prompt_tokens)
        whole = sum(_touched(one, tokens) for one in place.weights if one.use != "last")
        return cls(
            device=place.device,
            weights=sum(_touched(one, asked.sequences) for one in place.weights),
            cache=asked.sequences * sum(layer_bytes[number] for number in place.cache_layers if number < len(layer_bytes)),
            pass_weights=max(0.0, whole - place.last_layer_bytes),
            # Of the tokens that are no whole pass, it is not sure which experts they use.
            passes=max(1, asked.prompt_tokens // max(1, tokens)) - 1,
            last_pass=whole + sum(one.bytes for one in place.weights if one.use == "last"),
            rate=(rate or 0) * place.at_once,
        )

    def step(self) -> Step:
        name = self.device
        terms = {f"{name}_weight_bytes": self.weights, f"{name}_cache_bytes": self.cache, f"{name}_bandwidth": self.rate}
        formula = f"({name}_weight_bytes + {name}_cache_bytes) / {name}_bandwidth"
        return step(f"{name}_reading", formula, (self.weights + self.cache) / self.rate, unit="s", **terms)

    def prompt_step(self) -> Step:
        name = self.device
        terms = {f"{name}_last_pass_bytes": self.last_pass, f"{name}_bandwidth": self.rate}
        formula = f"{name}_last_pass_bytes / {name}_bandwidth"
        if self.passes:
            terms |= {"earlier_passes": self.passes, f"{name}_pass_bytes": self.pass_weights}
            formula = f"(earlier_passes x {name}_pass_bytes + {name}_last_pass_bytes) / {name}_bandwidth"
        return step(f"{name}_prompt_reading", formula, self.prompt_bytes / self.rate, unit="s", **terms)

    @property
    def prompt_bytes(self) -> float:
        """Bytes of all passes of a prompt."""
        return self.passes * self.pass_weights + self.last_pass


def _touched(one: WeightRead, tokens: float) -> float:
    share = WeightShare(format=one.format, use=Use(one.use), parameters=0, bytes=one.bytes, copies=one.copies, active=one.active)
    return share.touched_bytes(tokens)


def _sum(name: str, times: Mapping[str, float]) -> Step:
    return step(name, " + ".join(times), sum(times.values()), unit="s", **times)
