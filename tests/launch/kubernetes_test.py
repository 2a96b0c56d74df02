import argparse
import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from launch import jobs, kubernetes
from launch.kubernetes import PodOptions
from lm_mia.errors import UserError

GOLDEN = Path(__file__).parent / "golden"
VOLUME: dict[str, Any] = {"queue": "lm-mia", "claim": "lm-mia-data", "mount": "/data"}
TPU = PodOptions("registry/lm_mia:1", tpu_type="tpu-v5-lite-podslice", topology="4x4", **VOLUME)
GPU = PodOptions(
    "registry/lm_mia:1", gpus=8, gpu_type="nvidia-h100-80gb", namespace="research", **VOLUME
)
NAME = "lm-mia-12345e67-8-16-c4"  # in YAML, 12345e67 would be a number
COMMAND = [
    "python",
    "-m",
    "lm_mia",
    "launch",
    "make-models",
    "--config=configs/c4.py",
    "--workdir=/data/sweep",
    "--recipe=c4",
    "--recipe-hash=12345e67",
    "--models=8:16",
    f"--log={kubernetes.log_command(NAME, TPU)}",
]
UNUSUAL_ARGUMENTS = [
    '--x=it\'s "so"',
    " a b ",
    "two\nlines",
    "$(x)",
    "$(JAX_PROCESS_ID)",
    "$$",
    "$",
    "é\u2028",
]
UNUSUAL_ARGUMENTS += [
    "",
    "12345e67",
    "0x1f",
    "1_000",
    "12:30:45",
    "yes",
    "no",
    "y",
    "~",
    "null",
    "# a",
    "- b",
]


def make_manifest(
    pods: PodOptions, name: str = NAME, command: list[str] = COMMAND
) -> dict[str, Any]:
    return kubernetes.manifest(name, command, pods, {"lm-mia/recipe": "12345e67"})


def job_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return job_of(manifest)["template"]["spec"]


def parsed(*argv: str) -> PodOptions:
    parser = argparse.ArgumentParser()
    kubernetes.add_flags(parser)
    return kubernetes.parse_options(parser.parse_args(argv))


@pytest.mark.parametrize(("kind", "pods"), [("tpu", TPU), ("gpu", GPU)])
def test_manifests_equal_golden_files(kind: str, pods: PodOptions):
    path, text = GOLDEN / f"jobset_{kind}.yaml", kubernetes.dump([make_manifest(pods)])
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_flags_give_the_same_options():
    volume = [f"--{k}={v}" for k, v in VOLUME.items()]
    tpu = "--tpu-type=tpu-v5-lite-podslice", "--topology=4x4"
    assert parsed("--image=registry/lm_mia:1", *tpu, *volume) == TPU
    gpu = "--gpus=8", "--gpu-type=nvidia-h100-80gb", "--namespace=research"
    assert parsed("--image=registry/lm_mia:1", *gpu, *volume) == GPU


def planned_chip(*argv: str) -> str:
    parser = argparse.ArgumentParser()
    jobs.add_flags(parser)
    kubernetes.add_flags(parser)
    return jobs.parse_sizes(parser.parse_args([*argv])).chip.name


@pytest.mark.parametrize(
    ("argv", "chip"),
    [
        (["--tpu-type=tpu-v5-lite-podslice"], "tpu v5e"),
        (["--tpu-type=tpu-v5p-slice"], "tpu v5p"),
        (["--tpu-type=tpu-v5p-slice", "--device=tpu v6e"], "tpu v6e"),
        (["--gpus=8", "--gpu-type=nvidia-a100-80gb"], "a100"),
        (["--gpus=8"], "h100"),
    ],
)
def test_jobs_are_sized_for_the_chips_of_their_nodes(argv: list[str], chip: str):
    assert planned_chip(*argv) == chip


def test_nodes_of_unknown_speed_need_a_device():
    with pytest.raises(UserError, match=r"--gpu-type=nvidia-tesla-t4: .*--device"):
        planned_chip("--gpus=8", "--gpu-type=nvidia-tesla-t4")


