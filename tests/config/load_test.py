import dataclasses
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import FILE, error_lines

from lm_mia.config import Config, load
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
    assert error_lines(file, "--config.train.batch-size=2", "--config.train.batch_size=4") == [
        "--config.train.batch_size: given more than once; give it once"
    ]
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
    ("--config.model.layers=two", "model.layers='two': must be an integer"),
    ("--config.model.layers=2.0", "model.layers='2.0': must be an integer"),
    ("--config.model.layers", "model.layers='': must be an integer"),
    ("--config.model.layers=", "model.layers='': must be an integer"),
    ("--config.model.layers=--help", "model.layers='--help': must be an integer"),
    ("--config.corpus.column=--help", "corpus.column='--help': must be a string"),
    ("--config.attack.alpha=high", "attack.alpha='high': must be a number"),
    (
        "--config.attack.fprs=0.1,x",
        "attack.fprs='0.1,x': must be a list of numbers such as 0.01,0.05",
    ),
    (
        "--config.attack.fprs=0.1,",
        "attack.fprs='0.1,': must be a list of numbers such as 0.01,0.05",
    ),
    *(
        (
            f"--config.score.at_steps={value}",
            f"score.at_steps={value!r}: must be a list of integers such as 100,200",
        )
        for value in ("1.5", "1,x", "1,", ",")
    ),
    ("--config.model.dtype=float16", "model.dtype='float16': must be one of float32, bfloat16"),
    (
        "--config.corpus.source=",
        "corpus.source='': must be one of docstrings, text, jsonl, csv, parquet, c4, imported",
    ),
    ("--config.model.layers=-1", "model.layers=-1: must be a finite number larger than 0"),
    *(
        (
            f"--config.model.{field}=0",
            f"model.{field}=0: must be 1 or larger; leave it out to use that of model.size",
        )
        for field in ("layers", "width")
    ),
    (
        "--config.optimizer.peak_learning_rate=nan",
        "optimizer.peak_learning_rate=nan: must be a finite number larger than 0",
    ),
    (
        "--config.score.statistics=loss",
        "score.statistics='loss': must be one or more of summed_loss, target_logit, greedy_match, "
        "min_k, min_k_plus_plus, lowercase_loss",
    ),
    *(
        (
            f"--config.attack.band{value}",
            f"attack.band={value[1:]!r}: must be two numbers such as 0.01,0.05",
        )
        for value in ("=0.1", "=0.1,0.2,0.3", "=0.1,x", "=", "")
    ),
    (
        "--config.attack.band=0.2,0.1",
        "attack.band=(0.2, 0.1): must be two rates in [0, 1], the lower one first",
    ),
    *(
        (
            f"--config.attack.leave_one_out{value}",
            f"attack.leave_one_out={value[1:]!r}: must be True or False",
        )
        for value in ("=1", "=yes", "=")
    ),
    (
        "--config.attack.variance=global",
        "attack.variance='global': must be one of per_sample, pooled",
    ),
    ("layers=3", "layers=3: unknown argument; overrides look like --config.model.layers=4"),
    ("--layers=3", "--layers=3: unknown argument; overrides look like --config.model.layers=4"),
]


@pytest.mark.parametrize(("flag", "message"), MISTAKES)
def test_each_mistake_is_reported_on_one_line(file: str, flag: str, message: str):
    assert error_lines(file, flag) == [message]


def test_two_values_for_one_number_are_refused(file: str):
    assert error_lines(file, "--config.model.layers", "3", "4") == [
        "model.layers='3 4': must be an integer"
    ]


def test_negative_numbers_may_be_separate_words(file: str):
    assert error_lines(file, "--config.population.seed", "-1") == [
        "population.seed=-1: must be a finite number, 0 or larger"
    ]


def test_mistakes_of_all_kinds_are_reported_together(file: str):
    flags = ["--config.model.layers=x", "--config.train.epoch=2", "--config.attack.replicas=1"]
    assert error_lines(file, *flags) == [
        "model.layers='x': must be an integer",
        "--config.train.epoch: no such field; did you mean --config.train.epochs?",
        "attack.replicas=1: must be 0 (no replicas) or at least 2, since a flip rate needs two decisions",
    ]


