"""The form of an instance's file."""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from hwcalc.profiles.gpu_schema import GpuId
from hwcalc.profiles.instance_file import Instance, file_name, instance_of
from hwcalc.profiles.schema import Date, FactFile, Share, Sources, Whole, Words, WrongKeyError, check
from hwcalc.profiles.yaml_file import YamlFile

__all__ = ["FIELDS", "InstanceFile", "parse_instance"]

_MOST: Final = 100_000


class InstanceFile(FactFile):
    """``instances/<cloud>/<name>.yaml``. Its README says what each key means."""

    id: Annotated[Words, Field(description="its name, as its cloud spells it")]
    cloud: Annotated[str, Field(pattern=r"^[a-z0-9]{1,32}$", description="small letters and digits")]
    recorded: Date | None = None
    accelerator: Annotated[GpuId, Field(description="the id of an accelerator")]
    count: Annotated[int, Field(gt=0, le=_MOST, description=f"a whole number from 1 to {_MOST:,}")]
    fabric: Words | None = None
    fraction: Annotated[Share | None, Field(description="a share of one accelerator, written 1/8")] = None
    memory_mib: Annotated[Whole | None, Field(description="a positive whole number of MiB")] = None
    note: Words | None = None
    source: Sources

    def place(self) -> tuple[str, ...]:
        return self.cloud, f"{file_name(self.id)}.yaml"

    @model_validator(mode="after")
    def _a_fraction_is_of_one(self) -> Self:
        if self.fraction is None and self.memory_mib is not None:
            raise WrongKeyError("memory_mib", "goes with fraction: a whole accelerator's memory is in its own file")
        if self.fraction is not None and self.count != 1:
            raise WrongKeyError("fraction", "goes with a count of 1")
        return self


FIELDS: Final = tuple(InstanceFile.model_fields)
"""The keys of a file."""


def parse_instance(file: YamlFile, *, user: bool = False) -> Instance:
    """Check one file. Its folder must be the cloud. Raises :class:`~hwcalc.profiles.catalog.ProfileError` with line and key."""
    check(file, InstanceFile)
    return instance_of(file.data, file.path if user else None)