@pytest.mark.parametrize(
    ("pods", "kind", "hosts", "chips"),
    [
        (TPU, "tpu", 4, 16),
        (dataclasses.replace(TPU, topology="2x2x2"), "tpu", 2, 8),
        (dataclasses.replace(TPU, topology="2x4", chips_per_host=8), "tpu", 1, 8),
        (GPU, "gpu", 1, 8),
        (dataclasses.replace(GPU, nodes=3), "gpu", 3, 24),
    ],
)
def test_hosts_and_chips(pods: PodOptions, kind: str, hosts: int, chips: int):
    assert (pods.accelerator, pods.hosts, pods.chips) == (kind, hosts, chips)
    job = job_of(make_manifest(pods))
    assert job["parallelism"] == job["completions"] == hosts
    [limit] = pod_of(make_manifest(pods))["containers"][0]["resources"]["limits"].values()
    assert limit * hosts == chips


def test_processes_of_several_hosts_find_each_other():
    three = dataclasses.replace(GPU, nodes=3)
    [address, count, index] = pod_of(make_manifest(three))["containers"][0]["env"]
    # what JobSet calls pods: <jobset>-<replicated job>-<its index>-<pod's index>.<jobset>
    job = make_manifest(three)["spec"]["replicatedJobs"][0]["name"]
    assert address["value"] == f"{NAME}-{job}-0-0.{NAME}:8476"
    assert count["value"] == "3"
    path = index["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert "env" not in pod_of(make_manifest(GPU))["containers"][0]


def test_only_multi_host_slices_have_an_exclusive_node_pool():
    one = dataclasses.replace(TPU, topology="2x2")
    assert ["annotations" in make_manifest(pods)["metadata"] for pods in (TPU, one, GPU)] == [
        1,
        0,
        0,
    ]


def test_jobs_without_a_queue_are_not_suspended():
    alone = make_manifest(dataclasses.replace(TPU, queue=""))
    assert "suspend" not in alone["spec"]
    assert alone["metadata"]["labels"] == {"lm-mia/recipe": "12345e67"}


def action(manifest: dict[str, Any], code: int, disrupted: bool) -> str:
    """Returns the reaction of Kubernetes and JobSet to the exit of a container, according to their documented rules."""
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(job_of(manifest)["podFailurePolicy"]["rules"]):
        assert rule["action"] == "FailJob"
        matching = f"matching FailJob rule at index {index}"
        if "onPodConditions" in rule and disrupted:
            [condition] = rule["onPodConditions"]
            assert condition == {"type": "DisruptionTarget", "status": "True"}
            reason, message = (
                "PodFailurePolicy",
                f"Pod n/p has condition DisruptionTarget {matching}",
            )
            break
        codes = rule.get("onExitCodes", {"values": []})
        if code in codes["values"]:
            assert codes["operator"] == "In"
            assert codes["containerName"] == pod_of(manifest)["containers"][0]["name"]
            reason = "PodFailurePolicy"
            message = f"Container models for pod n/p failed with exit code {code} {matching}"
            break
    for rule in manifest["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
            return rule["action"]
    return "RestartJobSet"


@pytest.mark.parametrize(
    ("code", "disrupted", "expected"),
    [
        (3, False, "FailJobSet"),
        (2, False, "FailJobSet"),
        (143, False, "RestartJobSet"),
        (137, False, "RestartJobSet"),
        (134, False, "RestartJobSet"),
        (143, True, "RestartJobSetAndIgnoreMaxRestarts"),
        (137, True, "RestartJobSetAndIgnoreMaxRestarts"),
        (1, True, "RestartJobSetAndIgnoreMaxRestarts"),
    ],
)
def test_action_after_each_exit_code(code: int, disrupted: bool, expected: str):
    assert action(make_manifest(TPU), code, disrupted) == expected


@pytest.mark.parametrize("pods", [TPU, dataclasses.replace(TPU, topology="8x16"), GPU])
@pytest.mark.parametrize("name", ["a" * 100, "A_b/c", "9", "", "-", "x" * 49, "é", "a-" * 40])
def test_jobset_names_are_valid_pod_names(name: str, pods: PodOptions):
    called = kubernetes.jobset_name(name, pods)
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", called)  # DNS-1035, which services need
    assert len(f"{called}-job-0-{pods.hosts - 1}-abcde") <= 63
    assert kubernetes.jobset_name(called, pods) == called


def test_valid_names_are_kept_and_others_stay_distinct():
    assert kubernetes.jobset_name(NAME, TPU) == NAME
    longest = 63 - len("-job-0-0-abcde")
    assert kubernetes.jobset_name("a" * longest, GPU) == "a" * longest
    alike = ["a" * 60 + "b", "a" * 60 + "c", "a_b", "a.b", "A-b", "a-b"]
    assert len({kubernetes.jobset_name(name, GPU) for name in alike}) == len(alike)


def expanded(argument: str, environment: dict[str, str]) -> str:
    """Expands an argument as kubelet does: $$ becomes $, and $(NAME) the value of a variable that exists."""

    def value_of(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value_of, argument)


def test_arguments_reach_the_container_unchanged():
    manifest = make_manifest(TPU, command=UNUSUAL_ARGUMENTS)
    assert list(yaml.safe_load_all(kubernetes.dump([manifest]))) == [manifest]
    command = pod_of(manifest)["containers"][0]["command"]
    assert [
        expanded(argument, {"x": "1", "JAX_PROCESS_ID": "3"}) for argument in command
    ] == UNUSUAL_ARGUMENTS


@pytest.mark.parametrize("word", ["12345e67", "0o17", "1e3", "y", "0x1f", "12:30:45"])
def test_strings_that_look_like_numbers_are_quoted(word: str):
    assert f'- "{word}"\n' in kubernetes.dump([make_manifest(GPU, command=[word])])


def test_dump_has_all_manifests_in_order_and_no_aliases():
    both = [make_manifest(TPU, "b"), make_manifest(TPU, "a")]
    text = kubernetes.dump(both)
    assert text.startswith("# kubectl apply ")
    assert list(yaml.safe_load_all(text)) == both
    assert not any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text))