def test_rules_about_misspelled_fields_are_not_checked(file: str):
    """With the file's heads=2, width=7 would break a rule, but heads is about to change."""
    assert error_lines(file, "--config.model.width=7", "--config.model.heads=seven") == [
        "model.heads='seven': must be an integer"
    ]
    assert error_lines(file, "--config.model.width=7", "--config.model.head=7") == [
        "--config.model.head: no such field; did you mean --config.model.heads?"
    ]
    assert error_lines(file, "--config.corpus.source=txt", "--config.corpus.path=x") == [
        "corpus.source='txt': must be one of docstrings, text, jsonl, csv, parquet, c4, imported"
    ]


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
    assert error_lines("tiny") == [
        "--config=tiny: lm_mia includes no config of this name; did you mean tiny.py?"
    ]


def test_a_file_that_changes_a_config_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("bad.py").write_text("from lm_mia.config import Config\nc = Config()\nc.name = 'a'\n")
    [line] = error_lines("bad.py")
    assert line.startswith("--config=bad.py: line 3: name: a config cannot be changed; ")


def test_integers_have_a_maximum(file: str):
    flags = "--config.attack.references=1000002", "--config.population.frequency_samples=2147483648"
    assert error_lines(file, *flags) == [
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
    assert error_lines("quikstart") == [f"--config=quikstart: {rule}; did you mean quickstart?"]
    assert error_lines("zzz:cpu") == [
        f"--config=zzz:cpu: {rule}; try --config=quickstart, or a path such as my_config.py"
    ]
    assert error_lines("strong:cpu") == [f"--config=strong:cpu: {rule}; did you mean strongmia?"]


def test_a_file_with_the_name_of_an_included_config_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # as of `python -m lm_mia.cli`
    included = load.load_config("quickstart")
    assert load.namesake("quickstart") == ""
    assert error_lines("quickstart.py")[0].endswith(
        "did you mean quickstart, which lm_mia includes?"
    )
    (tmp_path / "quickstart.py").write_text(FILE)
    assert load.load_config("quickstart") == included != load.load_config("quickstart.py")
    assert load.load_config("quickstart.py:3") == load.load_config("./quickstart.py:3")
    assert "takes the config that lm_mia includes" in load.namesake("quickstart")
    assert load.namesake("quickstart:3").endswith(" is --config=./quickstart.py:3")
    assert "takes the file of this folder" in load.namesake("quickstart.py:3")
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
        ("get_config = 3", "", "TypeError: 3 is not a callable object"),
        ("def get_config(): return {}", "", "get_config() returned dict, not a Config"),
        ("def get_config(): return 1 / 0", "", "line 1: ZeroDivisionError: division by zero"),
        (
            "from lm_mia.config import Config\ndef get_config(): Config().model.layers = 3",
            "",
            "line 2: layers: a config cannot be changed; return a changed copy, such as "
            "dataclasses.replace(config, model=dataclasses.replace(config.model, layers=3))",
        ),
        ("def get_config(): raise ValueError('a\\nb')", "", "line 1: ValueError: a b"),
        (
            "import nothing_of_this_name",
            "",
            "line 1: ModuleNotFoundError: No module named 'nothing_of_this_name'",
        ),
        (FILE, ":big", "line 6: ValueError: invalid literal for int() with base 10: 'big'"),
        (
            FILE.replace('size="1"', "").replace("size", "1"),
            ":gpu",
            "get_config() takes no argument; remove ':gpu'",
        ),
        (
            FILE.replace("8,", "'8',"),
            "",
            "model.width='8': must be an integer (line 6 of bad.py)",
        ),
        (
            FILE.replace("layers=int(size)", "layers=True"),
            "",
            "model.layers=True: must be an integer (line 6 of bad.py)",
        ),
        (
            FILE.replace("warmup_steps=1", "clip_norm='1'"),
            "",
            "optimizer.clip_norm='1': must be a number (line 7 of bad.py)",
        ),
        (
            FILE.replace("batch_size=4", "subset='a'"),
            "",
            "train.subset='a': must be one of exact, bernoulli, balanced, given (line 8 of bad.py)",
        ),
        (
            FILE.replace("(0.1, 0.5)", "0.1"),
            "",
            "attack.fprs=0.1: must be a list of numbers such as 0.01,0.05 (line 10 of bad.py)",
        ),
        (
            FILE.replace("(0, 0.1)", "(0.1,)"),
            "",
            "attack.band=(0.1,): must be two numbers such as 0.01,0.05 (line 10 of bad.py)",
        ),
        (
            FILE.replace("(0, 0.1)", "[0, 0.1]"),
            "",
            "attack.band=[0, 0.1]: must be two numbers such as 0.01,0.05 (line 10 of bad.py)",
        ),
        (
            FILE.replace("band=(0, 0.1)", "leave_one_out=0"),
            "",
            "attack.leave_one_out=0: must be True or False (line 10 of bad.py)",
        ),
        (
            FILE.replace("band=(0, 0.1)", "attacks='loss'"),
            "",
            "attack.attacks='loss': must be a list of names (line 10 of bad.py)",
        ),
        (
            FILE.replace("batch_size=4)", "batch_size=4), score=config.Score(statistics=('min',))"),
            "",
            "score.statistics=('min',): must be one or more of summed_loss, target_logit, greedy_match, "
            "min_k, min_k_plus_plus, lowercase_loss (line 8 of bad.py)",
        ),
        (
            FILE.replace("(0.1, 0.5)", "('1',)"),
            "",
            "attack.fprs=('1',): must be a list of numbers such as 0.01,0.05 (line 10 of bad.py)",
        ),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, arg: str, message: str):
    (tmp_path / "bad.py").write_text(text)
    name = f"{tmp_path / 'bad.py'}{arg}"
    assert error_lines(name) == [f"--config={name}: {message}"]


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
    if 0 <= value <= 100_000:
        assert load.load_config(file, [flag]).train.workers == value
    else:
        rule = "at most 100,000" if value > 0 else "a finite number, 0 or larger"
        assert error_lines(file, flag) == [f"train.workers={value}: must be {rule}"]


