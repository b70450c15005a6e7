"""What vLLM 0.33's own planner says of every class of the catalog (``tests/golden/vllm_classes.json``): the same blocks, or the same refusal."""

from __future__ import annotations

from typing import Final

import pytest

from hwcalc.errors import UnsupportedError, UsageError
from hwcalc.sources import resolve
from tests.hwcalc.engines.vllm_rows import class_rows, differences, row_opened

ROWS: Final = class_rows()
NOT_RUN: Final = {
    "DeciLMForCausalLM": "its layers are objects of the class that lives with the model",
    "Dots3NoteForConditionalGeneration": "its config's class is read from the model's repository",
    "Ernie4_5_VLMoeForConditionalGeneration": "the catalog lacks keys of its tower",
    "MllamaForConditionalGeneration": "it left, and needs a processor to say so",
    "Molmo2ForConditionalGeneration": "the catalog lacks keys of its tower",
}
"""Classes of the catalog that the planner could not be asked about from a config alone, each with the reason."""
PLANNED: Final = [name for name, row in ROWS.items() if not {"refused", "without_cache"} & set(row)]
REFUSED: Final = [name for name, row in ROWS.items() if "refused" in row]
WITHOUT_CACHE: Final = [name for name, row in ROWS.items() if "without_cache" in row]


def test_a_class_is_planned_to_the_block() -> None:
    """Groups, blocks, the log's tokens and concurrency, the longest request of each."""
    assert {name: found for name in PLANNED if (found := differences(ROWS[name]))} == {}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_planner_refuses_is_refused(name: str) -> None:
    """A class that vLLM left out, or that its Transformers backend cannot run; an option that a class does not take."""
    with pytest.raises((UnsupportedError, UsageError)):
        row_opened(ROWS[name])


def test_an_encoder_has_no_cache() -> None:
    """Layers that see all of the text keep nothing."""
    assert {name: found for name in WITHOUT_CACHE if (found := row_opened(ROWS[name]).groups)} == {}


def test_one_batch_is_in_flight_where_the_class_is_for_embeddings() -> None:
    """The rows of classes that vLLM serves so schedule no batch ahead; a window then holds one batch, which is what the planner counts."""
    runners = {
        row["result"]["effective"]["runner"]: row["result"]["effective"]["async_scheduling"]
        for row in map(ROWS.get, PLANNED)
        if row
    }
    assert runners == {"generate": True, "pooling": False}


def test_every_class_of_the_catalog_has_a_row() -> None:
    """Or a reason why the planner could not be run on it."""
    from hwcalc.profiles.catalog import list_models

    classes = {name for model in list_models() for name in resolve(model).config.get("architectures", ())}
    asked = {
        name for row in ROWS.values() for name in (row.get("config") or resolve(row["model"]).config).get("architectures", ())
    }
    assert classes - asked == set(NOT_RUN)
