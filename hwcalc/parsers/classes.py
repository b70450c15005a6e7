"""What the class named in a document tells about the model: which parts it has, and which head."""

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

    ``both`` (with a head; also if no class is named), ``text`` (both with a head, of a model that has encoders of speech and of
    text, without the one of speech), ``decoder``, ``encoder``, or ``body`` (both without a head).
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
    """Whether the class has a head that predicts words. ``None`` for a class with a head for another task."""
    name = architecture(config)
    if not name or name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead", "ForMaskedLM", "Decoder")):
        return True
    return False if name.endswith(("Model", "GenerationEncoder")) else None
