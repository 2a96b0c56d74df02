import argparse
import dataclasses
import re
import time
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest
from slurm_cluster import Cluster

from launch import slurm
from launch.slurm import SlurmOptions
from lm_mia.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
COMMAND = [
    "/opt/env/bin/python",
    "-m",
    "lm_mia",
    "launch",
    "make-models",
    "--config=/home/me/sweep.py:big",
    "--workdir=/scratch/me/sweep",
    "--recipe=epochs=3",
    "--recipe-hash=ab12cd34",
    "--config.train.epochs=3",
]
PATHS = (Path("/scratch/me/sweep/logs"), Path("/home/me/lm_mia"))
ONE_NODE = SlurmOptions("4:00:00")
UNUSUAL_NAMES = [
    "a b",
    " both ends ",
    "100% %A %%j",
    'dq"x',
    "sq'x",
    "$HOME $(touch hit) `touch hit`",
    "#x",
    "a #b",
    ";touch hit;",
    "&& touch hit",
    "*",
    "[a-z]?",
    "{a,b}",
    "~",
    "-n",
    "!!",
    "café",
    "'\"'\"'",
    "\\\\",
    "\\",
    "",
]


def test_array_script_equals_golden_file():
    resources = ("gpu,gpu-long", "physics", "normal", "h100|h200")
    options = SlurmOptions("1-12:00:00", 1, 8, 32, "400G", *resources, at_once=40)
    written = slurm.script("lm_mia-epochs-3", COMMAND, [0, 1, 2, 5, 7, 8], 8, 70, *PATHS, options)
    assert written == (GOLDEN / "slurm_array.sbatch").read_text()


def test_two_node_script_equals_golden_file():
    options = SlurmOptions("30", nodes=2, setup="/home/me/modules 1.sh", grace_seconds=300)
    command = [*COMMAND, "--config.compute.devices_per_model=all"]
    written = slurm.script("lm_mia-epochs-3", command, [0, 1], 1, 2, *PATHS, options, is_joint=True)
    assert written == (GOLDEN / "slurm_nodes.sbatch").read_text()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return cluster


def array(folder: Path, options: SlurmOptions = ONE_NODE, command: list[str] = COMMAND) -> str:
    return slurm.script("name", command, range(5), 8, 35, folder / "logs", folder, options)


@pytest.mark.process
@pytest.mark.parametrize(("element", "models"), [(0, "0:8"), (2, "16:24"), (4, "32:35")])
def test_array_element_makes_its_block(cluster: Cluster, element: int, models: str):
    assert cluster.run(array(cluster.folder), element=element) == 0
    log = f"--log={cluster.folder}/logs/17_{element}.out"
    assert cluster.called("srun")[2:] == [
        *COMMAND,
        f"--models={models}",
        f"--job=17_{element}",
        log,
    ]


@pytest.mark.process
@pytest.mark.parametrize("name", UNUSUAL_NAMES)
def test_arguments_are_quoted(cluster: Cluster, name: str):
    command = [*COMMAND, name, f"--config.corpus.path={name}"]
    assert cluster.run(array(cluster.folder, command=command)) == 0
    assert cluster.called("srun")[-5:-3] == command[-2:]
    assert not (cluster.folder / "hit").exists()


@pytest.mark.process
@pytest.mark.parametrize("name", [name for name in UNUSUAL_NAMES if name and "\\" not in name])
def test_unusual_folder_names_are_quoted(cluster: Cluster, name: str):
    folder = cluster.folder / name
    folder.mkdir(exist_ok=True)
    setup = folder / f"{name}.sh"
    setup.write_text(f"pwd -P >'{cluster.folder}/where'\n")
    options = dataclasses.replace(ONE_NODE, setup=str(setup))
    assert cluster.run(slurm.script("name", COMMAND, [0], 8, 35, folder, folder, options)) == 0
    assert (cluster.folder / "where").read_text() == f"{folder.resolve()}\n"
    assert cluster.called("srun")[-1] == f"--log={folder}/17_0.out"
    assert not list(cluster.folder.rglob("hit"))


def test_output_path_is_escaped_for_sbatch():
    written = slurm.script("name", COMMAND, [0], 8, 35, Path('/a "b" 5%A $c'), PATHS[1], ONE_NODE)
    assert '\n#SBATCH --output="/a \\"b\\" 5%%A $c/%A_%a.out"\n' in written


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "restarts"), [(143, ""), (137, ""), (139, "1"), (134, "19"), (143, "1000"), (137, "1000")]
)  # fmt: skip
def test_stopped_or_killed_job_is_requeued(cluster: Cluster, code: int, restarts: str):
    """However often it was started: the job itself gives up if it does not progress."""
    (cluster.folder / "logs").mkdir()
    text = array(cluster.folder)
    cluster.run(text, code, 3, restarts, f"echo 1 >>'{cluster.folder}/logs/17_3.starts.json'")
    assert cluster.called("scontrol") == ["requeue", "17_3"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "restarts"), [(0, ""), (1, ""), (2, ""), (2, "1"), (3, ""), (127, ""), (137, "20"), (200, "20")]
)  # fmt: skip
def test_other_exit_codes_are_passed_on(cluster: Cluster, code: int, restarts: str):
    assert cluster.run(array(cluster.folder), code, 3, restarts) == code
    assert cluster.called("scontrol") == []