def test_messages_name_the_line_that_sets_the_field(tmp_path: Path):
    path = tmp_path / "bad.py"
    path.write_text(FILE.replace("batch_size=4", "batch_size=0"))
    rule = "train.batch_size=0: must be a finite number larger than 0"
    assert error_lines(str(path)) == [f"{rule} (line 8 of bad.py)"]
    assert load.load_config(str(path), ["--config.train.batch_size=4"]).train.batch_size == 4
    path.write_text(FILE)
    assert error_lines(str(path), "--config.train.batch_size=0") == [rule]
    extract = "extract=config.Extract(samples=3, prefix_tokens=2, suffix_tokens=2), "
    path.write_text(FILE.replace("population=", extract + "population=").replace("=16", "=15"))
    [line] = error_lines(str(path))
    assert line.startswith("population.samples=15: must be even, ")
    assert line.endswith("(line 5 of bad.py)")
    (tmp_path / "beside.py").write_text("def size():\n    return 1 / 0\n")
    path.write_text("from beside import size\ndef get_config():\n    return size()\n")
    assert error_lines(str(path)) == [
        f"--config={path}: beside.py, line 2: ZeroDivisionError: division by zero"
    ]
    path.write_text("x = (\n\ndef get_config(): ...\n")
    assert error_lines(str(path)) == [f"--config={path}: line 1: SyntaxError: '(' was never closed"]


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
    ("returned", "field"),
    [
        ("Config(model=MyModel(layers=1, width=8, heads=2))", "model"),
        ("Config(train=Train(subset=Subset.BALANCED))", "train.subset"),
        ("Config(figures=Names('scaling'))", "figures"),
        ("MyConfig()", "get_config() returned MyConfig"),
    ],
)
def test_values_of_classes_that_workers_cannot_load_are_refused(
    tmp_path: Path, returned: str, field: str
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
    assert line.startswith(f"--config={path}: {field}")


@pytest.mark.parametrize(
    ("returned", "hint"),
    [
        ("Config(model=1)", "such as Model()"),
        ("Config(model=Model(layer=1))", "did you mean layers?"),
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
