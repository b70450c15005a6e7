"""What was measured of llama.cpp: how far the buffers that it reserves lie from the derived ones (``engines/llamacpp.yaml``)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from hwcalc.formulas.frozen import frozen
from hwcalc.profiles.catalog import ProfileError
from hwcalc.profiles.engines import SCHEMA_VERSION, _compiled
from hwcalc.profiles.estimate import Estimate, parse_estimate, wrong
from hwcalc.profiles.yaml_file import YamlFile

__all__ = ["LlamacppProfile", "llamacpp_profile", "parse_llamacpp"]


@frozen
class LlamacppProfile:
    """The checked content of ``llamacpp.yaml``."""

    compute: Mapping[str, Estimate]
    """The reserved size as a multiple of the derived one, by the name of the fullest moment."""
    host_bandwidth: Estimate
    """GB/s."""


@lru_cache(maxsize=1)
def llamacpp_profile() -> LlamacppProfile:
    """The constants of llama.cpp."""
    return parse_llamacpp(_compiled("llamacpp"))


def parse_llamacpp(file: YamlFile) -> LlamacppProfile:
    """Check the content of ``llamacpp.yaml``. Raises :class:`~hwcalc.profiles.catalog.ProfileError`."""
    known = {"schema_version", "id", "recorded", "compute", "host_bandwidth"}
    for key in sorted(known ^ set(map(str, file.data))):
        raise ProfileError(file.path, "is missing" if key in known else "is not known", line=file.line(key), key=key)
    if file.data["schema_version"] != SCHEMA_VERSION or file.data["id"] != file.path.stem:
        raise wrong(file, "schema_version", f"must be {SCHEMA_VERSION}, and id the file's stem")
    content = file.data["compute"]
    if not isinstance(content, dict) or not content:
        raise wrong(file, "compute", "must be a mapping of moments")
    return LlamacppProfile(
        compute={str(name): parse_estimate(file, f"compute.{name}", entry) for name, entry in content.items()},
        host_bandwidth=parse_estimate(file, "host_bandwidth", file.data["host_bandwidth"]),
    )