@pytest.mark.process
def test_missing_folder_starts_nothing(cluster: Cluster):
    assert cluster.run(array(cluster.folder / "nowhere")) == 1
    assert cluster.called("srun") == []


@pytest.mark.process
def test_failing_setup_script_starts_nothing(cluster: Cluster, capfd: pytest.CaptureFixture[str]):
    (cluster.folder / "x.sh").write_text("(exit 3)\n")
    options = dataclasses.replace(ONE_NODE, setup=str(cluster.folder / "x.sh"))
    assert cluster.run(array(cluster.folder, options)) == 1
    assert cluster.called("srun") == []
    assert re.search(r"--setup: .*code 3", capfd.readouterr().err)


def test_corpus_job_has_one_node_and_no_gpus():
    options = SlurmOptions("4:00:00", nodes=4, gpus_per_node=8, partition="gpu")
    written = slurm.corpus_script("corpus", COMMAND, *PATHS, options)
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --partition=gpu\n" in written
    assert '#SBATCH --output="/scratch/me/sweep/logs/%j.out"' in written
    assert "gpus" not in written


@pytest.mark.process
@pytest.mark.parametrize("is_killed_before", [False, True])
def test_a_job_that_does_not_save_before_its_limit_is_requeued(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_killed_before: bool
):
    """Unless it gives up: the script looks at what it counted, as if the job was killed."""
    (cluster.folder / "logs").mkdir()
    monkeypatch.setenv(
        "SLURM_JOB_END_TIME", str(int(time.time()) + 17)
    )  # 15 of which are for requeueing
    count = f"echo 1 >>'{cluster.folder}/logs/17_3.starts.json'\n" * (not is_killed_before)
    began = time.monotonic()
    code = cluster.run(array(cluster.folder), 0, 3, "20", f"{count}exec sleep 30")
    assert time.monotonic() - began < 15
    assert (code, cluster.called("scontrol")) == (
        (137, []) if is_killed_before else (0, ["requeue", "17_3"])
    )


@pytest.mark.process
@pytest.mark.parametrize("end", ["", "0"])
def test_a_job_runs_without_the_time_of_its_end_or_after_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, end: str
):
    """Older versions of SLURM, such as 22.05, do not tell jobs when they end."""
    if end:
        monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    assert cluster.run(array(cluster.folder), 2, 3) == 2


@pytest.mark.process
def test_stopped_corpus_job_is_requeued(cluster: Cluster):
    logs = folder = cluster.folder
    cluster.run(slurm.corpus_script("corpus", ["python", "x y"], logs, folder, ONE_NODE), 143)
    assert cluster.called("scontrol") == ["requeue", "21"]
    assert cluster.called("srun")[-2:] == ["python", "x y"]


@hypothesis.given(st.sets(st.integers(0, 40), min_size=1))
def test_ranges_contain_exactly_the_numbers(numbers: set[int]):
    expanded: list[int] = []
    for part in slurm.ranges(list(numbers)).split(","):
        low, _, high = part.partition("-")
        expanded += range(int(low), int(high or low) + 1)
    assert expanded == sorted(numbers)


def test_ranges_are_merged():
    assert slurm.ranges([12, 0, 1, 2, 3, 7, 9, 10, 11, 7]) == "0-3,7,9-12"


def test_block_above_max_array_size_is_refused():
    with pytest.raises(UserError, match=r"\b1001 .MaxArraySize.; try --models-per-job=2$"):
        slurm.script("name", COMMAND, [1001], 1, 2000, *PATHS, ONE_NODE, limit=1001)
    assert slurm.script("name", COMMAND, [1000], 2, 2002, *PATHS, ONE_NODE, limit=1001)


@pytest.mark.process
@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\u2028", "\ud800"])
@pytest.mark.parametrize("where", ["command", "logs", "folder"])
def test_unprintable_characters_are_refused(bad: str, where: str):
    command = [bad] if where == "command" else COMMAND
    logs, folder = (Path("/", bad) if where == name else Path("/") for name in ("logs", "folder"))
    with pytest.raises(UserError, match="line breaks"):
        slurm.script("name", command, [0], 1, 1, logs, folder, ONE_NODE)


def test_backslash_in_log_path_is_refused():
    with pytest.raises(UserError, match="choose another --workdir"):
        slurm.script("name", COMMAND, [0], 1, 1, Path("/a\\b"), PATHS[1], ONE_NODE)


