"""Find the description of a model. :func:`resolve` takes a path or a name, :func:`resolve_stream` takes an open file.

The order is explicit path, Hugging Face cache, catalog, Hub, so a model on this machine needs no network. With a revision, an
endpoint or a token, the Hub comes before the catalog. A name that is no id is taken for the only model here that it can mean, with a
note; two are never guessed between. Every :class:`~hwcalc.model.RawModel` names its source. Remote code never
runs.

This module asks the sources in order (``request``: the question and its answers). ``local`` reads a path, a folder or a stream, ``document``
any config document; ``caches`` is what is kept of the Hub here, ``built_in`` the catalog, ``ollama`` Ollama's store, ``gguf`` files of that
format. ``hub`` reads from the Hub through ``hub_client``, the one module with a network, and ``weights`` the headers of safetensors files.
``listing`` knows the names on this machine and what a short one means, ``nearest`` similar ones. ``refresh`` writes to the user's catalog.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from hwcalc.errors import HubError, KvplanError, ModelNotFoundError, UsageError
from hwcalc.model import OLLAMA, Note, RawModel
from hwcalc.profiles.catalog import is_model_id
from hwcalc.sources.built_in import find_in_catalog
from hwcalc.sources.caches import cache_place, cached_weights, keep_weights, locate
from hwcalc.sources.local import from_path, from_standard_input, has_path_syntax, read_config, resolve_stream, weights_beside
from hwcalc.sources.request import Absent, Wanted, split_revision
from hwcalc.text import brief, operand, printable, shell_word, shown

__all__ = ["find_cached", "resolve", "resolve_stream"]

_LIKE_OLLAMA: Final = r"[a-z0-9][a-z0-9._-]*:[a-z0-9][A-Za-z0-9._-]*"
"""A name as ``ollama list`` prints it: llama3.1:8b."""
_HUB_ADDRESS: Final = r"(?s)(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+).*"
_SPOKEN: Final = r"(?a)(?!(?i:bearer) )[a-zA-Z][\w.-]{0,23}(?: +[\w.-]{1,24}){1,7}"
"""A name as people say it: Llama 3.1 8B. A header with a token in it is none."""
_LONGEST = 4096


def resolve(
    model: str | os.PathLike[str],
    *,
    revision: str | None = None,
    offline: bool = False,
    token: str | None = None,
    endpoint: str | None = None,
    weights: bool = False,
    refresh: bool = False,
) -> RawModel:
    """Find the description of ``model``: a path (``-`` is standard input) or an id, ``org/name`` or ``org/name@revision``.

    Names of GGUF files: ``org/name:Q4_K_M``, ``org/name:file.gguf``, ``org/name/file.gguf``, and ``ollama:NAME`` for Ollama's store.

    A string is a path if it is written as one (``./x``, ``x.json``) or if a file or folder of that name exists. A folder whose
    name looks like an id is ignored if it has no ``config.json``. A path object is always a path.

    ``offline`` (or ``HF_HUB_OFFLINE``) forbids the network. ``token`` and ``endpoint`` override ``HF_TOKEN`` and ``HF_ENDPOINT``.
    ``weights`` also reads the headers of the weight files. ``refresh`` asks the Hub first, even if this machine has the model. If
    the Hub cannot be reached, the cache or the catalog may answer instead, with a note of the code ``hub-unreachable``.

    Raises :class:`~hwcalc.errors.ModelNotFoundError` if no source has the model, :class:`~hwcalc.errors.ConfigError` if its
    description cannot be read, :class:`~hwcalc.errors.UsageError` for a malformed revision, and :class:`~hwcalc.errors.HubError` if the Hub refuses, or if it cannot be reached and no other source
    has the model.
    """
    text = os.fsdecode(os.fspath(model))
    if not text or "\0" in text or len(text) > _LONGEST:
        raise _not_a_model(text)
    if not isinstance(model, str):
        return _without_revision(from_path(Path(text), weights=weights), revision)
    if not os.path.lexists(text):
        # Blanks come along where a name is copied, and stand for hyphens where it is spoken: Llama 3.1 8B.
        text = text.strip() or text
        text = re.sub(" +", "-", text) if re.fullmatch(_SPOKEN, text) else text
    if text == "-":
        return _without_revision(from_standard_input(), revision)
    # An id that is no file here needs no path.
    path = None if is_model_id(text) and not os.path.lexists(text) else Path(os.path.expanduser(text))
    here = path is not None and os.path.lexists(path)
    if path is not None and here:
        # A folder whose name looks like an id is a model only with its config.
        empty = is_model_id(text) and os.path.isdir(path) and not os.path.lexists(path / "config.json")
        if not empty:
            return _without_revision(from_path(path, weights=weights), revision)
    if text.lower().startswith(OLLAMA):
        from hwcalc.sources.ollama import find_in_ollama

        return _without_revision(find_in_ollama(text[len(OLLAMA) :]), revision)
    access = Wanted(id="", offline=offline or _forbidden(), token=token, endpoint=endpoint, weights=weights)
    if (":" in text or text.lower().endswith(".gguf")) and (found := _as_gguf(text, revision, access, refresh=refresh)):
        return found
    name, is_path = text.partition("@")[0], has_path_syntax(text)
    if is_path or not (is_model_id(name) or is_model_id(f"org/{name}")):
        if not is_path or re.fullmatch(_HUB_ADDRESS, text):
            raise _not_a_model(text)
        raise ModelNotFoundError(
            f"there is no file or folder {shown(text)}.",
            hint="Give a folder with a config.json, a config.json, or an id such as Qwen/Qwen3-8B (kvplan models lists what is built in).",
        )
    model_id, asked = split_revision(text, revision)
    folder = [Absent(place="the folder of that name here (it has no config.json)")] if here else []
    return _ask(replace(access, id=model_id, revision=asked), folder, refresh=refresh)


def _as_gguf(text: str, revision: str | None, access: Wanted, *, refresh: bool) -> RawModel | None:
    """The model of a GGUF file on the Hub; ``None`` if the text is something else."""
    from hwcalc.sources.gguf.names import gguf_name

    named = None if has_path_syntax(text) else gguf_name(text)
    if named is None:
        if not text.lower().endswith(".gguf") or re.fullmatch(_HUB_ADDRESS, text):
            return None
        # As a path it is not there, which the error says.
        return from_path(Path(os.path.expanduser(text)))
    model_id, asked = split_revision("@".join(filter(None, (named.repository, named.revision))), revision)
    return _ask(replace(access, id=model_id, revision=asked, file=named.file), [], refresh=refresh)


def _order(wanted: Wanted, *, refresh: bool) -> tuple[str, ...]:
    """The sources in the order in which they are asked. The first one that has the model answers."""
    if wanted.file is not None:
        return ("hub", "header", "base") if refresh else ("header", "hub", "base")
    if refresh:
        return "hub", "cache", "catalog"
    if wanted.endpoint:
        return "cache", "header", "hub", "catalog", "name"
    if wanted.revision or wanted.token:
        return "cache", "header", "name", "hub", "catalog"
    return "cache", "catalog", "header", "name", "hub", "base"


def _answer(source: str, wanted: Wanted) -> RawModel | Absent:
    """A source's answer.

    It is the Hugging Face ``cache``, the ``catalog``, GGUF files and headers that are here (``header``), the only model here that the
    ``name`` can mean, the ``hub``, or the model of the catalog that a GGUF repository was made from (``base``).
    """
    if source == "cache":
        return find_cached(wanted)
    if source == "catalog":
        return find_in_catalog(wanted)
    if source == "name":
        from hwcalc.sources.listing import meant

        found = meant(wanted.id)
        if found is None:
            return Absent(place="")
        raw = _ask(replace(wanted, id=found[0]), [], refresh=False)
        return replace(raw, notes=(Note(code="model-name", message=found[1]), *raw.notes))
    if source == "hub" and wanted.offline:
        return Absent(place="the Hugging Face Hub, which was not asked (offline)")
    if source == "hub":
        from hwcalc.sources.hub import find_on_hub

        return find_on_hub(wanted)
    from hwcalc.sources.gguf.hub import find_base, find_gguf_here

    return find_gguf_here(wanted) if source == "header" else find_base(wanted)


def find_cached(wanted: Wanted) -> RawModel | Absent:
    """The model from the cache. Raises :class:`~hwcalc.errors.ConfigError` for a broken config."""
    located = locate(wanted.id, wanted.revision)
    if isinstance(located, str):
        return Absent(place=f"the Hugging Face cache ({printable(cache_place())})", remark=located)
    path, commit, remark = located
    notes = [Note(code="revision", message=remark)] if remark else []
    config = read_config(path, notes)
    at = f"Hugging Face cache, commit {commit[:12]}"
    raw = RawModel(id=wanted.id, config=config, source="hf-cache", location=at, revision=commit, notes=tuple(notes))
    if not wanted.weights:
        return raw
    # From an earlier reading of this commit, from downloaded files, or from the Hub.
    kept = cached_weights(wanted.id, commit)
    if kept is not None and kept.facts is not None:
        return replace(raw, weights=kept.facts, notes=(*raw.notes, *kept.notes))
    more: list[Note] = []
    facts = weights_beside(path, more)
    if facts is not None:
        keep_weights(wanted.id, commit, facts)
    elif kept is not None:
        more = list(kept.notes)
    elif not wanted.offline and re.fullmatch(r"[0-9a-f]{40}", commit):
        from hwcalc.sources.hub import with_weights

        return with_weights(raw, wanted, commit, params=path.name == "params.json")
    return replace(raw, weights=facts, notes=(*raw.notes, *more))


def _forbidden() -> bool:
    """True if the environment forbids the network, by the variables of huggingface_hub."""
    word = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return word.upper() in {"1", "ON", "YES", "TRUE"}


def _ask(wanted: Wanted, absent: list[Absent], *, refresh: bool) -> RawModel:
    """The answer of the first source that has the model. ``absent`` are the places where it is not; sources add to them."""
    for source in _order(wanted, refresh=refresh):
        # The catalog describes the main branch, so it may replace a Hub that cannot be reached.
        instead = wanted.revision == "main" and absent and absent[-1].error is not None
        try:
            answer = _answer(source, replace(wanted, revision=None) if instead else wanted)
        except HubError as error:
            raise _with_guess(error, wanted) from None
        if isinstance(answer, RawModel):
            notes: list[Note] = []
            for miss in absent:
                if miss.error is not None:
                    message = f"{_sentence(miss.error.message)} Planned from: {answer.location}."
                    notes.append(Note(code="hub-unreachable", message=message))
                elif miss.remark:
                    notes.append(Note(code="source", message=_sentence(miss.remark)))
            return replace(answer, notes=(*notes, *answer.notes)) if notes else answer
        absent.append(answer)
        if answer.error is not None:
            wanted = replace(wanted, offline=True)
    for miss in absent:
        if miss.error is not None:
            if wanted.revision is not None and not isinstance(find_in_catalog(replace(wanted, revision=None)), Absent):
                miss.error.hint = f"Leave the revision out to plan with the catalog's config: kvplan {wanted.id}"
            raise _with_guess(miss.error, wanted, unknown=True)
    raise _not_found(wanted, absent)


def _with_guess(error: KvplanError, wanted: Wanted, *, unknown: bool = False) -> KvplanError:
    """The Hub refuses and misses mistyped ids as it does private ones and unplugged cables, so the nearest known ids are named.

    If the network failed, the name is ``unknown`` here too: where names like it are known, it is probably wrong.
    """
    meant = _in_other_words(wanted) or _did_you_mean(wanted.id, if_unknown=True)
    if meant:
        # A command ends the hint, so that it can be copied.
        error.hint = " ".join(filter(None, (meant, error.hint) if meant.endswith("?") else (error.hint, meant)))
        if unknown:
            what = shown(wanted.id if wanted.file is None else f"{wanted.id}:{wanted.file}")
            error.message = f"{what} is not known here, and {error.message}"
    return error


def _in_other_words(wanted: Wanted) -> str:
    """The words for a format that no file has, or one of a model whose config is known; empty if neither."""
    from hwcalc.sources.gguf.hub import base_models, other_format
    from hwcalc.sources.gguf.names import is_gguf

    if wanted.file is None or is_gguf(wanted.file):
        return ""
    form, known = other_format(wanted.file)
    if base_models(wanted.id):
        return "" if known or form is None else f"Did you mean {wanted.id}:{form.upper()}?"
    if not known or isinstance(find_in_catalog(replace(wanted, file=None)), Absent):
        return ""
    return f"As llama.cpp would make it: kvplan {operand(wanted.id)} --engine llamacpp --weights {form}"


def _without_revision(raw: RawModel, revision: str | None) -> RawModel:
    if revision is not None:
        message = f"a file has no revisions, but {shown(revision)} was asked for."
        raise UsageError(message, hint="Leave --revision out, or give an id.")
    return raw


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _not_a_model(text: str) -> KvplanError:
    address, command = re.fullmatch(_HUB_ADDRESS, text), None
    if address and is_model_id(address[1]):
        hint = f"Give the id alone: kvplan {address[1]}"
    elif re.fullmatch(r"(?s)[\s(]*(?:\d+\s*\*[\s(]*)?\w+\([^()]*\).*", text):
        hint = f"Layers that are written down are an option: kvplan --layers-of {shell_word(brief(text, 200))}"
    else:
        pulled = ""
        if re.fullmatch(_LIKE_OLLAMA, text):
            from hwcalc.sources.ollama import unpulled

            command, pulled = unpulled(text), f"One of Ollama's: kvplan {OLLAMA}{text}"
            pulled += "" if command is None else f". Before it is pulled: {command[0]}"
        known = " ".join(filter(None, (_did_you_mean(text), pulled)))
        hint = known or "Give an id (org/name), a folder with a config.json, a config.json, or - for standard input."
    what = "the model is an empty string." if not text else f"{shown(text)} is neither a file here nor a model's id."
    error = ModelNotFoundError(what, hint=hint)
    error.command = command
    return error


def _not_found(wanted: Wanted, absent: list[Absent]) -> ModelNotFoundError:
    what = shown(wanted.name) if wanted.revision is None else f"{shown(wanted.name)} at revision {shown(wanted.revision)}"
    places = " nor in ".join(miss.place for miss in absent if miss.place)
    remarks = "".join(f" {_sentence(miss.remark)}" for miss in absent if miss.remark)
    if wanted.revision is not None and any("keeps no revisions" in miss.remark for miss in absent):
        hint = f"Leave the revision out to plan with the catalog's config: kvplan {wanted.id}"
    elif wanted.file is not None:
        hint = "Plan it once with the network, after which its header is kept, or give the path of the file."
        hint = f"{hint} {_in_other_words(wanted)}".rstrip()
    else:
        hint = (
            _did_you_mean(wanted.id) or "kvplan models lists what is built in; any model's folder or config.json will do as well."
        )
    return ModelNotFoundError(f"{what} is neither in {places}.{remarks}", hint=hint)


_FORMATS: Final[Mapping[str, str]] = {
    "awq": "awq",
    "gptq": "gptq",
    "gptq-int4": "gptq",
    "fp8": "fp8",
    "fp8-dynamic": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bnb-4bit": "bnb4",
    "4bit": "mlx_4bit",
    "8bit": "mlx_8bit",
}
"""Ends of names by which formats are published -> their names here."""


def _in_format(text: str) -> tuple[str, str]:
    """A name in small letters without the format at its end, and that format; both empty where it names none."""
    name = text.rpartition("/")[2].lower()
    ends = [end for end in _FORMATS if name.endswith(f"-{end}")]
    end = max(ends, key=len, default="")
    return (name.removesuffix(f"-{end}"), _FORMATS[end]) if end else ("", "")


def _did_you_mean(text: str, *, if_unknown: bool = False) -> str:
    """The ids like a text; empty if there is none, or with ``if_unknown`` if the text is one of them."""
    from hwcalc.sources.listing import known_ids
    from hwcalc.sources.nearest import nearest

    base, form = _in_format(text)
    made = next((model_id for model_id in known_ids() if form and model_id.lower().rpartition("/")[2] == base), None)
    if made is not None:
        return f"That format of the published model: kvplan {made} --weights {form}"
    near = [model_id for model_id in nearest(text, known_ids()) if is_model_id(model_id)]
    return f"Did you mean {' or '.join(near)}?" if near and not (if_unknown and text in near) else ""
