import dataclasses
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import FILE, error_lines

from lm_mia.config import Config, fields, load
from lm_mia.errors import UserError


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("configs") / "tiny.py"
    path.write_text(FILE)
    return str(path)


def test_file_argument_and_overrides(file: str):
    assert load.load_config(file).model.layers == 1
    assert load.load_config(f"{file}:3").model.layers == 3
    flags = [
        "--config.model.layers=4",
        "--config.train.subset",
        "bernoulli",
        "--config.corpus.path=",
    ]
    c = load.load_config(f"{file}:3", flags)
    assert (c.model.layers, c.train.subset, c.corpus.path) == (4, "bernoulli", "")
    assert c.model.width == 8  # of the file, not the default
    [line] = error_lines(file, "--config.train.batch-size=2", "--config.train.batch_size=4")
    assert line.startswith("--config.train.batch_size: ")
    assert "once" in line
    assert load.load_config(file, ["--config.optimizer.peak-learning-rate=1e-3"]).optimizer == (
        load.load_config(file, ["--config.optimizer.peak_learning_rate=0.001"]).optimizer
    )


def test_an_empty_flag_is_an_empty_list(file: str):
    assert load.load_config(file, ["--config.score.statistics"]).score.statistics == ()


def test_booleans_and_choices_of_the_attack(file: str):
    flags = ("leave-one-out", "leave_one_out=true", "leave_one_out=False", "no-leave-one-out")
    for flag, value in zip(flags, (True, True, False, False), strict=True):
        assert load.load_config(file, [f"--config.attack.{flag}"]).attack.leave_one_out is value
    assert "no such field" in error_lines(file, "--config.attack.no-leave-one-out=True")[0]
    more = ["--config.attack.finite-population", "True", "--config.attack.variance=pooled"]
    after = load.load_config(file, ["--config.attack.leave_one_out=True", *more]).attack
    assert (after.leave_one_out, after.finite_population, after.variance) == (True, True, "pooled")


MISTAKES = [
    (
        "--config.model.layer=3",
        "--config.model.layer: no such field; did you mean --config.model.layers?",
    ),
    (
        "--config.model.widht=3",
        "--config.model.widht: no such field; did you mean --config.model.width?",
    ),
    ("--config.layers=3", "--config.layers: no such field; did you mean --config.model.layers?"),
    (
        "--config.train.samples=4",
        "--config.train.samples: no such field; did you mean --config.population.samples?",
    ),
    ("--config.qqqq=4", "--config.qqqq: no such field; `lm-mia fields` lists all fields"),
    ("--config.=4", "--config.: no such field; `lm-mia fields` lists all fields"),
    *(
        (f"--config.{field}={value}", f"{field}={value!r}: must be {kind}")
        for field, kind, values in (
            (
                "model.layers",
                "an integer from 1 to 10,000, or auto; the default is auto",
                ("two", "2.0", "", "--help"),
            ),
            (
                "train.epochs",
                "an integer of at least 1; the default is 1",
                ("", "x", "1.5", "true"),
            ),
            ("corpus.column", "a string; the default is text", ("--help",)),
            ("attack.alpha", "a number above 0 and below 1; the default is 0.05", ("high", "")),
            (
                "attack.fprs",
                "a list of one or more numbers above 0 and at most 1 such as 0.01,",
                ("0.1,x", "0.1,"),
            ),
            (
                "score.at_steps",
                "a list of integers of at least 1 such as 100,200 ",
                ("1.5", "1,x", "1,", ","),
            ),
            ("model.dtype", "one of float32, bfloat16; the default is float32", ("float16",)),
            (
                "corpus.source",
                "one of docstrings, text, jsonl, csv, parquet, c4, imported; ",
                ("", "txt"),
            ),
            (
                "score.statistics",
                "a list of summed_loss, target_logit, greedy_match, min_k, ",
                ("loss",),
            ),
            (
                "attack.band",
                "two numbers from 0 to 1 such as 0.01,0.05 ",
                ("0.1", "0.1,0.2,0.3", "0.1,x", ""),
            ),
            ("attack.leave_one_out", "True or False; the default is False", ("1", "yes", "")),
            (
                "attack.variance",
                "one of per_sample, pooled; the default is per_sample",
                ("global",),
            ),
            (
                "compute.devices_per_model",
                "an integer of at least 1, or all or auto; ",
                ("none", "1.5"),
            ),
        )
        for value in values
    ),
    ("--config.model.layers", "model.layers='': must be an integer"),
    ("--config.attack.band", "attack.band='': must be two numbers"),
    *(
        (f"--config.{field}={value}", f"{field}={value}: must be {kind}")
        for field, kind, value in (
            ("model.layers", "an integer from 1 to 10,000, or auto; the default is auto", "-1"),
            ("model.width", "an integer from 1 to 1,000,000, or auto", "0"),
            (
                "optimizer.peak_learning_rate",
                "a finite number above 0; the default is 0.0003",
                "nan",
            ),
            ("optimizer.clip_norm", "a finite number above 0, or none; the default is 1.0", "0.0"),
            ("train.workers", "an integer from 1 to 100,000, or auto; the default is auto", "0"),
        )
    ),
    ("--config.attack.band=0.2,0.1", "attack.band=(0.2, 0.1): must be two numbers from 0 to 1 "),
    ("layers=3", "layers=3: unknown argument; overrides look like --config.model.layers=4"),
    ("--layers=3", "--layers=3: unknown argument; overrides look like --config.model.layers=4"),
]


