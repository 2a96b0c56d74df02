from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tiny_config import TINY, change

from lm_mia.errors import UserError
from lm_mia.run import report
from lm_mia.run.progress import Display


def display(update: Any = lambda *_: None, say: Any = lambda _: None) -> Display:
    return cast(Display, SimpleNamespace(update=update, say=say))


def script(folder: Path, text: str) -> Path:
    path = folder / "page.py"
    path.write_text(text)
    return path


@pytest.mark.process
def test_lines_of_the_script_move_the_bar(tmp_path: Path):
    seen, said = list[Any](), list[str]()
    text = "import sys\nprint('1 of 2 figures: a')\nprint('not drawn: a: b')\nprint('no bar')\nprint(sys.argv[1])"
    shown = display(lambda *u: seen.append(u), said.append)
    report.run(script(tmp_path, text), ["2 of 2 figures"], shown)
    assert said == ["not drawn: a: b"]
    assert seen == [("report", 0, 1), ("report", 1, 2), ("report", 2, 2), ("report", 1, 1)]


@pytest.mark.process
def test_a_script_ends_with_the_command(tmp_path: Path):
    def stop(label: str, done: float, total: float) -> None:
        if done == 1 and total == 2:
            raise KeyboardInterrupt

    text = (
        "import pathlib, sys, time\nprint('1 of 2 figures', flush=True)\n"
        "time.sleep(300)\npathlib.Path(sys.argv[1]).touch()"
    )
    with pytest.raises(KeyboardInterrupt):
        report.run(script(tmp_path, text), [str(tmp_path / "end")], display(stop))
    assert not (tmp_path / "end").exists()  # the script has ended, and not by itself


@pytest.mark.process
def test_what_goes_wrong_in_a_script(tmp_path: Path):
    bad = script(tmp_path, "import sys\nprint('no rows', file=sys.stderr)\nsys.exit(2)")
    with pytest.raises(UserError, match=r"^no rows$"):
        report.run(bad, [], display())
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        report.run(script(tmp_path, "1 / 0"), [], display())


def test_figures_must_be_scripts_that_draw(tmp_path: Path):
    path = script(tmp_path, "")
    (tmp_path / "fig01_x.py").write_text("\ndef draw(recipes): ...")
    parts = ("", 'TITLE = ""', 'PAPER = ""', "STATEMENTS = ()", "def draw(recipes): ...")
    (tmp_path / "fig02_x.py").write_text("\n".join(parts))
    c = change(change(TINY, "report", str(path)), "figures", ("fig01_x", "fig02_x", "fig03_x"))
    with pytest.raises(UserError) as caught:
        report.script(c)
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "figures='fig01_x'",
        "figures='fig03_x'",
    ]
    assert report.script(change(c, "figures", ("fig02_x",))) == path
    assert report.script(c, wanted=False) == path
