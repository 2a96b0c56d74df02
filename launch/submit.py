"""From the missing jobs of a sweep to what a scheduler takes: files in the sweep's folder, submitted if asked."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import crd, jobset, plan, slurm, sweep
from launch.estimate import Sizes
from launch.jobset import Pods
from launch.plan import Jobs
from launch.slurm import Slurm
from launch.sweep import Sweep
from lm_mia import progress, sweep_job
from lm_mia.corpus import remembering
from lm_mia.errors import UserError
from lm_mia.workdir import write_atomically


def corpus(of: Sweep) -> int:
    """Makes the populations of a sweep that are not there."""
    with progress.display(overall=False) as display:
        opens = remembering()
        for task in of.tasks:
            found = sweep_job.population(task, display, opens)
            display.say(f"{task.population}: {len(found)} samples, sha256 {found.sha256}")
    return 0


def slurm_scripts(of: Sweep, sizes: Sizes, asked: Slurm, submitted: bool) -> int:
    """Writes an array script a recipe into ``DIR/slurm``, and one of the corpus if need be; submits them if asked.

    Raises:
      UserError: if several nodes are asked for where rows do not span them, or as of `slurm.script` and `slurm.submit`.
    """
    of = sweep.absolute(of)
    found = [j for j in plan.jobs(of, sizes, asked.nodes * max(asked.gpus_per_node, 1)) if j.blocks]
    if wrong := _apart(found, asked.nodes, f"--nodes={asked.nodes}"):
        raise UserError(wrong[0])
    if not found:
        print("every row is there")
        return 0
    scripts, logs = of.folder / "slurm", of.folder / "logs"
    python, here, limit = [sys.executable], Path.cwd(), slurm.array_limit()
    texts: dict[Path, str] = {}
    first = scripts / "corpus.sbatch"
    if any(not j.task.population.exists() for j in found):
        texts[first] = slurm.corpus_script(
            *("lm_mia-corpus", of.command(python, "corpus"), logs, here, asked)
        )
    for j in found:
        command = of.command(python, "rows", f"--recipe={j.task.key}")
        texts[scripts / f"rows_{j.task.folder.name}.sbatch"] = slurm.script(
            *(f"lm_mia-{j.task.key}", command, j.blocks, j.rows_per_job, j.cost.rows),
            *(logs, here, asked, limit),
        )
    for folder in (scripts, logs):
        folder.mkdir(parents=True, exist_ok=True)
    after: list[str] = []
    numbers: list[str] = []
    for path, text in texts.items():
        write_atomically(path, text)
        if not submitted:
            after = ["--dependency=afterok:CORPUS"] * (first in texts and path != first)
            print(shlex.join(["sbatch", *after, str(path)]))
            continue
        try:
            number = slurm.submit(path, after)
        except UserError as error:
            sent = "; what is named above was submitted" if numbers else ""
            raise UserError(f"{path}: not submitted{sent}: {error}") from error
        numbers.append(number)
        print(f"{path}: job {number}")
        if path == first:
            after = [number]
    if not submitted:
        which = "; CORPUS is the number of the first" * (first in texts)
        print(f"written, not submitted: --submit does{which}")
    return 0


def jobsets(of: Sweep, sizes: Sizes, asked: Pods, output: Path, crd_path: str | None) -> int:
    """Writes the JobSets of all jobs whose rows are not seen to be there, a file a recipe; `kubectl apply` is yours.

    Args:
      of: whose folder and config are as the pods see them.
      sizes: of jobs.
      asked: what pods are like.
      output: the folder of the manifests.
      crd_path: of the definition that they are checked with; None: they are not.

    Raises:
      UserError: if several hosts are asked for where rows do not span them, the folder is not on the volume, or the
        definition refuses a manifest; nothing is written then.
    """
    found = [j for j in plan.jobs(of, sizes, asked.chips) if j.blocks]
    wrong = _apart(found, asked.hosts, f"a job has {asked.hosts} hosts")
    if not Path(os.path.normpath(of.folder)).is_relative_to(asked.mount):
        wrong.append(
            f"--workdir={of.folder}: must be below --mount={asked.mount}, where all pods have the same volume"
        )
    name = of.config.split(":")[0]
    if not Path(os.path.abspath(name)).is_relative_to(Path.cwd()):
        wrong.append(
            f"--config={of.config}: must be below the current folder, which is to be the image's checkout"
        )
    if wrong:
        raise UserError("\n".join(wrong))
    texts: dict[Path, str] = {}
    for j in found:
        manifests = []
        for block, said in zip(j.blocks, j.slices(), strict=True):
            name = f"lm-mia-{j.task.key}-{said.replace(':', '-')}"
            log = f"--log={jobset.logs(name, asked)}"
            about = [f"--recipe={j.task.key}", f"--rows={said}", f"--job={name}", log]
            labels = {"lm-mia/recipe": j.task.key, "lm-mia/block": str(block)}
            command = of.command(["python"], "rows", *about)
            manifests.append(jobset.manifest(name, command, asked, labels))
        if crd_path is not None:
            crd.check(manifests, crd_path)
        name = f"{j.task.folder.name}.yaml" if len(of.tasks) > 1 else f"lm-mia-{j.task.key}.yaml"
        texts[output / name] = jobset.dump(manifests)
    if not texts:
        print("every row is there")
        return 0
    output.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text)
    for path in texts:
        print(shlex.join(["kubectl", "apply", "-f", str(path)]))
    return 0


def _apart(found: Sequence[Jobs], machines: int, said: str) -> list[str]:
    """A line, if jobs have several machines and there are recipes whose rows cannot span them."""
    labels = [j.task.label for j in found if j.task.config.compute.span == "device"]
    if machines == 1 or not labels:
        return []
    return [
        f"{said}, but rows of {', '.join(labels)} are made on one device each: say --config.compute.span=job, or take "
        "one machine a job and have more jobs at once"
    ]
