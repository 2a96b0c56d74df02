from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_config import FILE, wrong

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
    assert wrong(file, "--config.train.batch-size=2", "--config.train.batch_size=4") == [
        "--config.train.batch_size: given more than once; give it once"
    ]
    assert load.load_config(file, ["--config.optimizer.peak-learning-rate=1e-3"]).optimizer == (
        load.load_config(file, ["--config.optimizer.peak_learning_rate=0.001"]).optimizer
    )


def test_what_an_attack_needs_is_said_as_it_is_typed(file: str):
    asked = "--config.attack.attacks=lira_online,lowercase,min_k"
    [line] = wrong(file, asked)
    assert line.startswith(
        "attack.attacks=('lira_online', 'lowercase', 'min_k'): for lowercase, min_k the loss"
    )
    _, _, way_out = line.partition("; set ")
    c = load.load_config(file, [asked, way_out])
    assert c.score.statistics == ("lowercase_loss", "min_k")
    assert load.load_config(file, ["--config.score.statistics"]).score.statistics == ()


def test_booleans_and_choices_of_the_attack(file: str):
    flags = ("leave-one-out", "leave_one_out=true", "leave_one_out=False", "no-leave-one-out")
    for flag, value in zip(flags, (True, True, False, False), strict=True):
        assert load.load_config(file, [f"--config.attack.{flag}"]).attack.leave_one_out is value
    assert "no such field" in wrong(file, "--config.attack.no-leave-one-out=True")[0]
    more = ["--config.attack.finite-population", "True", "--config.attack.variance=pooled"]
    after = load.load_config(file, ["--config.attack.leave_one_out=True", *more]).attack
    assert (after.leave_one_out, after.finite_population, after.variance) == (True, True, "pooled")


WRONG = [
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
    ("--config.model.layers=two", "model.layers='two': must be a whole number"),
    ("--config.model.layers=2.0", "model.layers='2.0': must be a whole number"),
    ("--config.model.layers", "model.layers='': must be a whole number"),
    ("--config.model.layers=", "model.layers='': must be a whole number"),
    ("--config.model.layers=--help", "model.layers='--help': must be a whole number"),
    ("--config.corpus.column=--help", "corpus.column='--help': must be a text"),
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
            f"--config.score.at_steps={said}",
            f"score.at_steps={said!r}: must be a list of whole numbers such as 100,200",
        )
        for said in ("1.5", "1,x", "1,", ",")
    ),
    ("--config.model.dtype=float16", "model.dtype='float16': must be one of float32, bfloat16"),
    (
        "--config.corpus.source=",
        "corpus.source='': must be one of docstrings, text, jsonl, parquet, c4",
    ),
    ("--config.model.layers=-1", "model.layers=-1: must be a finite number larger than 0"),
    (
        "--config.optimizer.peak_learning_rate=nan",
        "optimizer.peak_learning_rate=nan: must be a finite number larger than 0",
    ),
    *(
        (
            f"--config.attack.attacks{said}",
            f"attack.attacks={said[1:]!r}: must be some of lira_online, lira_offline, rmia, rmia_offline, "
            "rmia_simple, reference_calibrated, loss, zlib, min_k, min_k_plus_plus, lowercase",
        )
        for said in ("=lira", "=lira_online,LOSS", "=lira_online,,loss", "=lira_online,", "=,")
    ),
    (
        "--config.score.statistics=loss",
        "score.statistics='loss': must be some of summed_loss, target_logit, greedy_match, "
        "min_k, min_k_plus_plus, lowercase_loss",
    ),
    *(
        (
            f"--config.attack.band{said}",
            f"attack.band={said[1:]!r}: must be two numbers such as 0.01,0.05",
        )
        for said in ("=0.1", "=0.1,0.2,0.3", "=0.1,x", "=", "")
    ),
    (
        "--config.attack.band=0.2,0.1",
        "attack.band=(0.2, 0.1): must be two rates in [0, 1], the lower first",
    ),
    *(
        (
            f"--config.attack.leave_one_out{said}",
            f"attack.leave_one_out={said[1:]!r}: must be True or False",
        )
        for said in ("=1", "=yes", "=")
    ),
    (
        "--config.attack.variance=global",
        "attack.variance='global': must be one of per_sample, pooled",
    ),
    ("layers=3", "layers=3: unknown argument; overrides look like --config.model.layers=4"),
    ("--layers=3", "--layers=3: unknown argument; overrides look like --config.model.layers=4"),
]


@pytest.mark.parametrize(("flag", "said"), WRONG)
def test_a_mistake_is_one_line(file: str, flag: str, said: str):
    assert wrong(file, flag) == [said]


