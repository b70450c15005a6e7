"""The length of the encoder's output, to which a decoder's cross attention attends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hwcalc.engines.noted import Noted
from hwcalc.formulas import Encoder
from hwcalc.model import ModelSpec, Note

if TYPE_CHECKING:
    from hwcalc.engines.setup import Request


def has_cross(model: ModelSpec) -> bool:
    """Whether any layer attends to the output of an encoder."""
    tensors = (tensor for group in model.stack.groups for tensor in group.kind.tensors())
    return model.once("has_cross", lambda: any(isinstance(tensor.span, Encoder) for tensor in tensors))


def follows_output(model: ModelSpec, request: Request) -> bool:
    """Whether the encoder's output is taken to be as long as the sequence, since nobody says how long it is."""
    return has_cross(model) and request.encoder_seq is None and model.encoder_tokens is None


def encoder_length(model: ModelSpec, request: Request) -> Noted[int]:
    """Tokens of the encoder's output. A note says so if the length is a default."""
    if not has_cross(model):
        if request.encoder_seq is None:
            return Noted(0)
        return Noted(0, (Note(code="no-encoder", message="The model has no cross attention: --encoder-seq has no effect."),))
    if request.encoder_seq is not None:
        return Noted(request.encoder_seq)
    if model.encoder_tokens == 0:
        # A model of images without an image; the parser has added a note.
        return Noted(0)
    if model.encoder_tokens is not None:
        length, why = model.encoder_tokens, "the model's own"
    else:
        length, why = request.seq, "taken to be as long as the output"
    message = f"Encoder length {length:,}: {why}. Set it with --encoder-seq."
    return Noted(length, (Note(code="default-encoder-seq", message=message),))
