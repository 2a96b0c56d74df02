import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tiny_config import TINY, change

from lm_mia import config
from lm_mia.config import Config, Model, recipe, resolve, schema
from lm_mia.config.recipe import (
    differences,
    folder_name,
    from_dict,
    merge_configs,
    population_hash,
    recipe_hash,
    recipe_requests,
)
from lm_mia.errors import UserError
from lm_mia.model import kinds
from lm_mia.model.transformer import ModelConfig


def fields() -> list[str]:
    all_names = [f.name for f in dataclasses.fields(Config)]
    sections = [s for s in all_names if dataclasses.is_dataclass(getattr(TINY, s))]
    names = {s: [f.name for f in dataclasses.fields(getattr(TINY, s))] for s in sections}
    return [f"{s}.{name}" for s in sections for name in names[s]] + [
        name for name in all_names if name not in sections
    ]


def other(field: str) -> Any:
    """A value of the field that differs from TINY's."""
    value: Any = TINY
    for part in field.split("."):
        value = getattr(value, part)
    if isinstance(value, str):
        return 3 if value in ("auto", "all", "none", "last") else value + "x"
    return (0.2,) if isinstance(value, tuple) else value + 1


CHANGEABLE = {
    "train.workers",
    "train.checkpoint_minutes",
    "train.keep_moments",
    "population.folder",
    "train.validations",
    "train.trackers",
    "corpus.processes",
    "score.statistics",
    "score.token_samples",
    "name",
    "figures",
    "compare_with_papers",
    "has_recipe",
    *(f"attack.{f.name}" for f in dataclasses.fields(config.Attack)),
    *(f"compute.{f.name}" for f in dataclasses.fields(config.Compute)),
    *(f"extract.{f.name}" for f in dataclasses.fields(config.Extract)),
}


@pytest.mark.parametrize("field", fields())
def test_differences_ignores_changeable_fields_only(field: str):
    stored = config.to_dict(TINY)
    new = change(TINY, field, other(field))
    assert len(differences(stored, TINY)) == 0
    result = differences(stored, new)
    assert [line.partition(":")[0] for line in result] == ([] if field in CHANGEABLE else [field])


def test_differences_shows_old_and_new_values():
    stored = config.to_dict(TINY)
    del stored["model"]["width"]
    stored["model"]["depth"] = 3
    stored["train"]["epochs"] = 2
    assert differences(stored, TINY) == [
        "model.depth: 3 -> 'absent'",
        "model.width: 'absent' -> 8",
        "train.epochs: 2 -> 1",
    ]


def test_from_dict_is_the_inverse_of_to_dict():
    c = dataclasses.replace(TINY, name="a", figures=("strongmia_fig01_references",))
    assert from_dict(config.to_dict(c)) == c
    with pytest.raises(TypeError, match="depth"):
        from_dict({**config.to_dict(c), "model": {"depth": 3}})


def test_hashes_are_unchanged():
    """Other hashes would orphan every workdir that exists: change them only with a note in the changelog."""
    assert recipe_hash(TINY) == "8588c773"
    assert population_hash(TINY) == "5fd96a69"


@pytest.mark.parametrize("field", fields())
def test_the_hash_changes_with_what_determines_a_model(field: str):
    section, changed = field.partition(".")[0], change(TINY, field, other(field))
    of_population = section in ("corpus", "tokenizer", "population") and field not in CHANGEABLE
    of_model = section in ("model", "optimizer", "train") and field not in {
        *CHANGEABLE,
        "model.size",
    }
    assert (recipe_hash(changed) != recipe_hash(TINY)) == (of_population or of_model)
    assert (population_hash(changed) != population_hash(TINY)) == of_population


def test_the_hash_changes_with_the_format(monkeypatch: pytest.MonkeyPatch):
    before = recipe_hash(TINY)
    monkeypatch.setattr(recipe, "FORMAT", recipe.FORMAT + 1)
    assert recipe_hash(TINY) != before


def test_the_hash_does_not_depend_on_the_size_name():
    plain = Config(model=Model(size="custom", layers=3, width=512, heads=8))
    assert recipe_hash(resolve(plain)) == recipe_hash(resolve(Config(model=Model(size="10M"))))


def test_optimizers_have_hashes_of_their_own():
    changes: list[tuple[str, Any]] = [("optimizer.name", name) for name in ("lion", "muon")]
    changes += [
        ("optimizer.weight_decay_mask", ("kernel",)),
        ("optimizer.learning_rate_multipliers", (("kernel", 0.5),)),
    ]
    changed = [change(TINY, field, value) for field, value in changes]
    assert len({recipe_hash(c) for c in (TINY, *changed)}) == 5
    assert all(from_dict(json.loads(json.dumps(config.to_dict(c)))) == c for c in changed)