@pytest.mark.parametrize(("flag", "message"), MISTAKES)
def test_each_mistake_is_reported_on_one_line(file: str, flag: str, message: str):
    [line] = error_lines(file, flag)
    assert line.startswith(message)


def test_two_values_for_one_number_are_refused(file: str):
    [line] = error_lines(file, "--config.model.layers", "3", "4")
    assert line.startswith("model.layers='3 4': ")


def test_negative_numbers_may_be_separate_words(file: str):
    [line] = error_lines(file, "--config.population.seed", "-1")
    assert line.startswith("population.seed=-1: ")


def test_mistakes_of_all_kinds_are_reported_together(file: str):
    flags = ["--config.model.layers=x", "--config.train.epoch=2", "--config.attack.replicas=1"]
    assert [line.partition(": ")[0] for line in error_lines(file, *flags)] == [
        "model.layers='x'",
        "--config.train.epoch",
        "attack.replicas=1",
    ]


def test_rules_about_misspelled_fields_are_not_checked(file: str):
    """With the file's heads=2, width=7 would break a rule, but heads is about to change."""
    [line] = error_lines(file, "--config.model.width=7", "--config.model.heads=seven")
    assert line.startswith("model.heads='seven': ")
    [line] = error_lines(file, "--config.model.width=7", "--config.model.head=7")
    assert re.match(r"--config\.model\.head: .* --config\.model\.heads\?", line)
    [line] = error_lines(file, "--config.corpus.source=txt", "--config.corpus.path=x")
    assert line.startswith("corpus.source='txt': ")


@pytest.mark.parametrize("name", ["missing.py", "folder.py", "tiny.txt", "", "."])
def test_missing_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "tiny.txt").write_text(FILE)
    rules = {
        "tiny.txt": "the name of a config file must end in .py; rename it",
        "missing.py": "no such Python file (a path ends at the first colon); try --config=quickstart, which lm_mia "
        "includes",
    }
    rule = rules.get(name, "is a folder; add the name of a Python file in it")
    assert error_lines(name) == [f"--config={name}: {rule}"]


def test_the_suffix_of_a_config_file_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.py").write_text(FILE)
    [line] = error_lines("tiny")
    assert re.match(r"--config=tiny: .* tiny\.py\?", line)


def test_a_file_that_changes_a_config_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("from lm_mia.config import Config\nc = Config()\nc.name = 'a'\n")
    [line] = error_lines("bad.py")
    assert line.startswith("--config=bad.py: line 3: name: ")


def test_integers_have_a_maximum(file: str):
    flags = "--config.attack.references=1000002", "--config.population.frequency_samples=2147483648"
    assert [re.sub(r"[^\d]*; the default.*", "", line) for line in error_lines(file, *flags)] == [
        "population.frequency_samples=2147483648: must be at most 2,147,483,647",
        "attack.references=1000002: must be at most 1,000,000",
    ]


def test_a_name_selects_an_included_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # regardless of the current folder and its files
    (tmp_path / "quickstart").write_text("")
    assert load.load_config("quickstart") == load.load_config(
        str(load.included_configs() / "quickstart.py")
    )
    assert load.load_config("c4:140M").model.size == "140M"
    assert load.load_config("quickstart", ["--config.train.epochs=2"]).train.epochs == 2
    rule = "lm_mia includes no config of this name"
    for name, remedy in (
        ("quikstart", "did you mean quickstart?"),
        ("zzz:cpu", "--config=quickstart, or a path "),
        ("strong:cpu", "did you mean strongmia?"),
    ):
        [line] = error_lines(name)
        assert line.startswith(f"--config={name}: {rule}")
        assert remedy in line


