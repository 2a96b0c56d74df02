"""Kubernetes: a JobSet for each job, on a TPU slice or on GPU nodes, that Kueue admits.

How a job ends decides what becomes of its JobSet. 0: it is complete. 2 and 3 fail it, since running it again cannot
help. Any other code, 143 and those of kills among them, starts all its pods anew, so many times; so does a node that is
taken away, and that is not counted. Needs JobSet 0.10 or later, the first that tells the last two apart.
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
from launch.jobs import JobSizes, multi_machine_problems
from lm_mia.atomic import write_atomically
from lm_mia.config import load
from lm_mia.config.recipe import recipe_hash
from lm_mia.errors import UserError
from lm_mia.run.sweep import Sweep

_JOB = "job"  # the only replicated job of a JobSet
_CONTAINER = "models"
_PORT = 8476  # of JAX's coordinator
_KEPT_SECONDS = 86400  # that a JobSet, and its output, can be looked at when it has ended
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
_ENDED = {"containerName": _CONTAINER, "operator": "In", "values": [2, 3]}
_RULES = [  # after these: RestartJobSet, which is counted
    {
        "name": "disrupted",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": ["has condition DisruptionTarget"],
    },
    # last, so that a message in other words is not taken for a reason to go on for ever
    {"name": "ended", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
]
_LONGEST_NAME = 63  # of a pod, since it is its host's name
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_GKE = "must be GKE's label of an accelerator"
_DNS = "must be a DNS-1123 name: small letters, digits and - (not first or last)"
_PATTERNS = {
    "image": (r"[A-Za-z0-9][A-Za-z0-9_./:@-]*", "must be a container image", "registry/lm_mia:1"),
    "tpu_type": (r"tpu[A-Za-z0-9_.-]{0,59}[A-Za-z0-9]", _GKE, "tpu-v5-lite-podslice"),
    "topology": (r"[1-9]\d{0,3}(x[1-9]\d{0,3}){1,2}", "must be chips along 2 or 3 axes", "4x4"),
    "gpu_type": (r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", _GKE, "nvidia-h100-80gb"),
    "queue": (_LABEL, _DNS, "lm-mia"),
    "namespace": (_LABEL, _DNS, "default"),
    "claim": (rf"{_LABEL}(\.{_LABEL})*", _DNS, "lm-mia-data"),
    "mount": (r"/[^:\0\n]*[^:\0\n/]", "must be an absolute path without :", "/data"),
}
_FLAGS = {
    "image": ("IMAGE", "whose working directory is the checkout; needed"),
    "tpu_type": ("LABEL", "GKE's, such as tpu-v5-lite-podslice; this or --gpus is needed"),
    "topology": ("4x4", "of the slice that a job has"),
    "chips_per_host": ("N", "of a TPU slice"),
    "gpus": ("N", "of a node"),
    "nodes": ("N", "of a job on GPUs"),
    "gpu_type": ("LABEL", "GKE's, such as nvidia-h100-80gb"),
    "queue": ("NAME", "of Kueue; without, jobs start at once"),
    "namespace": ("NAME", "of the cluster"),
    "claim": ("NAME", "PersistentVolumeClaim of the volume that all pods share; needed"),
    "mount": ("DIR", "where it is in them, such as /data; needed"),
    "restarts": ("N", "of a job, those on account of lost nodes not counted"),
    "grace_seconds": ("S", "between being asked to stop and being killed"),
}
_LEAST = {"chips_per_host": 1, "gpus": 0, "nodes": 1, "restarts": 0, "grace_seconds": 1}


@dataclasses.dataclass(frozen=True)
class PodOptions:
    """What the pods of a job are like; what is empty is left to the cluster."""

    image: str
    """Of a container whose working directory is the checkout, and whose ``python`` has what it needs."""
    tpu_type: str = ""
    """GKE's label of the accelerator, such as tpu-v5-lite-podslice, tpu-v5p-slice or tpu-v6e-slice; "": GPUs."""
    topology: str = ""
    """Of the TPU slice that a job has, such as 4x4 or 2x2x2."""
    chips_per_host: int = 4
    gpus: int = 0
    """Of a node."""
    nodes: int = 1
    """Of a job on GPUs."""
    gpu_type: str = ""
    """GKE's label of the accelerator, such as nvidia-h100-80gb."""
    queue: str = ""
    """Of Kueue, in the namespace; "": jobs start at once."""
    namespace: str = ""
    claim: str = ""
    """The PersistentVolumeClaim of the volume that all pods share."""
    mount: str = ""
    """Where it is in them."""
    restarts: int = 20
    """Of a job's pods, those on account of lost nodes not counted."""
    grace_seconds: int = 150
    """Between being asked to stop and being killed; workers save in 120."""

    @property
    def accelerator(self) -> Literal["tpu", "gpu"]:
        """What a job computes on."""
        return "tpu" if self.tpu_type else "gpu"

    @property
    def hosts(self) -> int:
        """Pods of a job, each of which has a node's chips."""
        return _chips(self.topology) // self.chips_per_host if self.tpu_type else self.nodes

    @property
    def chips(self) -> int:
        """TPU chips or GPUs of a job."""
        return self.hosts * (self.chips_per_host if self.tpu_type else self.gpus)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `pods` reads."""
    group, default = parser.add_argument_group("Kubernetes"), PodOptions("")
    for name, (metavar, what) in _FLAGS.items():
        value = getattr(default, name)
        told = f"{what}; {value}" if value else what
        group.add_argument(_flag(name), type=type(value), default=value, metavar=metavar, help=told)


def parse_options(known: argparse.Namespace) -> PodOptions:
    """What the flags say; UserError with a line for each that is wrong."""
    of = PodOptions(
        **{field.name: getattr(known, field.name) for field in dataclasses.fields(PodOptions)}
    )
    wrong = []
    for name, example in (("image", "IMAGE"), ("claim", "NAME"), ("mount", "/data")):
        if not getattr(of, name):
            wrong.append(f"{_flag(name)}: missing; say {_flag(name)}={example}")
    for name, (pattern, rule, example) in _PATTERNS.items():
        if (value := getattr(of, name)) and not re.fullmatch(pattern, value, re.ASCII):
            wrong.append(f"{_flag(name)}={value!r}: {rule}; try {_flag(name)}={example}")
    for name, least in _LEAST.items():
        if (value := getattr(of, name)) < least:
            wrong.append(f"{_flag(name)}={value}: must be {least} or larger")
    wrong += _wrong_accelerator(of)
    if wrong:
        raise UserError("\n".join(wrong))
    return of


def jobset_name(name: str, pods: PodOptions) -> str:
    """What a job of such a name is called in the cluster: the same, if its pods can be called by it.

    Else it is made of small letters, digits and ``-``, cut short, and ends with a hash of the name, unlike any other.
    """
    longest = _LONGEST_NAME - len(f"-{_JOB}-0-{pods.hosts - 1}-xxxxx")
    if re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= longest:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    words = words if words[:1].isalpha() else f"{_JOB}-{words}"  # a service is called by it, too
    return f"{words[: longest - 9].rstrip('-')}-{digest}"


def log_command(name: str, pods: PodOptions) -> str:
    """The command that prints what a job of such a name says."""
    where = f"--namespace={pods.namespace} " if pods.namespace else ""
    which = f"--selector=jobset.sigs.k8s.io/jobset-name={jobset_name(name, pods)}"
    return f"kubectl logs {where}{which} --prefix --tail=-1"


def manifest(
    name: str, command: Sequence[str], pods: PodOptions, labels: Mapping[str, str]
) -> dict[str, Any]:
    """The JobSet of a job.

    Args:
      name: of the job; in the cluster it is called as `name_of` says.
      command: its arguments, which no shell reads.
      pods: what they are like.
      labels: of the JobSet and its pods, to find them by, as Kubernetes takes them.
    """
    called = jobset_name(name, pods)
    queue = {"kueue.x-k8s.io/queue-name": pods.queue} if pods.queue else {}
    metadata: dict[str, Any] = {"name": called}
    if pods.namespace:
        metadata["namespace"] = pods.namespace
    metadata["labels"] = {**labels, **queue}
    if pods.accelerator == "tpu" and pods.hosts > 1:  # a node pool is a slice: never parts of two
        pool = "cloud.google.com/gke-nodepool"
        metadata["annotations"] = {"alpha.jobset.sigs.k8s.io/exclusive-topology": pool}
    job = {
        "parallelism": pods.hosts,
        "completions": pods.hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [_DISRUPTED]},
                {"action": "FailJob", "onExitCodes": _ENDED},
            ]
        },
        "template": {"metadata": {"labels": dict(labels)}, "spec": _pod(called, command, pods)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            **({"suspend": True} if queue else {}),  # until Kueue admits it
            "ttlSecondsAfterFinished": _KEPT_SECONDS,
            "failurePolicy": {"maxRestarts": pods.restarts, "rules": _RULES},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def dump(manifests: Sequence[dict[str, Any]]) -> str:
    """The YAML of JobSets in the order given, with no aliases; each has a name of its own."""
    names = [m["metadata"]["name"] for m in manifests]
    assert len(set(names)) == len(names), names
    how = {"sort_keys": False, "explicit_start": True, "width": math.inf}
    return "# kubectl apply -f FILE\n" + yaml.dump_all(manifests, Dumper=_Dumper, **how)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # PyYAML takes 12345e67 for a word, but Kubernetes takes it for a number
        style = None if re.fullmatch(r"[A-Za-z][A-Za-z0-9./-]+", data) else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_str)


def _pod(called: str, command: Sequence[str], pods: PodOptions) -> dict[str, Any]:
    if pods.accelerator == "tpu":
        resource, chips = "google.com/tpu", pods.chips_per_host
        nodes = {"cloud.google.com/gke-tpu-accelerator": pods.tpu_type}
        nodes["cloud.google.com/gke-tpu-topology"] = pods.topology
    else:
        resource, chips = "nvidia.com/gpu", pods.gpus
        nodes = {"cloud.google.com/gke-accelerator": pods.gpu_type} if pods.gpu_type else {}
    container = {
        "name": _CONTAINER,
        "image": pods.image,
        "command": [said.replace("$", "$$") for said in command],  # $(NAME) is put in by kubelet
        **({"env": _processes(called, pods.hosts)} if pods.hosts > 1 else {}),
        "resources": {"limits": {resource: chips}},
        "volumeMounts": [{"name": "data", "mountPath": pods.mount}],
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": pods.grace_seconds,
        **({"nodeSelector": nodes} if nodes else {}),
        "tolerations": [{"key": resource, "operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": pods.claim}}],
    }


def _processes(called: str, hosts: int) -> list[dict[str, Any]]:
    """How the processes of a job find each other: the first by the name that JobSet's service gives to its pod."""
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    return [
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{called}-{_JOB}-0-0.{called}:{_PORT}"},
        {"name": "JAX_NUM_PROCESSES", "value": str(hosts)},
        {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": index}},
    ]


def _wrong_accelerator(of: PodOptions) -> Iterator[str]:
    tpu, gpu = of.tpu_type or of.topology, of.gpus > 0 or of.gpu_type
    if tpu and gpu:
        yield "--tpu-type, --topology, --gpus, --gpu-type: a job has TPUs or GPUs; leave out either"
    elif not tpu and not gpu:
        yield "--tpu-type, --gpus: missing; say --tpu-type=LABEL --topology=4x4, or --gpus=8"
    elif gpu and not of.gpus:
        yield f"--gpu-type={of.gpu_type}: how many a node? say --gpus=8"
    elif tpu and not (of.tpu_type and of.topology):
        yield "--tpu-type, --topology: neither goes without the other; say both"
    if tpu and of.nodes > 1:
        yield f"--nodes={of.nodes}: --topology says how many hosts a slice has; leave it out"
    chips = _chips(of.topology)
    if chips and of.chips_per_host > 0 and chips % of.chips_per_host:
        rule = f"its {chips} chips must be a multiple of --chips-per-host={of.chips_per_host}"
        way_out = f"try --chips-per-host={math.gcd(chips, of.chips_per_host)}"
        yield f"--topology={of.topology}: {rule}; {way_out}"


def _chips(topology: str) -> int:
    """Of a slice; 0 if it is no topology."""
    fits = re.fullmatch(_PATTERNS["topology"][0], topology, re.ASCII)
    return math.prod(map(int, topology.split("x"))) if fits else 0


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def write_jobsets(of: Sweep, sizes: JobSizes, asked: PodOptions, output: Path) -> int:
    """Writes the JobSets of all jobs with missing models, one file per recipe, for `kubectl apply`.

    Args:
      of: whose folder and config are as the pods see them.
      sizes: of jobs.
      asked: what pods are like.
      output: the folder of the manifests.

    Raises:
      UserError: if a job has several hosts but its models do not span them, or if the folder is not on the volume;
        nothing is written then.
    """
    found = [j for j in jobs.plan_jobs(of, sizes, asked.chips) if j.blocks]
    wrong = multi_machine_problems(found, asked.hosts, f"a job has {asked.hosts} hosts")
    folder = of.workdir.path
    if not Path(os.path.normpath(folder)).is_relative_to(asked.mount):
        wrong.append(
            f"--workdir={folder}: must be below --mount={asked.mount}, where all pods have the same volume"
        )
    # Without --config, jobs read the configs of the workdir.
    name = of.config_arg.split(":")[0] if of.config_arg else ""
    is_file = bool(name) and not load.is_config_name(name)
    if is_file and not Path(os.path.abspath(name)).is_relative_to(Path.cwd()):
        wrong.append(
            f"--config={of.config_arg}: must be below the current folder, which is the checkout that the image contains"
        )
    if wrong:
        raise UserError("\n".join(wrong))
    texts: dict[Path, str] = {}
    for j in found:
        digest = recipe_hash(j.task.config)
        manifests = []
        for block, said in zip(j.blocks, j.ranges(), strict=True):
            # The recipe's name comes last, where `name_of` truncates it if it is too long. It is needed, since recipes
            # that differ only in their score points have the same hash.
            name = f"lm-mia-{digest}-{said.replace(':', '-')}-{j.task.name}"
            about = f"--models={said}", f"--job={name}", f"--log={log_command(name, asked)}"
            labels = {"lm-mia/recipe": digest, "lm-mia/block": str(block)}
            command = jobs.job_command(of, ["python"], j.task, *about)
            manifests.append(manifest(name, command, asked, labels))
        texts[output / f"{j.task.name}.yaml"] = dump(manifests)
    if not texts:
        return status.print_summary(of)
    output.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_atomically(path, text)
    for path in texts:
        print(shlex.join(["kubectl", "apply", "-f", str(path)]))
    return 0