def test_the_hash_has_the_source_of_a_user_optimizer_not_its_path(tmp_path: Path):
    def of_file(path: str, text: str) -> Config:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        return resolve(change(TINY, "optimizer.name", f"{tmp_path / path}:mine"))

    text = "RATE = 2\ndef mine(learning_rate):\n    return RATE\n"
    one, moved = of_file("a.py", text), of_file("other/b.py", f"# moved\n{text}")
    assert one.optimizer.name != moved.optimizer.name
    assert recipe_hash(one) == recipe_hash(moved) != recipe_hash(TINY)
    assert differences(config.to_dict(one), moved) == []
    edited = of_file("c.py", text.replace("RATE = 2", "RATE = 3"))
    assert recipe_hash(edited) != recipe_hash(one)
    [line] = differences(config.to_dict(one), edited)
    assert line.startswith("optimizer.source: ")


def named(name: str, **changes: object) -> Config:
    c = dataclasses.replace(TINY, name=name)
    for field, value in changes.items():
        c = change(c, field.replace("__", "."), value)
    return c


def test_unnamed_recipes_are_named_after_file_or_overrides():
    overrides = {"model.layers": 2, "train.epochs": 3}
    entries = [({}, TINY), (overrides, named("", model__layers=2, train__epochs=3))]
    assert [r.names for r in recipe_requests(entries, "quickstart")] == [
        ("quickstart",),
        ("layers=2,epochs=3",),
    ]
    assert recipe_requests([({}, named("main"))], "quickstart")[0].names == ("main",)


def test_folder_names_are_plain_and_short():
    assert folder_name("path=/a b/c.txt") == "path=_a_b_c.txt"
    assert folder_name("../..") == "recipe"
    assert len(folder_name("x" * 300)) == 48
    long = [({"a.b": f"{'x' * 60}{i}"}, named("", model__layers=i)) for i in (2, 3)]
    names = [r.names[0] for r in recipe_requests(long, "quickstart")]
    assert [name.rpartition("-")[2] for name in names] == [recipe_hash(c) for _, c in long]


def test_derived_names_differ_if_only_score_points_differ():
    long = "x" * 60
    entries = [({"a.b": long}, named("")), ({"a.b": long}, named("", score__at_steps=(1,)))]
    names = [r.names[0] for r in recipe_requests(entries, "quickstart")]
    assert len({*names}) == 2
    assert names == [r.names[0] for r in recipe_requests(entries, "quickstart")]


def test_entries_with_the_same_models_are_merged():
    a = named("main", attack__references=8, attack__targets=2)
    b = named("fixed-1", attack__references=6, attack__targets=4, extract__samples=3)
    small = named("small", model__layers=2)
    first, second = recipe_requests([({}, a), ({"x": 1}, b), ({"y": 2}, small)], "file")
    assert (first.names, first.entries) == (("main", "fixed-1"), (0, 1))
    assert (first.config.attack.references, first.config.attack.targets) == (8, 4)
    assert first.config.extract.samples == 3
    crossed = {"replica_inits": 4, "orders_per_init": 6, "resample_references": 4}
    c = named("c", extract__prefix_tokens=9, **{f"attack__{k}": v for k, v in crossed.items()})
    [merged] = recipe_requests([({}, named("d")), ({"x": 1}, c)], "file")
    assert {name: getattr(merged.config.attack, name) for name in crossed} == crossed | {
        "orders_per_init": 8  # the default, which is larger
    }
    assert merged.config.extract.prefix_tokens == 9
    assert (second.names, second.entries, second.overrides) == (("small",), (2,), {"y": 2})


def test_recipes_scored_at_other_steps_are_separate():
    entries = [({}, named("a")), ({"score.at_steps": (1,)}, named("b", score__at_steps=(1,)))]
    assert len(recipe_requests(entries, "file")) == 2


def test_two_recipes_with_one_name_are_refused():
    entries = [({}, named("wide")), ({"model.layers": 2}, named("wide", model__layers=2))]
    with pytest.raises(UserError, match="name='wide': "):
        recipe_requests(entries, "file")