def test_a_file_with_the_name_of_an_included_config_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as of `python -m lm_mia.cli`
    included = load.load_config("quickstart")
    assert load.namesake("quickstart") == ""
    assert "did you mean quickstart" in error_lines("quickstart.py")[0]
    (tmp_path / "quickstart.py").write_text(FILE)
    assert load.load_config("quickstart") == included != load.load_config("quickstart.py")
    assert load.load_config("quickstart.py:3") == load.load_config("./quickstart.py:3")
    assert "lm_mia includes" in load.namesake("quickstart")
    assert load.namesake("quickstart:3").endswith(" is --config=./quickstart.py:3")
    assert "this folder" in load.namesake("quickstart.py:3")
    assert load.namesake("quickstart.py:3").endswith(" is --config=quickstart:3")
    for other in ("./quickstart.py", f"{tmp_path}/quickstart.py", "c4", "other.py", "", "."):
        assert load.namesake(other) == ""
    monkeypatch.chdir(load.included_configs())
    assert load.namesake("quickstart") == load.namesake("quickstart.py") == ""


def test_configs_import_the_files_of_their_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also if the user has a strongmia.py, which the included configs import."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    included = load.load_config("strongmia_open:cpu")
    (tmp_path / "strongmia.py").write_text("LAYERS = 3")
    (tmp_path / "mine.py").write_text(
        """
import dataclasses
import strongmia
from lm_mia.config.load import load_config

def get_config():
    config = load_config("strongmia_open:cpu")
    import strongmia as again
    assert again is strongmia
    return dataclasses.replace(config, name=f"layers-{strongmia.LAYERS}")
"""
    )
    before = list(sys.path)
    assert load.load_config("strongmia_open:cpu") == included
    assert load.load_config("mine.py") == dataclasses.replace(included, name="layers-3")
    assert load.load_config("strongmia_open:cpu") == included
    assert sys.path == before


def test_a_copy_of_an_included_config_imports_the_others(tmp_path: Path):
    copy = tmp_path / "mine.py"
    copy.write_text((load.included_configs() / "own.py").read_text())
    arg = "texts,fig05,cpu"
    assert load.load_config(f"{copy}:{arg}") == load.load_config(f"own:{arg}")


