import os
import subprocess
import sys
from pathlib import Path

import pytest

from launch import cli

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m launch {verb} ")


def test_help_lists_the_verbs(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n  {verb} " in out for verb in cli.VERBS)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "python -m launch: the following arguments are required: VERB; see python -m launch --help"),
        (["pla"], "python -m launch: argument VERB: invalid choice: 'pla'"),
        (["local", "--config=configs/quickstart.py"], "--workdir: missing; add --workdir=runs/quickstart"),
        (["plan"], "--config: missing; add --config=quickstart"),
        (["plan", "--config=/nowhere.py"], "--config=/nowhere.py: no such Python file"),
        (["make-models", "--config=x", "--workdir=y"], "python -m launch make-models: the following arguments are"),
        (["plan", "--config=c4:140M", "--config.attack.replicas=0"], "attack.replicas=0: needs attack.targets=N"),
        (["plan", "--models-per-job=x"], "python -m launch plan: argument --models-per-job: invalid int value: 'x'"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_on_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(argv) == 2
    assert capsys.readouterr().err.startswith(message)


def test_mistakes_in_flags_and_config_are_reported_together(capsys: pytest.CaptureFixture[str]):
    config = f"--config={ROOT / 'configs' / 'quickstart.py'}"
    flags = "--time=x", "--mfu=2", "--config.model.layer=1"
    assert cli.main(["slurm", config, *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0].split("=")[0] for line in lines] == [
        "--workdir",
        "--config.model.layer",
        "--time",
        "--mfu",
    ]


@pytest.mark.process
def test_plan_loads_neither_jax_nor_pandas_nor_tensorstore():
    code = (
        "import sys; from launch import cli; "
        f"assert cli.main(['plan', '--config={ROOT / 'configs' / 'c4.py'}']) == 0; "
        "sys.exit(' '.join({'jax', 'pandas', 'tensorstore', 'zarr'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}
    )
    assert done.stderr == "\n"
