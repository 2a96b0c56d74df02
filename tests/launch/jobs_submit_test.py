import re
import shlex
import subprocess
from pathlib import Path

import pytest
import tiny_run
import tiny_sweep
import yaml
from tiny_run import tiny

from launch import cli, slurm
from lm_mia.config.recipe import recipe_hash
from lm_mia.errors import UserError
from lm_mia.run.sweep import Sweep, read_sweep

__all__ = ["tiny"]  # a fixture

GROUPS_OF_4 = "--config.compute.devices_per_model=4"
# Differs from the setting of the workdir.
OVERRIDE = "--config.train.workers=2"
PODS = "--image=i", "--gpus=8", "--claim=c", "--mount=/data"


@pytest.fixture
def sweep(tiny: tiny_run.Tiny, tmp_path: Path) -> Sweep:
    """Returns a sweep of two recipes with its population and the first two models of the first recipe."""
    workdir = tiny.copy(tmp_path / "s x")
    for shard in tiny_run.recipe_of(workdir).glob("scores.zarr/loss/c/[2345]/*"):
        shard.unlink()
    return read_sweep(tiny_sweep.config_file(tiny, tmp_path), str(workdir), ())


def flags(sweep: Sweep, *more: str) -> list[str]:
    return [f"--config={sweep.config_arg}", f"--workdir={sweep.workdir.path}", *more]


def test_one_array_per_recipe_with_the_missing_blocks(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
):
    more = "--time=10", "--models-per-job=2", "--at-once=1", "--config.figures=a 'b' $(c).py"
    assert cli.main(["slurm", *flags(sweep, *more)]) == 0
    paths = [sweep.workdir.path / "slurm" / f"models_{task.name}.sbatch" for task in sweep.recipes]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [shlex.join(["sbatch", str(path)]) for path in paths]
    first, second = (path.read_text() for path in paths)
    assert "#SBATCH --array=1-2%1\n" in first
    assert "#SBATCH --array=0-2%1\n" in second
    assert "  --recipe=tiny \\\n  --recipe-hash=" in first
    assert """'--config.figures=a '"'"'b'"'"' $(c).py'""" in first
    assert not (sweep.workdir.path / "slurm" / "corpus.sbatch").exists()
    assert (sweep.workdir.path / "logs").is_dir()  # SLURM makes none