@pytest.mark.parametrize(
    ("text", "arg", "message"),
    [
        ("x = 1", "", "the file defines no get_config()"),
        ("get_config = 3", "", "TypeError: "),
        ("def get_config(): return {}", "", "get_config() returned dict"),
        ("def get_config(): return 1 / 0", "", "line 1: ZeroDivisionError: "),
        (
            "from lm_mia.config import Config\ndef get_config(): Config().model.layers = 3",
            "",
            "line 2: layers: ",
        ),
        ("def get_config(): raise ValueError('a\\nb')", "", "line 1: ValueError: a b"),
        (
            "import nothing_of_this_name",
            "",
            "line 1: ModuleNotFoundError: ",
        ),
        (FILE, ":big", "line 6: ValueError: "),
        (
            FILE.replace('size="1"', "").replace("size", "1"),
            ":gpu",
            "get_config() takes no ",
        ),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, arg: str, message: str):
    (tmp_path / "bad.py").write_text(text)
    name = f"{tmp_path / 'bad.py'}{arg}"
    [line] = error_lines(name)
    assert line.startswith(f"--config={name}: {message}")


@pytest.mark.parametrize(
    ("old", "new", "start", "line_number"),
    [
        ("8,", "'8',", "model.width='8': ", 6),
        ("layers=int(size)", "layers=True", "model.layers=True: ", 6),
        ("warmup_steps=1", "clip_norm='1'", "optimizer.clip_norm='1': ", 7),
        (
            "batch_size=4",
            "batch_size=4, subset='a'",
            "train.subset='a': ",
            8,
        ),
        ("(0.1, 0.5)", "0.1", "attack.fprs=0.1: ", 10),
        ("(0.1, 0.5)", "('1',)", "attack.fprs=('1',): ", 10),
        ("(0, 0.1)", "(0.1,)", "attack.band=(0.1,): ", 10),
        ("(0, 0.1)", "[0, 0.1]", "attack.band=[0, 0.1]: ", 10),
        ("band=(0, 0.1)", "leave_one_out=0", "attack.leave_one_out=0: ", 10),
        ("band=(0, 0.1)", "attacks='loss'", "attack.attacks='loss': ", 10),
        (
            "batch_size=4)",
            "batch_size=4), score=config.Score(statistics=('min',))",
            "score.statistics=('min',): ",
            8,
        ),
    ],
)
def test_wrong_types_in_the_file_name_the_line(
    tmp_path: Path, old: str, new: str, start: str, line_number: int
):
    (tmp_path / "bad.py").write_text(FILE.replace(old, new))
    lines = error_lines(str(tmp_path / "bad.py"), "--config.optimizer.warmup_steps=0")
    assert lines[0].startswith(start)
    assert lines[0].endswith(f" (line {line_number} of bad.py)")
    assert len(lines) == 1


def test_syntax_errors_and_unknown_fields_are_reported_on_one_line(tmp_path: Path):
    for text, word in (
        ("def get_config(:", "SyntaxError"),
        (FILE.replace("layers", "layer"), "layer"),
    ):
        (tmp_path / "bad.py").write_text(text)
        [line] = error_lines(str(tmp_path / "bad.py"))
        assert word in line


def test_integers_in_float_fields_become_floats(file: str):
    decay = load.load_config(file).optimizer.weight_decay
    assert (decay, type(decay)) == (0.0, float)


def test_quickstart_is_valid():
    path = Path(__file__).resolve().parents[2] / "configs" / "quickstart.py"
    assert isinstance(load.load_config(str(path)), Config)


@given(st.integers(-(10**400), 10**400))
def test_any_integer_is_accepted_or_refused_on_one_line(file: str, value: int):
    flag = f"--config.train.workers={value}"
    if 1 <= value <= 100_000:
        assert load.load_config(file, [flag]).train.workers == value
    else:
        [line] = error_lines(file, flag)
        assert line.startswith(f"train.workers={fields.shown(value)}: must be ")


def test_messages_name_the_line_that_sets_the_field(tmp_path: Path):
    path = tmp_path / "bad.py"
    path.write_text(FILE.replace("batch_size=4", "batch_size=0"))
    rule = "train.batch_size=0: must be an integer of at least 1; the default is 128"
    assert error_lines(str(path)) == [f"{rule} (line 8 of bad.py)"]
    assert load.load_config(str(path), ["--config.train.batch_size=4"]).train.batch_size == 4
    path.write_text(FILE)
    assert error_lines(str(path), "--config.train.batch_size=0") == [rule]
    extract = "extract=config.Extract(samples=3, prefix_tokens=2, suffix_tokens=2), "
    path.write_text(FILE.replace("population=", extract + "population=").replace("=16", "=15"))
    [line] = error_lines(str(path))
    assert line.startswith("population.samples=15: ")
    assert line.endswith("(line 5 of bad.py)")
    (tmp_path / "beside.py").write_text("def size():\n    return 1 / 0\n")
    path.write_text("from beside import size\ndef get_config():\n    return size()\n")
    [line] = error_lines(str(path))
    assert line.startswith(f"--config={path}: beside.py, line 2: ZeroDivisionError: ")
    path.write_text("x = (\n\ndef get_config(): ...\n")
    [line] = error_lines(str(path))
    assert line.startswith(f"--config={path}: line 1: SyntaxError: ")


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "bom.py"
    path.write_text(FILE, encoding="utf-8-sig")
    assert load.load_sweep(str(path))


DATACLASS_FILE = """
from __future__ import annotations
import dataclasses, pickle, typing
import setting_of_the_config
from lm_mia.config import Config, Model

@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    layers: int
    kind: typing.ClassVar[str] = "mine"

class Row(typing.NamedTuple):
    width: int

SETTING = Setting(%d)
def get_config():
    assert typing.get_type_hints(Setting) == {"layers": int, "kind": typing.ClassVar[str]}
    assert pickle.loads(pickle.dumps(SETTING)) == SETTING
    return Config(model=Model(layers=SETTING.layers, width=Row(32).width, heads=setting_of_the_config.HEADS))
"""


def test_postponed_annotations_and_dataclasses_in_config_files(tmp_path: Path):
    (tmp_path / "setting_of_the_config.py").write_text(
        "from __future__ import annotations\nimport dataclasses\n"
        "@dataclasses.dataclass\nclass Heads:\n    number: int = 4\nHEADS = Heads().number\n"
    )
    files = [tmp_path / name / "mine.py" for name in ("a", "b")]
    files[0].parent.mkdir()
    files[1].parent.mkdir()
    (tmp_path / "mine.py").write_text(DATACLASS_FILE % 1)
    assert load.load_config(str(tmp_path / "mine.py")).model.heads == 4
    for layers, file in enumerate(files, 2):
        file.write_text(DATACLASS_FILE % layers)
    modules = [load._load_module(str(file))[0] for file in files]
    for layers, (file, module) in enumerate(zip(files, modules, strict=True), 2):
        assert module.get_config().model.layers == layers
        assert load.load_config(str(file)).model.layers == layers


@pytest.mark.parametrize(
    ("returned", "start"),
    [
        ("Config(model=MyModel(layers=1, width=8, heads=2))", "--config={path}: model=MyModel("),
        ("Config(train=Train(subset=Subset.BALANCED))", "train.subset="),
        ("Config(figures=Names('scaling'))", "figures="),
        ("MyConfig()", "--config={path}: get_config() "),
    ],
)
def test_values_of_classes_that_workers_cannot_load_are_refused(
    tmp_path: Path, returned: str, start: str
):
    path = tmp_path / "classes.py"
    path.write_text(
        "import enum, typing\nfrom lm_mia.config import Config, Model, Train\n"
        "class MyModel(Model): ...\nclass MyConfig(Config): ...\n"
        "class Subset(enum.StrEnum):\n    BALANCED = 'balanced'\n"
        "class Names(typing.NamedTuple):\n    first: str\n"
        f"def get_config():\n    return {returned}\n"
    )
    [line] = error_lines(str(path))
    assert line.startswith(start.format(path=path))


@pytest.mark.parametrize(
    ("returned", "hint"),
    [
        ("Config(model=1)", "such as Model()"),
        ("Config(model=Model(layer=1))", " layers?"),
        ("Config(sed=1)", "no such field"),
    ],
)
def test_wrong_keywords_of_a_config_name_the_line_and_the_remedy(
    tmp_path: Path, returned: str, hint: str
):
    path = tmp_path / "keywords.py"
    path.write_text(
        f"from lm_mia.config import Config, Model\ndef get_config():\n    return {returned}\n"
    )
    [line] = error_lines(str(path))
    assert "line 3" in line
    assert hint in line


def test_argument_after_a_comma_belongs_after_a_colon():
    for config_arg, remedy in (
        ("strongmia,fig05,cpu", "use --config=strongmia:fig05,cpu"),
        ("quickstart,cpu", "use --config=quickstart"),
    ):
        [line] = error_lines(config_arg)
        assert line.startswith(f"--config={config_arg}: ")
        assert line.endswith(remedy)


def test_parser_separates_flags_and_overrides():
    parser = load.Parser("lm-mia run", {"--repair": "lm-mia score"})
    parser.add_argument("--config")
    parser.add_argument("--from-hf-shards", "--from_hf_shards")
    mistakes: list[str] = []
    argv = ["--config", "a.py", "--config.x", "-1", "2", "--from_hf_shards=b", "--config.y=3"]
    options, overrides = parser.parse_flags(argv, mistakes)
    assert (options.config, options.from_hf_shards, mistakes) == ("a.py", "b", [])
    assert overrides == ["--config.x", "-1", "2", "--config.y=3"]
    for argv, lines in (
        (["--confg=a"], ["--confg: unknown flag; did you mean --config?"]),
        (["--zzz"], ["--zzz: unknown flag; see lm-mia run --help"]),
        (["--repair"], ["--repair: works only with lm-mia score; leave it out"]),
        (["--config=a", "--config", "b"], ["--config: given more than once; give it once"]),
        (
            ["--from-hf-shards=a", "--from_hf_shards=b", "--wat"],
            [
                "--from-hf-shards: given more than once; give it once",
                "--wat: unknown flag; see lm-mia run --help",
            ],
        ),
        (["a", "--config.x=1"], ["a: unknown argument; see lm-mia run --help"]),
    ):
        mistakes = []
        parser.parse_flags(argv, mistakes)
        assert mistakes == lines
    message = "lm-mia run: argument --config: expected one argument; see lm-mia run --help"
    with pytest.raises(UserError, match=message):
        parser.parse_flags(["--config"], [])
