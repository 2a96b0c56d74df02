import os
import re
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
        ([], "python -m launch: .*VERB; .*launch --help"),
        (["pla"], "pla: .*`python -m launch plan`"),
        (["--config=c4"], "python -m launch: .*: plan, local, "),
        (["slurm", "--config=c4", "--gpus=8"], r"--gpus: .* --gpus-per-node\?"),
        (["jobset", "--config=c4", "--time=4:00:00"], "--time: .*launch slurm; leave"),
        (["local", "--config=c4", "--nodes=4"], "--nodes: .*launch slurm and jobset; "),
        (["slurm", "--config=c4", "--tiem=1"], r"--tiem: .* --time\?"),
        (["slurm", "--config=c4", "--cpus=4"], r"--cpus: .* --cpus-per-task\?"),
        (["local", "--config=configs/quickstart.py"], "--workdir: missing; add --workdir=runs/quickstart"),
        (["plan"], "--config: missing; add --config=quickstart"),
        (["plan", "--config=/nowhere.py"], "--config=/nowhere.py: "),
        (["make-models", "--config=x", "--workdir=y"], "python -m launch make-models: "),
        (["plan", "--config=c4:140M", "--config.attack.replicas=0"], "attack.replicas=0: needs attack.targets=N"),
        (["plan", "--models-per-job=x"], "python -m launch plan: .*--models-per-job: .*'x'"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_on_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(argv) == 2
    assert re.match(message, capsys.readouterr().err)


def test_every_flag_of_some_verbs_is_known_to_the_others():
    verbs: dict[str, set[str]] = {}
    for verb in cli.VERBS:
        for action in cli._parser_of_verb(verb, "launch")._actions:
            for flag in action.option_strings:
                verbs.setdefault(flag, set()).add(verb)
    for flag, own in verbs.items():
        if own != {*cli.VERBS}:
            words = cli._VERBS_OF_FLAG[flag].replace(",", "").split()
            assert {*words} - {"launch", "and"} == own


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
