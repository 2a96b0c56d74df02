import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lm_mia import config
from lm_mia.errors import UserError
from lm_mia.run import workdir
from lm_mia.run.workdir import Workdir

C = config.Config()
DEEPER = dataclasses.replace(C, model=config.Model(layers=3), score=config.Score(micro_rows=1))
FASTER = dataclasses.replace(
    C, train=config.Train(workers=3), attack=config.Attack(references=6), report="other.py"
)


def used(path: Path) -> Workdir:
    """A workdir with a config and a population."""
    w = Workdir(path)
    w.claim(C)
    w.population.mkdir()
    return w


def stored(w: Workdir) -> dict:
    return json.loads((w.path / "config.json").read_text())


def test_paths(tmp_path: Path):
    assert Workdir(tmp_path).population == tmp_path / "population"
    assert Workdir(tmp_path).recipe("0123abcd") == tmp_path / "recipe_0123abcd"


def test_claim_writes_the_config_and_what_made_it(tmp_path: Path):
    w = Workdir(tmp_path / "runs" / "a")
    w.claim(C)
    assert sorted(p.name for p in w.path.iterdir()) == [".config.lock", "config.json"]
    found = stored(w)
    assert found["config"] == config.to_dict(C)
    assert set(found) == {"config", "lm_mia", "packages", "commit", "cpu_cores", "later"}
    assert found["later"] == []
    assert found["packages"]["numpy"] == sys.modules["numpy"].__version__
    assert found["cpu_cores"] == os.cpu_count()


def test_the_same_config_and_free_fields_may_claim_again(tmp_path: Path):
    w = used(tmp_path)
    w.claim(C)
    w.claim(FASTER)
    assert stored(w)["config"] == config.to_dict(FASTER)


def test_another_config_is_refused_with_the_fields_that_differ(tmp_path: Path):
    w = used(tmp_path)
    before = (w.path / "config.json").read_bytes()
    with pytest.raises(UserError) as caught:
        w.claim(DEEPER)
    assert str(caught.value).split("\n") == [
        f"--workdir={tmp_path}: belongs to another config:",
        "  model.layers: 0 -> 3",
        "  score.micro_rows: 0 -> 1",
        "  choose another --workdir, or put these fields back",
    ]
    assert (w.path / "config.json").read_bytes() == before


def test_everything_may_change_while_there_is_no_population(tmp_path: Path):
    w = Workdir(tmp_path)
    w.claim(C)
    w.claim(DEEPER)
    assert stored(w)["config"] == config.to_dict(DEEPER)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"other": 1}', '{"config": []}', "\x00\xff"])
def test_a_config_of_somebody_else(tmp_path: Path, text: str, begun: bool):
    w = used(tmp_path) if begun else Workdir(tmp_path)
    (tmp_path / "config.json").write_text(text, encoding="latin1")
    with pytest.raises(UserError) as caught:
        w.claim(C)
    assert str(caught.value) == (
        f"{tmp_path}/config.json: not a config written by lm-mia; choose another --workdir"
    )
    assert (tmp_path / "config.json").read_text(encoding="latin1") == text


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/nowhere"])
def test_a_path_that_is_no_writable_folder(tmp_path: Path, name: str):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UserError) as caught:
        Workdir(tmp_path / name).claim(C)
    line = str(caught.value)
    assert line.startswith(f"--workdir={tmp_path / name}: ")
    assert line.endswith("; choose a folder that can be written")
    assert "\n" not in line
    assert (tmp_path / "file").read_text() == "precious"


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(workdir, "write_atomically", full)
    with pytest.raises(UserError, match="No space left on device; choose a folder"):
        Workdir(tmp_path).claim(C)


def test_disclaim_leaves_nothing_of_its_own_behind(tmp_path: Path):
    new, mine = Workdir(tmp_path / "deep" / "a" / "new"), Workdir(tmp_path / "mine")
    mine.path.mkdir()
    (mine.path / "precious").write_text("kept")
    for w in (new, mine):
        created = w.claim(C)
        w.disclaim(created)
        w.disclaim(created)
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    assert [p.name for p in mine.path.iterdir()] == ["precious"]


def test_disclaim_keeps_what_an_earlier_command_began(tmp_path: Path):
    w = Workdir(tmp_path)
    w.claim(C)
    w.disclaim(w.claim(DEEPER))
    assert stored(w)["config"] == config.to_dict(DEEPER)


def test_rows_without_a_config_are_not_claimed(tmp_path: Path):
    (tmp_path / "recipe_0123abcd").mkdir()
    with pytest.raises(UserError, match=r"config.json: missing, but rows are there; put it back"):
        Workdir(tmp_path).claim(C)
    assert [p.name for p in tmp_path.iterdir()] == ["recipe_0123abcd"]


def test_rows_alone_fix_the_config_too(tmp_path: Path):
    w = used(tmp_path)
    (tmp_path / "recipe_0123abcd").mkdir()
    w.population.rmdir()
    with pytest.raises(UserError, match=r"model.layers: 0 -> 3"):
        w.claim(DEEPER)


def test_versions_stay_those_that_began_and_others_are_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    w = used(tmp_path)
    first = stored(w)
    for commit in ("abc", first["commit"], "def", "abc"):
        monkeypatch.setattr(workdir, "_commit", lambda commit=commit: commit)
        w.claim(FASTER)
    found = stored(w)
    assert [entry["commit"] for entry in found["later"]] == ["abc", "def"]
    assert found | {"later": [], "config": {}} == first | {"config": {}}
    assert {tuple(sorted(entry)) for entry in found["later"]} == {
        ("commit", "cpu_cores", "lm_mia", "packages")
    }


def test_disclaim_keeps_the_config_of_a_population(tmp_path: Path):
    w = Workdir(tmp_path / "w")
    created = w.claim(C)
    w.population.mkdir()
    w.disclaim(created)
    assert stored(w)["config"] == config.to_dict(C)


def test_log_lines_are_json_with_a_time(tmp_path: Path):
    Workdir(tmp_path).log({"event": "a", "loss": 1.5})
    Workdir(tmp_path).log({"event": "b\nc"})
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (first["event"], first["loss"], second["event"]) == ("a", 1.5, "b\nc")
    assert first["time"] <= second["time"]
    assert first["time"].endswith("+00:00")


APPEND = """
import pathlib, sys
from lm_mia.run.workdir import Workdir
for i in range(300):
    Workdir(pathlib.Path(sys.argv[1])).log({"who": sys.argv[2], "i": i, "long": sys.argv[2] * 5000})
"""


@pytest.mark.process
def test_lines_of_several_processes_are_whole(tmp_path: Path):
    writers = [
        subprocess.Popen([sys.executable, "-c", APPEND, str(tmp_path), name]) for name in "abc"
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    for name in "abc":
        mine = [event for event in events if event["who"] == name]
        assert [event["i"] for event in mine] == list(range(300))
        assert {event["long"] for event in mine} == {name * 5000}


def test_the_commit_is_recorded_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_git(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(workdir.subprocess, "run", no_git)
    w = Workdir(tmp_path)
    w.claim(C)
    assert stored(w)["commit"] is None


def test_a_name_stays_where_a_later_command_has_none(tmp_path: Path):
    w = Workdir(tmp_path)
    w.claim(dataclasses.replace(C, name="main"))
    w.claim(C)
    assert json.loads((tmp_path / "config.json").read_text())["config"]["name"] == "main"
