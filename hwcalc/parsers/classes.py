"""What the class that a document names says of the model: which half of it there is, and which head."""

from __future__ import annotations

from hwcalc.parsers.config import Config

__all__ = ["architecture", "form", "predicts_words"]


def architecture(config: Config) -> str:
    """The first class in ``architectures``, or an empty string."""
    names = config.raw.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else ""
    return first if isinstance(first, str) else ""


def form(config: Config) -> str | None:
    """Which parts of an encoder-decoder model the class has, ``None`` for a class with a head for another task.

    ``both`` (with a head; also where no class is named), ``text`` (the same of a model that hears and reads, without its
    ears), ``decoder``, ``encoder``, or ``body`` (both without a head).
    """
    name = architecture(config)
    if not name or name.endswith(("ForConditionalGeneration", "MTModel", "ForSpeechToText")):
        return "both"
    if name.endswith("ForTextToText"):
        return "text"
    if name.endswith("ForCausalLM"):
        return "decoder"
    if name.endswith("EncoderModel"):
        return "encoder"
    return "body" if name.endswith("Model") else None


def predicts_words(config: Config) -> bool | None:
    """Whether the class has a head for words; ``None`` for one that has neither such a head nor none at all."""
    name = architecture(config)
    if not name or name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForMaskedLM", "Decoder")):
        return True
    return False if name.endswith(("Model", "GenerationEncoder")) else None