def test_two_values_for_a_number(file: str):
    assert wrong(file, "--config.model.layers", "3", "4") == [
        "model.layers='3 4': must be a whole number"
    ]


def test_negative_numbers_as_words_of_their_own(file: str):
    assert wrong(file, "--config.population.seed", "-1") == [
        "population.seed=-1: must be a finite number, 0 or larger"
    ]


def test_mistakes_of_every_kind_are_told_at_once(file: str):
    flags = ["--config.model.layers=x", "--config.train.epoch=2", "--config.attack.replicas=1"]
    assert wrong(file, *flags) == [
        "model.layers='x': must be a whole number",
        "--config.train.epoch: no such field; did you mean --config.train.epochs?",
        "attack.replicas=1: must be 0 (no replicas) or at least 2, since a flip rate needs two decisions",
    ]


def test_a_rule_is_not_judged_by_a_value_that_was_not_meant(file: str):
    """With heads=2 of the file, width=7 would break a rule; but heads is about to change."""
    assert wrong(file, "--config.model.width=7", "--config.model.heads=seven") == [
        "model.heads='seven': must be a whole number"
    ]
    assert wrong(file, "--config.model.width=7", "--config.model.head=7") == [
        "--config.model.head: no such field; did you mean --config.model.heads?"
    ]
    assert wrong(file, "--config.corpus.source=txt", "--config.corpus.path=x") == [
        "corpus.source='txt': must be one of docstrings, text, jsonl, parquet, c4"
    ]


@pytest.mark.parametrize("name", ["missing.py", "folder.py", "tiny.txt", "", "."])
def test_no_such_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "tiny.txt").write_text(FILE)
    rule = "no such Python file; try --config=quickstart, which is included in lm_mia"
    assert wrong(name) == [f"--config={name}: {rule}"]


def test_a_name_selects_an_included_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # wherever the command is run, and whatever lies there
    (tmp_path / "quickstart").write_text("")
    assert load.load_config("quickstart") == load.load_config(
        str(load.included_configs() / "quickstart.py")
    )
    assert load.load_config("c4:140M").model.size == "140M"
    assert load.load_config("quickstart", ["--config.train.epochs=2"]).train.epochs == 2
    rule = "lm_mia includes no config of this name"
    assert wrong("quikstart") == [f"--config=quikstart: {rule}; did you mean quickstart?"]
    assert wrong("zzz:cpu") == [
        f"--config=zzz:cpu: {rule}; try --config=quickstart, or a path such as mine.py"
    ]
    assert wrong("strong:cpu") == [f"--config=strong:cpu: {rule}; did you mean strongmia?"]


def test_a_copy_of_an_included_config_imports_the_others(tmp_path: Path):
    copy = tmp_path / "mine.py"
    copy.write_text((load.included_configs() / "own.py").read_text())
    assert load.load_config(str(copy)) == load.load_config("own")


@pytest.mark.parametrize(
    ("text", "arg", "said"),
    [
        ("x = 1", "", "the file defines no get_config()"),
        ("get_config = 3", "", "TypeError: 3 is not a callable object"),
        ("def get_config(): return {}", "", "get_config() returned dict, not a Config"),
        ("def get_config(): return 1 / 0", "", "line 1: ZeroDivisionError: division by zero"),
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
            "get_config() takes no argument; drop ':gpu'",
        ),
        (
            FILE.replace("8,", "'8',"),
            "",
            "model.width='8': must be a whole number (line 6 of bad.py)",
        ),
        (
            FILE.replace("layers=int(size)", "layers=True"),
            "",
            "model.layers=True: must be a whole number (line 6 of bad.py)",
        ),
        (
            FILE.replace("warmup_steps=1", "clip_norm='1'"),
            "",
            "optimizer.clip_norm='1': must be a number (line 7 of bad.py)",
        ),
        (
            FILE.replace("batch_size=4", "subset='a'"),
            "",
            "train.subset='a': must be one of exact, bernoulli, balanced (line 8 of bad.py)",
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
            "attack.attacks='loss': must be some of lira_online, lira_offline, rmia, rmia_offline, rmia_simple, "
            "reference_calibrated, loss, zlib, min_k, min_k_plus_plus, lowercase (line 10 of bad.py)",
        ),
        (
            FILE.replace("batch_size=4)", "batch_size=4), score=config.Score(statistics=('min',))"),
            "",
            "score.statistics=('min',): must be some of summed_loss, target_logit, greedy_match, "
            "min_k, min_k_plus_plus, lowercase_loss (line 8 of bad.py)",
        ),
        (
            FILE.replace("(0.1, 0.5)", "('1',)"),
            "",
            "attack.fprs=('1',): must be a list of numbers such as 0.01,0.05 (line 10 of bad.py)",
        ),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, arg: str, said: str):
    (tmp_path / "bad.py").write_text(text)
    name = f"{tmp_path / 'bad.py'}{arg}"
    assert wrong(name) == [f"--config={name}: {said}"]


