"""Writes a Kubernetes JobSet for each job, on a TPU slice or on GPU nodes, optionally queued by Kueue.

The exit code of a job determines what happens to its JobSet. 0: the JobSet is complete. 2 and 3: it fails, since
running the job again would not help. Any other code, such as 143 or that of a killed process, restarts all pods, up to
a maximum number of restarts; a job that has started several times without progress ends with 3 (`launch.starts`). The
loss of a node also restarts them but is not counted, which requires JobSet 0.10 or later.
"""

import argparse
import dataclasses
import hashlib
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

from launch import jobs, status
from launch.jobs import JobSizes
from lm_mia.atomic import write_atomically
from lm_mia.config import load
from lm_mia.config.recipe import recipe_hash
from lm_mia.errors import UserError
from lm_mia.plan import machine_needs
from lm_mia.run.sweep import Sweep

_JOB = "job"  # the only replicated job of a JobSet
_CONTAINER = "models"
_PORT = 8476  # of JAX's coordinator
_KEPT_SECONDS = 86400  # time for which a finished JobSet and its output are kept
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
_FINAL_EXIT_CODES = {"containerName": _CONTAINER, "operator": "In", "values": [2, 3]}
_RULES = [  # otherwise RestartJobSet, which is counted
    {
        "name": "disrupted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["has condition DisruptionTarget"],
    },
    # Last, so that an unexpected message does not cause endless restarts.
    {"name": "ended", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
]
_MAX_NAME_LENGTH = 63  # of the name of a pod, which is also its host name
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_GKE_RULE = "must be the label of an accelerator in GKE"
_DNS_RULE = "must be a DNS-1123 name: lowercase letters, digits and - (not first or last)"
_PATTERNS = {
    "image": (r"[A-Za-z0-9][A-Za-z0-9_./:@-]*", "must be a container image", "registry/lm_mia:1"),
    "tpu_type": (r"tpu[A-Za-z0-9_.-]{0,59}[A-Za-z0-9]", _GKE_RULE, "tpu-v5-lite-podslice"),
    "topology": (
        r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}",
        "must be the numbers of chips along 2 or 3 axes",
        "4x4",
    ),
    "gpu_type": (r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", _GKE_RULE, "nvidia-h100-80gb"),
    "memory": ("[1-9][0-9]*[KMGT]i?", "must be a whole number, then Mi, Gi or Ti", "64Gi"),
    "queue": (_LABEL, _DNS_RULE, "lm-mia"),
    "namespace": (_LABEL, _DNS_RULE, "default"),
    "claim": (rf"{_LABEL}(\.{_LABEL})*", _DNS_RULE, "lm-mia-data"),
    "mount": (r"/[^:\0\n]*[^:\0\n/]", "must be an absolute path without a colon", "/data"),
}
_FLAGS = {
    "image": ("IMAGE", "container image whose working directory is the checkout (required)"),
    "tpu_type": (
        "LABEL",
        "TPU type in GKE, such as tpu-v5-lite-podslice; either this or --gpus is required",
    ),
    "topology": ("SHAPE", "topology of the TPU slice of a job, such as 4x4 or 2x2x2"),
    "chips_per_host": ("N", "chips per host of the TPU slice"),
    "gpus": ("N", "GPUs per node"),
    "nodes": ("N", "nodes per job on GPUs"),
    "gpu_type": ("LABEL", "GPU type in GKE, such as nvidia-h100-80gb"),
    "cpus": ("N", "CPUs that a pod requests (default: 4 per chip)"),
    "memory": (
        "SIZE",
        "memory that a pod requests, such as 64Gi (default: per chip 8 GiB and twice a model's state)",
    ),
    "queue": ("NAME", "Kueue queue (default: jobs start without a queue)"),
    "namespace": ("NAME", "namespace of the JobSets"),
    "claim": ("NAME", "PersistentVolumeClaim of the volume that all pods share (required)"),
    "mount": ("DIR", "path at which pods mount the volume, such as /data (required)"),
    "restarts": ("N", "maximum number of restarts of a job, not counting lost nodes"),
    "grace_seconds": ("S", "seconds that a pod has to save and exit before it is killed"),
}
_MINIMUMS = {
    "chips_per_host": 1,
    "gpus": 0,
    "nodes": 1,
    "cpus": 0,
    "restarts": 0,
    "grace_seconds": 1,
}


@dataclasses.dataclass(frozen=True)
class PodOptions:
    """The pods of a job. Empty strings select the defaults of the cluster."""

    image: str
    """Container image whose working directory is the checkout, and whose ``python`` has the dependencies."""
    tpu_type: str = ""
    """TPU type in GKE, such as tpu-v5-lite-podslice, tpu-v5p-slice or tpu-v6e-slice; "": GPUs are used."""
    topology: str = ""
    """Topology of the TPU slice of a job, such as 4x4 or 2x2x2."""
    chips_per_host: int = 4
    gpus: int = 0
    """GPUs per node."""
    nodes: int = 1
    """Nodes per job on GPUs."""
    gpu_type: str = ""
    """GPU type in GKE, such as nvidia-h100-80gb."""
    cpus: int = 0
    """CPUs that a pod requests; 0: chosen from the recipe when the manifests of a sweep are written."""
    memory: str = ""
    """Memory that a pod requests, such as 64Gi; "": chosen in the same way."""
    queue: str = ""
    """Kueue queue in the namespace; "": jobs start without a queue."""
    namespace: str = ""
    claim: str = ""
    """The PersistentVolumeClaim of the volume that all pods share."""
    mount: str = ""
    """Path at which pods mount the volume."""
    restarts: int = 200
    """Maximum number of restarts of a job, not counting lost nodes. A job that does not progress ends before."""
    grace_seconds: int = 150
    """Time that a pod has to save and exit before it is killed; workers save their states within 120 s."""

    @property
    def accelerator(self) -> Literal["tpu", "gpu"]:
        """The kind of accelerator of a job."""
        return "tpu" if self.tpu_type else "gpu"

    @property
    def hosts(self) -> int:
        """Number of pods of a job; each has all chips of its node."""
        return _chips(self.topology) // self.chips_per_host if self.tpu_type else self.nodes

    @property
    def chips(self) -> int:
        """Number of TPU chips or GPUs of a job."""
        return self.hosts * (self.chips_per_host if self.tpu_type else self.gpus)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that `parse_options` reads."""
    group, default = parser.add_argument_group("Kubernetes"), PodOptions("")
    for name, (metavar, meaning) in _FLAGS.items():
        value = getattr(default, name)
        help_text = f"{meaning} (default: {value})" if value else meaning
        group.add_argument(
            _flag(name), type=type(value), default=value, metavar=metavar, help=help_text
        )


def parse_options(args: argparse.Namespace) -> PodOptions:
    """Returns the options from the flags; raises UserError with one line for each invalid flag."""
    options = PodOptions(
        **{field.name: getattr(args, field.name) for field in dataclasses.fields(PodOptions)}
    )
    problems = []
    for name, example in (("image", "IMAGE"), ("claim", "NAME"), ("mount", "/data")):
        if not getattr(options, name):
            problems.append(f"{_flag(name)}: missing; add {_flag(name)}={example}")
    for name, (pattern, rule, example) in _PATTERNS.items():
        if (value := getattr(options, name)) and not re.fullmatch(pattern, value, re.ASCII):
            problems.append(f"{_flag(name)}={value!r}: {rule}; try {_flag(name)}={example}")
    for name, minimum in _MINIMUMS.items():
        if (value := getattr(options, name)) < minimum:
            problems.append(f"{_flag(name)}={value}: must be at least {minimum}")
    problems += _accelerator_problems(options)
    if problems:
        raise UserError("\n".join(problems))
    return options


def jobset_name(name: str, options: PodOptions) -> str:
    """Returns the name of a job's JobSet, which is that of the job if the names of pods can contain it.

    Otherwise it is converted to lowercase letters, digits and ``-``, truncated, and made unique by a hash of the name.
    """
    max_length = _MAX_NAME_LENGTH - len(f"-{_JOB}-0-{options.hosts - 1}-xxxxx")
    if re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= max_length:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    # The name of a service must start with a letter.
    words = words if words[:1].isalpha() else f"{_JOB}-{words}"
    return f"{words[: max_length - 9].rstrip('-')}-{digest}"


def log_command(name: str, options: PodOptions) -> str:
    """Returns the command that prints the output of a job."""
    namespace = f"--namespace={options.namespace} " if options.namespace else ""
    selector = f"--selector=jobset.sigs.k8s.io/jobset-name={jobset_name(name, options)}"
    return f"kubectl logs {namespace}{selector} --prefix --tail=-1"


def manifest(
    name: str, command: Sequence[str], options: PodOptions, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Returns the JobSet of a job.

    Args:
      name: name of the job; `jobset_name` derives the name of the JobSet.
      command: the command line of the job, which is not interpreted by a shell.
      options: the pods of the job.
      labels: Kubernetes labels of the JobSet and its pods.
    """
    job_set = jobset_name(name, options)
    queue = {"kueue.x-k8s.io/queue-name": options.queue} if options.queue else {}
    metadata: dict[str, Any] = {"name": job_set}
    if options.namespace:
        metadata["namespace"] = options.namespace
    metadata["labels"] = {**labels, **queue}
    # A node pool is one slice, and a job must not span several.
    if options.accelerator == "tpu" and options.hosts > 1:
        pool = "cloud.google.com/gke-nodepool"
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": pool}
    job = {
        "parallelism": options.hosts,
        "completions": options.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [_DISRUPTED]},
                {"action": "FailJob", "onExitCodes": _FINAL_EXIT_CODES},
            ]
        },
        "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(job_set, command, options)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            **({"suspend": True} if queue else {}),  # until Kueue admits it
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "failurePolicy": {"maxRestarts": options.restarts, "rules": _RULES},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def dump(manifests: Sequence[dict[str, Any]]) -> str:
    """Returns JobSets with distinct names as YAML without aliases, in the given order."""
    names = [m["metadata"]["name"] for m in manifests]
    assert len(set(names)) == len(names), names
    yaml_options = {"sort_keys": False, "explicit_start": True, "width": math.inf}
    return "# kubectl apply -f FILE\n" + yaml.dump_all(manifests, Dumper=_Dumper, **yaml_options)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML reads 12345e67 as a string, but Kubernetes reads it as a number.
        style = None if re.fullmatch(r"[A-Za-z][A-Za-z0-9./-]+", data) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _pod(job_set: str, command: Sequence[str], options: PodOptions) -> dict[str, Any]:
    if options.accelerator == "tpu":
        resource, chips = "google.com/tpu", options.chips_per_host
        nodes = {"cloud.google.com/gke-tpu-accelerator": options.tpu_type}
        nodes["cloud.google.com/gke-tpu-topology"] = options.topology
    else:
        resource, chips = "nvidia.com/gpu", options.gpus
        nodes = {"cloud.google.com/gke-accelerator": options.gpu_type} if options.gpu_type else {}
    requests = {"cpu": options.cpus, "memory": options.memory}
    requests = {name: value for name, value in requests.items() if value}
    container = {
        "name": _CONTAINER,
        "image": options.image,
        "command": [
            word.replace("$", "$$") for word in command
        ],  # otherwise kubelet would expand $(NAME)
        **({"env": _connection_variables(job_set, options.hosts)} if options.hosts > 1 else {}),
        "resources": {**({"requests": requests} if requests else {}), "limits": {resource: chips}},
        "volumeMounts": [{"name": "data", "mountPath": options.mount}],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.grace_seconds,
        **({"nodeSelector": nodes} if nodes else {}),
        "tolerations": [{"key": resource, "operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": options.claim}}],
    }


