"""``kvplan compare``: several models, dtypes, engines or accelerators side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from hwcalc.cli.lists import listed_options, plan_options, reading
from hwcalc.cli.options import OUTPUT, Option, progress, view_of
from hwcalc.cli.output import Answer, answer

__all__ = ["OPTIONS", "run"]

_LISTS: Final = {
    "seq": "Tokens per sequence: 32k, or several. Default: the smallest maximum of the models.",
    "batch": "Sequences alive at once, or several numbers. Default: 1.",
    "dtype": "KV-cache dtypes: bf16,fp8. See: kvplan dtypes. Default: the model's dtype.",
    "weights": "Weight formats: bf16,fp8. Default: as published.",
    "engine": "Whose rules: reference,vllm. See: kvplan engines. Default: reference.",
    "gpu": "Accelerators: l4,h100-sxm5-80gb. Default: none, and no verdict.",
    "tp": "Tensor parallel sizes: 1,2,4. Default: 1.",
}
OPTIONS: Final = (
    Option(
        "models",
        (),
        "MODEL...",
        "Ids, folders or config.json files, patterns of catalog ids ('Qwen/*'), or @FILE with one model on each line.",
        "list",
        complete="models",
    ),
    *listed_options(_LISTS),
    *OUTPUT,
)


def run(*, models: Sequence[str] | None, **options: Any) -> Answer:
    """Show several models, dtypes, engines or accelerators side by side: every combination of what is given as a list.

    The status is 1 if an accelerator is named and no variant fits.
    """
    from hwcalc.hardware.named import load_gpu
    from hwcalc.sweep.lists import model_names, numbers, words

    view = view_of(**{option.name: options[option.name] for option in OUTPUT})
    axes: dict[str, tuple[Any, ...]] = {
        **{name: words(options[name], name) or (None,) for name in ("engine", "dtype", "weights")},
        "gpu": tuple(dict.fromkeys(load_gpu(name, []).id for name in words(options["gpu"], "gpu"))) or (None,),
        **{name: numbers(options[name], name) for name in ("seq", "batch", "tp")},
    }
    axes["batch"] = axes["batch"] or (1,)
    axes["tp"] = axes["tp"] or (None,)
    names = model_names(models or (), every=False)
    further = plan_options(options, apart=(*_LISTS, *(option.name for option in OUTPUT)))

    from hwcalc.library.plan import load_model
    from hwcalc.sweep.variants import common_length, compared

    with progress():
        specs = [load_model(name, **reading(options)) for name in names]
        axes["seq"] = axes["seq"] or (common_length(specs),)
        comparison = compared(specs, axes, further)
    verdicts = {variant.fits for variant in comparison.variants} - {None}
    status = 1 if verdicts == {False} else 0
    if view.format == "json":
        from dataclasses import replace

        return replace(answer(asdict(comparison)), status=status)
    from hwcalc.report.compare import comparison_csv, comparison_text

    if view.format == "csv":
        return Answer(text=comparison_csv(comparison), status=status)
    return Answer(text=comparison_text(comparison, format_=view.format, color=view.color, width=view.width), status=status)