def test_an_error_of_the_files_syntax_or_fields_is_one_line(tmp_path: Path):
    for text, word in (
        ("def get_config(:", "SyntaxError"),
        (FILE.replace("layers", "layer"), "layer"),
    ):
        (tmp_path / "bad.py").write_text(text)
        [line] = wrong(str(tmp_path / "bad.py"))
        assert word in line


def test_a_whole_number_for_a_number_is_the_same_recipe(file: str):
    decay = load.load_config(file).optimizer.weight_decay
    assert (decay, type(decay)) == (0.0, float)


def test_the_file_of_the_quickstart_is_sound():
    path = Path(__file__).resolve().parents[2] / "configs" / "quickstart.py"
    assert isinstance(load.load_config(str(path)), Config)


@given(st.integers(-(10**400), 10**400))
def test_any_whole_number_is_taken_or_refused_in_a_line(file: str, value: int):
    flag = f"--config.train.workers={value}"
    if value >= 0:
        assert load.load_config(file, [flag]).train.workers == value
    else:
        assert wrong(file, flag) == [f"train.workers={value}: must be a finite number, 0 or larger"]


def test_the_line_of_a_mistake_is_told_where_one_line_sets_the_field(tmp_path: Path):
    path = tmp_path / "bad.py"
    path.write_text(FILE.replace("batch_size=4", "batch_size=0"))
    rule = "train.batch_size=0: must be a finite number larger than 0"
    assert wrong(str(path)) == [f"{rule} (line 8 of bad.py)"]
    assert load.load_config(str(path), ["--config.train.batch_size=4"]).train.batch_size == 4
    path.write_text(FILE)
    assert wrong(str(path), "--config.train.batch_size=0") == [rule]
    extract = "extract=config.Extract(samples=3, prefix_tokens=2, suffix_tokens=2), "
    path.write_text(FILE.replace("population=", extract + "population=").replace("=16", "=15"))
    [line] = wrong(str(path))
    assert line.startswith("population.samples=15: must be even (2N)")
    assert line.endswith("(line 5 of bad.py)")
    (tmp_path / "beside.py").write_text("def size():\n    return 1 / 0\n")
    path.write_text("from beside import size\ndef get_config():\n    return size()\n")
    assert wrong(str(path)) == [
        f"--config={path}: beside.py, line 2: ZeroDivisionError: division by zero"
    ]
    path.write_text("x = (\n\ndef get_config(): ...\n")
    assert wrong(str(path)) == [f"--config={path}: line 1: SyntaxError: '(' was never closed"]


def test_a_config_file_may_begin_with_a_byte_order_mark(tmp_path: Path):
    path = tmp_path / "bom.py"
    path.write_text(FILE, encoding="utf-8-sig")
    assert load.load_sweep(str(path))


def test_flags_of_a_command_and_overrides_are_told_apart():
    parser = load.Parser("lm-mia run", {"--repair": "lm-mia score"})
    parser.add_argument("--config")
    parser.add_argument("--from-hf-shards", "--from_hf_shards")
    wrong: list[str] = []
    argv = ["--config", "a.py", "--config.x", "-1", "2", "--from_hf_shards=b", "--config.y=3"]
    known, overrides = parser.parse_flags(argv, wrong)
    assert (known.config, known.from_hf_shards, wrong) == ("a.py", "b", [])
    assert overrides == ["--config.x", "-1", "2", "--config.y=3"]
    for argv, lines in (
        (["--confg=a"], ["--confg: there is no such flag; did you mean --config?"]),
        (["--zzz"], ["--zzz: there is no such flag; see lm-mia run --help"]),
        (["--repair"], ["--repair: works only with lm-mia score; leave it out"]),
        (["--config=a", "--config", "b"], ["--config: given more than once; give it once"]),
        (
            ["--from-hf-shards=a", "--from_hf_shards=b", "--wat"],
            [
                "--from-hf-shards: given more than once; give it once",
                "--wat: there is no such flag; see lm-mia run --help",
            ],
        ),
        (["a", "--config.x=1"], ["a: unknown argument; see lm-mia run --help"]),
    ):
        wrong = []
        parser.parse_flags(argv, wrong)
        assert wrong == lines
    said = "lm-mia run: argument --config: expected one argument; see lm-mia run --help"
    with pytest.raises(UserError, match=said):
        parser.parse_flags(["--config"], [])