def test_missing_corpus_is_submitted_first(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    sweep = read_sweep(tiny_sweep.config_file(tiny, tmp_path), str(tmp_path / "s"), ())
    sent: list[tuple[str, list[str]]] = []

    def submit(path: Path, after: list[str]) -> str:
        sent.append((path.name, list(after)))
        return str(len(sent))

    monkeypatch.setattr("launch.slurm.submit", submit)
    assert cli.main(["slurm", *flags(sweep, "--time=10", "--submit")]) == 0
    names = [f"models_{task.name}.sbatch" for task in sweep.recipes]
    assert sent == [("corpus.sbatch", []), (names[0], ["1"]), (names[1], ["1"])]
    assert "job 3" in capsys.readouterr().out


def test_machines_without_a_slurm_cluster_are_reported(monkeypatch: pytest.MonkeyPatch):
    stderr = (
        "sbatch: error: s_p_parse_file\nsbatch: fatal: Could not establish a configuration source\n"
    )
    done = subprocess.CompletedProcess([], 1, "", stderr)
    monkeypatch.setattr("launch.slurm.subprocess.run", lambda *args, **kwargs: done)
    with pytest.raises(UserError, match=r"^sbatch: .*controller .*login node"):
        slurm.submit(Path("/x.sbatch"))
    done.stderr = "sbatch: error: invalid partition specified: x\n"
    with pytest.raises(UserError, match=r"x\.sbatch: .*invalid partition"):
        slurm.submit(Path("/x.sbatch"))


def test_groups_that_are_larger_than_a_node_are_refused(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
):
    flags_of_nodes = "--time=10", "--nodes=2", "--gpus-per-node=2"
    assert cli.main(["slurm", *flags(sweep, *flags_of_nodes, GROUPS_OF_4)]) == 2
    lines = capsys.readouterr().err.splitlines()
    for line, name in zip(lines, ("tiny", "epochs=2"), strict=True):
        assert re.match(rf"compute\.devices_per_model=4: .*\b2\b.* {name};", line)
    assert not (sweep.workdir.path / "slurm").exists()


@pytest.mark.parametrize(("devices", "wait"), [("auto", 0), ("4", 0), ("all", 99)])
def test_nodes_with_models_of_their_own_do_not_wait(sweep: Sweep, devices: str, wait: int):
    """srun would stop the tasks of the other nodes soon after the first task ends."""
    more = "--time=10", "--nodes=2", "--grace-seconds=99"
    override = f"--config.compute.devices_per_model={devices}"
    assert cli.main(["slurm", *flags(sweep, *more, override)]) == 0
    script = (sweep.workdir.path / "slurm" / "models_tiny.sbatch").read_text()
    assert f"\nsrun --kill-on-bad-exit=0 --wait={wait} " in script


def test_next_command_is_printed_if_no_model_is_missing(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """The engines submit nothing and write nothing."""
    workdir = tiny.copy(tmp_path / "s x")
    (workdir / "report.html").unlink()
    monkeypatch.chdir(tiny.folder)
    argv = [f"--config={tiny.config}", f"--workdir={workdir}"]
    pods = "--image=i", "--gpus=8", "--claim=c", f"--mount={tmp_path}", f"--output={tmp_path}/js"
    for engine in (["slurm", "--time=10", "--submit"], ["jobset", *pods]):
        assert cli.main([*engine, *argv, OVERRIDE]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert shlex.split(last) == ["lm-mia", "run", *argv, OVERRIDE]
    assert not (workdir / "slurm").exists()
    assert not (tmp_path / "js").exists()


def test_one_jobset_per_job_with_its_command(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    config = Path(tiny_sweep.config_file(tiny, tmp_path)).name
    argv = [
        f"--config={config}",
        "--workdir=/data/s",
        "--models-per-job=4",
        "--output=js",
    ]
    assert cli.main(["jobset", *argv, *PODS]) == 0
    paths = [Path(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(paths) == 2
    assert {path.parent for path in paths} == {tmp_path / "js"}
    [task, _] = read_sweep(config, "/data/s", ()).recipes
    manifests = list(yaml.safe_load_all(paths[0].read_text()))
    names = [m["metadata"]["name"] for m in manifests]
    digest = recipe_hash(task.config)
    assert names == [f"lm-mia-{digest}-0-4-tiny", f"lm-mia-{digest}-4-6-tiny"]
    job = manifests[1]["spec"]["replicatedJobs"][0]["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    assert container["command"][:7] == [
        "python",
        "-m",
        "lm_mia",
        "launch",
        "make-models",
        f"--config={config}",
        "--workdir=/data/s",
    ]
    assert "--models=4:6" in container["command"]
    assert not Path("/data/s").exists()


def test_recipes_with_other_score_points_have_their_own_jobsets(
    tiny: tiny_run.Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    """Their models have the same hash."""
    monkeypatch.chdir(tmp_path)
    Path("c.py").write_text(
        Path(tiny.config).read_text() + "\ndef sweep():\n    yield {'score.at_steps': (2,)}\n"
    )
    argv = "--config=c.py", "--workdir=/data/s", f"--output={tmp_path}/js"
    assert cli.main(["jobset", *argv, *PODS]) == 0
    capsys.readouterr()
    manifests = [m for p in Path("js").glob("*") for m in yaml.safe_load_all(p.read_text())]
    assert len({m["metadata"]["labels"]["lm-mia/recipe"] for m in manifests}) == 1
    assert len({m["metadata"]["name"] for m in manifests}) == len(manifests) == 2


def test_jobs_of_a_workdir_with_configs_need_no_config(
    tiny: tiny_run.Tiny, sweep: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    workdir = f"--workdir={sweep.workdir.path}"
    assert cli.main(["slurm", workdir, "--time=10"]) == 0
    script = (sweep.workdir.path / "slurm" / "models_tiny.sbatch").read_text()
    assert "--config=" not in script
    assert f"{shlex.quote(workdir)} \\\n  --recipe=tiny " in script
    pods = "--image=i", "--gpus=8", "--claim=c", f"--mount={tmp_path}", f"--output={tmp_path}/js"
    assert cli.main(["jobset", workdir, *pods]) == 0
    [manifest] = yaml.safe_load_all((tmp_path / "js" / "tiny.yaml").read_text())
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    assert container["command"][5:7] == [workdir, "--recipe=tiny"]


def test_invalid_pods_are_refused(sweep: Sweep, capsys: pytest.CaptureFixture[str]):
    pods = "--image=i", "--gpus=2", "--claim=c", "--mount=/data", "--nodes=2"
    assert cli.main(["jobset", *flags(sweep, *pods, GROUPS_OF_4)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("=")[0].split(",")[0] for line in lines] == [
        *["compute.devices_per_model"] * 2,  # a line for each recipe
        "--workdir",
        "--config",
    ]


def test_missing_sbatch_is_a_user_error(sweep: Sweep, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="sbatch"):
        slurm.submit(sweep.workdir.path / "x.sbatch")