def parse(*argv: str) -> SlurmOptions:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    slurm.add_flags(parser)
    return slurm.parse_options(parser.parse_args(argv))


def test_flags_give_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("setup.sh").touch()
    assert parse(
        "--time=90",
        "--nodes=2",
        "--gpus-per-node=8",
        "--cpus-per-task=16",
        "--memory=64G",
        "--partition=a",
        "--account=b",
        "--qos=c",
        "--constraint=[x|y]&z*2",
        "--at-once=9",
        "--setup=setup.sh",
        "--grace-seconds=60",
    ) == SlurmOptions(
        "90", 2, 8, 16, "64G", "a", "b", "c", "[x|y]&z*2", 9, str(tmp_path / "setup.sh"), 60
    )


def test_only_time_is_required():
    assert parse("--time=4:00:00") == ONE_NODE


TIMES = {"5": 300, "5:30": 330, "1:00:05": 3605, "0-3": 10800, "0-1:30": 5400, "2-0": 65536}


@pytest.mark.parametrize(("time", "seconds"), TIMES.items())
def test_grace_must_be_less_than_the_time_limit(time: str, seconds: int):
    assert parse(f"--time={time}", f"--grace-seconds={seconds - 1}").time == time
    with pytest.raises(UserError, match="--grace-seconds"):
        parse(f"--time={time}", f"--grace-seconds={seconds}")


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--time=", "--time: missing; add --time=4:00:00"),
        ("--time=4h", "--time='4h': "),
        ("--time=0", "--time='0': "),
        ("--time=1:2:3:4", "--time='1:2:3:4': "),
        ("--time=4\n#SBATCH --uid=0", "--time='4\\n#SBATCH --uid=0': "),
        ("--nodes=0", "--nodes=0: "),
        ("--gpus-per-node=-1", "--gpus-per-node=-1: "),
        ("--cpus-per-task=0", "--cpus-per-task=0: "),
        ("--at-once=0", "--at-once=0: "),
        ("--memory=64 GB", "--memory='64 GB': "),
        ("--partition=a b", "--partition='a b': "),
        ("--account=a\n#SBATCH -w x", "--account='a\\n#SBATCH -w x': "),
        ("--qos=$(id)", "--qos='$(id)': "),
        ('--constraint=a" -w x', "--constraint='a\" -w x': "),
        ("--setup=/nowhere.sh", "--setup='/nowhere.sh': "),
        ("--grace-seconds=0", "--grace-seconds=0: "),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_on_one_line(flag: str, problem: str):
    argv = [flag] if flag.startswith("--time") else ["--time=4:00:00", flag]
    with pytest.raises(UserError) as caught:
        parse(*argv)
    [line] = str(caught.value).splitlines()
    assert problem in line


def test_all_mistakes_are_reported_together():
    with pytest.raises(UserError, match=r"^--time.*\n--nodes.*\n--memory.*\n--partition.*$"):
        parse("--nodes=0", "--memory=x", "--partition= ")


WAIT = ["--dependency=afterok:16:17", "--kill-on-invalid-dep=yes"]


@pytest.mark.process
@pytest.mark.parametrize(("after", "flags"), [((), []), (("16", "17"), WAIT)])
def test_script_is_submitted(cluster: Cluster, after: tuple[str, ...], flags: list[str]):
    cluster.answers("sbatch", "echo '18;somewhere'")
    path = cluster.folder / "a b.sbatch"
    assert slurm.submit(path, after) == "18"
    assert cluster.called("sbatch") == ["--parsable", *flags, str(path)]


@pytest.mark.process
def test_error_message_of_sbatch_is_reported(cluster: Cluster):
    cluster.answers("sbatch", "echo 'sbatch: error: Invalid account' >&2; echo no >&2; exit 1")
    with pytest.raises(UserError, match=r"x: .*Invalid account; no$"):
        slurm.submit(cluster.folder / "x")


@pytest.mark.process
def test_machine_without_slurm_is_reported(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(cluster.folder))
    with pytest.raises(UserError, match=r"^sbatch: No such file\b"):
        slurm.submit(cluster.folder / "x")
    assert slurm.array_limit() is None


@pytest.mark.process
def test_new_job_does_not_inherit_variables_of_a_job(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    cluster.answers("sbatch", 'echo "$SLURM_MEM_PER_CPU,$SLURM_CONF"')
    assert slurm.submit(cluster.folder / "x") == ",/etc/other.conf"


@pytest.mark.process
@pytest.mark.parametrize(
    ("answer", "limit"), [("echo 'MaxArraySize      = 4001'", 4001), ("echo MaxJobs = 7", None)]
)
def test_array_limit_is_read_from_slurm(cluster: Cluster, answer: str, limit: int | None):
    cluster.answers("scontrol", answer)
    assert slurm.array_limit() == limit
    assert cluster.called("scontrol") == ["show", "config"]