def _connection_variables(job_set: str, hosts: int) -> list[dict[str, Any]]:
    """Returns the environment variables with which the processes of a job connect to the first pod."""
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    return [
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{job_set}-{_JOB}-0-0.{job_set}:{_PORT}"},
        {"name": "JAX_NUM_PROCESSES", "value": str(hosts)},
        {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": index}},
    ]


def _accelerator_problems(options: PodOptions) -> Iterator[str]:
    tpu, gpu = options.tpu_type or options.topology, options.gpus > 0 or options.gpu_type
    if tpu and gpu:
        flags = "--tpu-type, --topology, --gpus, --gpu-type"
        yield f"{flags}: a job has either TPUs or GPUs; leave out the flags of one kind"
    elif not tpu and not gpu:
        yield "--tpu-type, --gpus: missing; add --tpu-type=LABEL --topology=4x4, or --gpus=8"
    elif gpu and not options.gpus:
        yield f"--gpu-type={options.gpu_type}: needs the number of GPUs per node; add --gpus=8"
    elif tpu and not (options.tpu_type and options.topology):
        yield "--tpu-type, --topology: must be set together; add the missing one"
    if tpu and options.nodes > 1:
        yield f"--nodes={options.nodes}: --topology determines the hosts of a TPU slice; leave out --nodes"
    chips = _chips(options.topology)
    if chips and options.chips_per_host > 0 and chips % options.chips_per_host:
        rule = f"its {chips} chips must be a multiple of --chips-per-host={options.chips_per_host}"
        remedy = f"try --chips-per-host={math.gcd(chips, options.chips_per_host)}"
        yield f"--topology={options.topology}: {rule}; {remedy}"


def _chips(topology: str) -> int:
    """Returns the number of chips of a topology, or 0 if it is invalid."""
    is_valid = re.fullmatch(_PATTERNS["topology"][0], topology, re.ASCII)
    return math.prod(map(int, topology.split("x"))) if is_valid else 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def manifest_texts(
    sweep: Sweep, planned: Sequence[jobs.RecipeJobs], options: PodOptions, output: Path
) -> dict[Path, str]:
    """Returns the files of a sweep's JobSets: path -> YAML, one file per recipe.

    It reads and writes no files. CPUs and memory that the options leave open are estimated; see
    `lm_mia.plan.machine_needs`.

    Args:
      sweep: the sweep, with the paths of workdir and config as the pods see them.
      planned: the jobs of its recipes, each of which has blocks.
      options: the pods of a job.
      output: the folder for the files.
    """
    texts: dict[Path, str] = {}
    for j in planned:
        c, digest = j.recipe.config, recipe_hash(j.recipe.config)
        need = machine_needs.of_models(
            c, j.cost.batches.size, options.chips // options.hosts, options.cpus
        )
        pod = dataclasses.replace(
            options, cpus=need.cpus, memory=options.memory or f"{need.memory_gib}Gi"
        )
        manifests = []
        for block, models in zip(j.blocks, j.ranges(), strict=True):
            # The recipe's name is needed, since recipes that differ only in their score points have the same hash. It
            # comes last, where `jobset_name` truncates it if it is too long.
            name = f"lm-mia-{digest}-{models.replace(':', '-')}-{j.recipe.name}"
            job_flags = f"--models={models}", f"--job={name}", f"--log={log_command(name, options)}"
            labels = {"lm-mia/recipe": digest, "lm-mia/block": str(block)}
            command = jobs.job_command(sweep, ["python"], j.recipe, *job_flags)
            manifests.append(manifest(name, command, pod, labels))
        texts[output / f"{j.recipe.name}.yaml"] = dump(manifests)
    return texts


def write_jobsets(sweep: Sweep, sizes: JobSizes, options: PodOptions, output: Path) -> int:
    """Writes the JobSets of all jobs with missing models, one file per recipe, for `kubectl apply`.

    Args:
      sweep: the sweep, with the paths of workdir and config as the pods see them.
      sizes: the sizes of jobs.
      options: the pods of a job.
      output: the folder for the manifests.

    Raises:
      UserError: if a group of devices needs more chips than a host has, or if the workdir is not on the volume. Nothing
        is written in these cases.
    """
    all_jobs = jobs.plan_jobs(sweep, sizes, options.chips // options.hosts, options.hosts)
    planned = [j for j in all_jobs if j.blocks]
    problems = jobs.machine_problems(planned, options.chips // options.hosts)
    folder = sweep.workdir.path
    if not Path(os.path.normpath(folder)).is_relative_to(options.mount):
        problems.append(
            f"--workdir={folder}: must be inside --mount={options.mount}, where pods mount the shared volume"
        )
    shared = {j.recipe.config.population.folder for j in planned} - {""}
    problems += [
        f"population.folder={path}: must be inside --mount={options.mount}, where pods mount the shared volume"
        for path in sorted(shared)
        if not Path(path).is_relative_to(options.mount)
    ]
    # Without --config, jobs read the configs of the workdir.
    name = sweep.config_arg.split(":")[0] if sweep.config_arg else ""
    is_file = bool(name) and not load.is_config_name(name)
    if is_file and not Path(os.path.abspath(name)).is_relative_to(Path.cwd()):
        problems.append(
            f"--config={sweep.config_arg}: must be inside the current folder, a checkout that the image also contains"
        )
    if problems:
        raise UserError("\n".join(problems))
    texts = manifest_texts(sweep, planned, options, output)
    if not texts:
        return status.print_summary(sweep)
    output.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text)
    for path in texts:
        print(shlex.join(["kubectl", "apply", "-f", os.path.abspath(path)]))
    return 0
