import re
from pathlib import Path

import pytest
from tiny_config import FILE, error_lines

from lm_mia.config import load
from lm_mia.errors import UserError


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("configs") / "tiny.py"
    path.write_text(FILE)
    return str(path)


def shape(file: str, *flags: str) -> tuple[str, int, int, int]:
    m = load.load_config(file, flags).model
    return m.size, *m.shape


def test_a_size_override_replaces_the_numbers_of_the_file(file: str):
    assert shape(file) == ("custom", 1, 8, 2)
    assert shape(file, "--config.model.size=10M") == ("10M", 3, 512, 8)
    assert shape(file, "--config.model.size=custom") == ("custom", 1, 8, 2)
    for flags in (["size=10M", "layers=4"], ["layers=4", "size=10M"]):
        assert shape(file, *(f"--config.model.{flag}" for flag in flags)) == ("custom", 4, 512, 8)
    assert shape(file, "--config.model.layers=3", "--config.model.width=512")[::3] == ("10M", 2)


def test_automatic_heads_follow_the_width(file: str):
    assert shape(file, "--config.model.width=100", "--config.model.heads=auto")[2:] == (100, 1)
    assert shape(file, "--config.model.layers=auto")[1:] == (12, 8, 2)
    [line] = error_lines(file, "--config.model.size=10M", "--config.model.width=200")
    assert re.fullmatch(
        r"model\.heads=3: .*model\.width=200; .*--config\.model\.heads=2 \(line 6 of tiny\.py\)",
        line,
    )
    [line] = error_lines(file, "--config.model.size=140m")
    assert re.match(r"model\.size='140m': .*\b10M, 44M, 85M, ", line)


def with_sweep(folder: Path, text: str) -> str:
    path = folder / "sweep.py"
    path.write_text(f"{FILE}\n{text}\n")
    return str(path)


def test_load_sweep_returns_the_config_and_its_entries(tmp_path: Path):
    file = with_sweep(
        tmp_path,
        """
def sweep():
    yield {"model.size": "10M"}
    yield {"model": {"layers": 5, "size": "10M"}, "optimizer.weight_decay": 2}
    for n in (4, 6):
        yield {"attack.references": n, "attack.fprs": [0.1, n / 10], "name": "x"}
""",
    )
    result = load.load_sweep(file, ["--config.attack.replicas=3", "--config.attack.references=9"])
    overrides, configs = zip(*result, strict=True)
    assert overrides[0] == {}
    assert overrides[2] == {"model.layers": 5, "model.size": "10M", "optimizer.weight_decay": 2}
    # An entry's own value takes precedence over the override.
    assert [c.attack.references for c in configs] == [9, 9, 9, 4, 6]
    assert {c.attack.replicas for c in configs} == {3}
    shapes = [(c.model.size, c.model.layers, c.model.width, c.model.heads) for c in configs]
    assert shapes == [
        ("custom", 1, 8, 2),
        ("10M", 3, 512, 8),
        ("custom", 5, 512, 8),
        *[("custom", 1, 8, 2)] * 2,
    ]
    assert type(configs[2].optimizer.weight_decay) is float
    assert configs[4].attack.fprs == (0.1, 0.6)
    assert configs[0] == load.load_config(
        file, ["--config.attack.replicas=3", "--config.attack.references=9"]
    )


def test_a_file_without_a_sweep_has_one_config(file: str):
    assert load.load_sweep(f"{file}:3") == [({}, load.load_config(f"{file}:3"))]


def test_sweep_may_have_a_parameter_for_the_argument(tmp_path: Path):
    taking = with_sweep(tmp_path, "def sweep(arg='2'): return [{'train.epochs': int(arg)}]")
    assert [c.train.epochs for _, c in load.load_sweep(taking)] == [1, 2]
    assert [c.train.epochs for _, c in load.load_sweep(f"{taking}:4")] == [1, 4]


def test_mistakes_of_all_entries_are_reported_together(tmp_path: Path):
    file = with_sweep(
        tmp_path,
        """
def sweep():
    return [{"model.layer": 2, "train.epochs": "2"}, {"train.epochs": 2}, ["x"], {"train.epochs": 0},
            {"attack.fprs": [1]}, {"qq": 1, "train": {"workers": True}}, {"widht": 3},
            {"model.layers": 0}]
""",
    )
    with pytest.raises(UserError) as caught:
        load.load_sweep(file)
    label = f"--config={file}: sweep() entry "
    lines = [line.removeprefix(label) for line in str(caught.value).split("\n")]
    assert [re.sub(r": (must|no such).*", "", line) for line in lines] == [
        "1: model.layer",
        "1: train.epochs='2'",
        "3: ['x']",
        "4: train.epochs=0",
        "5: attack.focus_fpr=0.1",
        "6: qq",
        "6: train.workers=True",
        "7: widht",
        "8: model.layers=0",
    ]
    assert "did you mean model.layers?" in lines[0]


def test_errors_in_sweep_are_reported_on_one_line(tmp_path: Path):
    for text, message in (
        ("def sweep(): yield {}; raise ValueError('no')", "line 14: ValueError: no"),
        ("sweep = 3", "TypeError: 3 is not a callable object"),
        ("def sweep(): return 3", "TypeError: 'int' object is not iterable"),
    ):
        file = with_sweep(tmp_path, text)
        with pytest.raises(UserError) as caught:
            load.load_sweep(file)
        assert str(caught.value) == f"--config={file}: {message}"
        assert load.load_config(file)  # load_config does not call sweep