def test_log_command_selects_the_jobset():
    text = kubernetes.log_command("A_b", GPU)
    assert f"jobset-name={kubernetes.jobset_name('A_b', GPU)} " in text
    assert "--namespace=research" in text


@pytest.mark.parametrize(
    ("argv", "lines"),
    [
        (
            [
                "--image=a b",
                "--tpu-type=v5litepod-16",
                "--topology=4y4",
                "--gpus=-1",
                "--nodes=0",
                "--queue=A_b",
                "--namespace=-x",
                "--claim=a..b",
                "--mount=data",
                "--restarts=-1",
                "--grace-seconds=0",
                "--chips-per-host=0",
            ],
            "image tpu-type topology queue namespace claim mount chips-per-host gpus nodes "
            "restarts grace-seconds",
        ),
        ([], "image claim mount tpu-type"),
        (["--gpu-type=x"], "image claim mount gpu-type"),
        (["--claim=a", "--gpus=1"], "image mount"),
        (["--mount=/data", "--gpus=1"], "image claim"),
        (["--gpus=1", "--tpu-type=tpu7x", "--topology=4x4"], "image claim mount tpu-type"),
        (["--tpu-type=tpu7x"], "image claim mount tpu-type"),
        (["--tpu-type=tpu7x", "--topology=2x3", "--nodes=2"], "image claim mount nodes topology"),
    ],
)
def test_all_mistakes_are_reported_together(argv: list[str], lines: str):
    with pytest.raises(UserError) as caught:
        parsed(*argv)
    flags = [re.split("[:=,]", line)[0] for line in str(caught.value).splitlines()]
    assert flags == [f"--{name}" for name in lines.split()]