def test_entries_with_the_same_models_need_equal_attack_settings():
    entries = [({}, named("a")), ({"attack.alpha": 0.1}, named("b", attack__alpha=0.1))]
    message = r"attack.alpha: entries 0 and 1 of the sweep have the same models but different values, 0.05 and 0.1;"
    with pytest.raises(UserError, match=message):
        recipe_requests(entries, "file")
    a = named("a", extract__samples=3)
    b = named("b", extract__samples=4, extract__prefix_tokens=2)
    assert len(recipe_requests([({}, a), ({"x": 1}, named("c"))], "file")) == 1
    with pytest.raises(UserError, match=r"extract.prefix_tokens: .*\b0 and 1\b"):
        recipe_requests([({}, a), ({"x": 1}, b)], "file")


def test_merge_configs_requests_models_and_statistics_of_both():
    a = named("a", attack__references=8, score__statistics=("min_k",), score__token_samples=(3,))
    b = named("b", attack__replicas=6, score__statistics=("target_logit", "min_k"))
    both = merge_configs(a, b)
    assert (both.name, both.attack.references, both.attack.replicas) == ("a", 8, 6)
    assert both.score.statistics == ("min_k", "target_logit")
    assert both.score.token_samples == (3,)
    assert both.train == a.train


@pytest.mark.parametrize(
    ("field", "changes_population"),
    [("population.random_samples", True), ("train.canaries", False)],
)
@pytest.mark.parametrize("default", [0, 4])
def test_a_later_field_is_left_out_at_the_value_of_older_models(
    field: str, changes_population: bool, default: int, monkeypatch: pytest.MonkeyPatch
):
    """A stored config without it counts as having this value, whatever the default is."""
    section, _, leaf = field.partition(".")
    monkeypatch.setattr(recipe, "before", lambda cls: {field: 2})
    at_before, with_field = change(TINY, field, 2), change(TINY, field, 6)
    stored = config.to_dict(change(TINY, field, default))
    del stored[section][leaf]
    assert recipe.stored_recipe_hash(stored) == recipe_hash(at_before) != recipe_hash(with_field)
    changes = population_hash(at_before) != population_hash(with_field)
    assert changes == changes_population
    assert differences(stored, at_before) == []
    assert differences(stored, with_field) == [f"{field}: 2 -> 6"]
    assert from_dict(stored) == at_before


def with_model(**changes: Any) -> Config:
    return resolve(dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, **changes)))


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("gpt", {"heads": 1, "vocab_size": 32_000}),
        ("gpt2", {"heads": 1, "mlp_width": 512, "vocab_size": 32_000}),
        (
            "llama",
            {"heads": 2, "kv_heads": 2, "head_width": 64, "mlp_width": 384, "vocab_size": 32_000},
        ),
    ],
)
def test_auto_and_the_number_that_it_stands_for_are_one_recipe(kind: Any, numbers: dict[str, int]):
    width = 64 * numbers["heads"] if kind != "gpt2" else 128
    automatic = with_model(kind=kind, width=width, **dict.fromkeys(numbers, "auto"))
    numbers["heads"] = automatic.model.shape[2]
    written = with_model(kind=kind, width=width, **numbers)
    assert recipe_hash(automatic) == recipe_hash(written)
    assert differences(config.to_dict(automatic), written) == []
    for name, number in numbers.items():
        other = with_model(kind=kind, width=width, **(numbers | {name: 2 * number}))
        assert recipe_hash(other) != recipe_hash(written), name
        [line] = differences(config.to_dict(automatic), other)
        assert line.startswith(f"model.{name}: ")


@pytest.mark.parametrize("kind", [*schema.KIND_SETTINGS])
@pytest.mark.parametrize(("width", "heads"), [(48, 2), (192, 3)])
def test_auto_stands_for_the_numbers_that_the_kinds_compute(kind: str, width: int, heads: int):
    sizes = [Model("custom", 2, width, heads, kind=kind)]
    numbers: Any = schema.automatic_numbers(kind, width, heads)
    sizes.append(dataclasses.replace(sizes[0], **numbers))
    first, second = (kinds.size(ModelConfig.from_settings(m, 100, 8)) for m in sizes)
    assert first == second


def test_the_losses_of_a_workdir_of_the_format_before_can_be_imported(tmp_path: Path):
    folder = tmp_path / "recipes" / "main"
    for canaries, design in ((0, "exact"), (4, "given"), ("all", "exact")):
        train = {"canaries": canaries, "subset": "exact"}
        stored = {"format": recipe.FORMAT - 1, "config": {"train": train}, "lm_mia": "0.2"}
        (folder / "scores.zarr").mkdir(parents=True, exist_ok=True)
        with pytest.raises(UserError, match=f"import .*scores.zarr .*--subset={design}"):
            recipe.check_format(stored, folder)
