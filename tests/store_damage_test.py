from pathlib import Path

import numpy as np
import pytest

from lm_mia import subsets
from lm_mia.errors import UserError
from lm_mia.store import Store

FOUR = subsets.rows(3, 1)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("zarr.json", "zarr.json, role or seeds"),
        ("role/c/0", "role or seeds"),
        ("subset_seed/c/0", "role or seeds"),
    ],
)
def test_damaged_metadata_and_coordinates_are_told(tmp_path: Path, damage: str, what: str):
    s = Store(tmp_path / "scores.zarr")
    s.ensure(FOUR, {"tokens": np.arange(5)}, {})
    path = s.path / damage
    if damage == "zarr.json":
        path.write_text("{")
    elif path.exists():
        path.unlink()
    with pytest.raises(UserError) as caught:
        s.present()
    assert str(caught.value) == (
        f"{s.path}: damaged score store ({what}); delete it and run `lm-mia run` again: "
        "rows are scored again from their checkpoints"
    )


@pytest.mark.parametrize("text", [None, "{"])
def test_damaged_array_metadata_is_told(tmp_path: Path, text: str | None):
    s = Store(tmp_path / "scores.zarr")
    s.ensure(FOUR, {"tokens": np.arange(5)}, {})
    (s.path / "loss" / "zarr.json").unlink()
    if text is not None:
        (s.path / "loss" / "zarr.json").write_text(text)
    with pytest.raises(UserError, match=r"damaged score store \(loss/zarr.json\)"):
        s.present()
