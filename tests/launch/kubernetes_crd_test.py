import copy
import os
import re
from pathlib import Path
from typing import Any

import crd
import pytest
import yaml

GOLDEN = Path(__file__).parent / "golden"
TYPOS = [  # field, what it is renamed to
    ("spec.suspend", "suspended"),
    ("spec.failurePolicy.maxRestarts", "maxRestart"),
    ("spec.failurePolicy.rules[0].onJobFailureReasons", "onJobFailureReason"),
    ("spec.replicatedJobs[0].template.spec.podFailurePolicy", "podFailurePolicies"),
    ("spec.replicatedJobs[0].template.spec.template.spec.containers[0].command", "comand"),
    ("metadata.labels", "lables"),
]


def golden(kind: str) -> dict[str, Any]:
    [manifest] = yaml.safe_load_all((GOLDEN / f"jobset_{kind}.yaml").read_text())
    return manifest


def renamed(manifest: dict[str, Any], field: str, name: str) -> tuple[dict[str, Any], str]:
    """Returns the manifest with a renamed field, and the path of that field."""
    manifest = copy.deepcopy(manifest)
    node: Any = manifest
    *parents, last = re.findall(r"\w+", field)
    for part in parents:
        node = node[int(part) if part.isdecimal() else part]
    node[name] = node.pop(last)
    return manifest, field.removesuffix(last) + name


def schema_of(value: Any) -> dict[str, Any]:
    """Returns the schema that controller-gen would write for a type with exactly the fields of a value."""
    if isinstance(value, dict):
        schema: dict[str, Any] = {"type": "object", "description": "..."}
        if any("/" in key for key in value):  # labels and the like
            return schema | {"additionalProperties": {"type": "string"}}
        return schema | {"properties": {k: schema_of(v) for k, v in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    kind = {bool: "boolean", int: "integer", str: "string"}[type(value)]
    return {"type": kind} | ({"format": "int32"} if kind == "integer" else {})


@pytest.fixture
def definition(tmp_path: Path) -> Path:
    """Returns a CustomResourceDefinition with exactly the fields of the golden manifests."""
    root = schema_of(golden("tpu"))
    root["properties"]["metadata"] = {"type": "object"}
    job = root["properties"]["spec"]["properties"]["replicatedJobs"]["items"]["properties"]
    job = job["template"]["properties"]["spec"]["properties"]
    both = {"type": "object", "properties": {"onPodConditions": {"type": "array"}}}
    both["properties"]["action"] = {"type": "string"}
    both["properties"]["onExitCodes"] = {"x-kubernetes-preserve-unknown-fields": True}
    job["podFailurePolicy"]["properties"]["rules"]["items"] = both
    pod = job["template"]["properties"]["spec"]
    container = pod["properties"]["containers"]["items"]
    container["required"] = ["name"]
    quantity: dict[str, Any] = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": "^[0-9]+[MG]?$",
    }
    quantity["x-kubernetes-int-or-string"] = True
    limits = {"type": "object", "additionalProperties": quantity}
    container["properties"]["resources"]["properties"]["limits"] = limits
    env: dict[str, Any] = {
        "name": {"type": "string"},
        "value": {"type": "string"},
        "valueFrom": {"type": "object"},
    }
    env["valueFrom"]["x-kubernetes-preserve-unknown-fields"] = True
    container["properties"]["env"]["items"] = {"type": "object", "properties": env}
    versions = [{"name": "v1alpha2", "schema": {"openAPIV3Schema": root}}]
    other = {"kind": "Deployment", "spec": {"replicas": 1}}
    document: dict[str, Any] = {"kind": "CustomResourceDefinition"}
    document["spec"] = {"names": {"kind": "JobSet"}, "versions": versions}
    path = tmp_path / "crd.yaml"
    path.write_text(yaml.safe_dump_all([other, None, document]))  # as in a release's manifests.yaml
    return path


@pytest.fixture
def real() -> Path:
    if not (path := os.environ.get("JOBSET_CRD")):
        pytest.skip("JOBSET_CRD does not name a jobset.x-k8s.io_jobsets.yaml")
    return Path(path)


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_manifests_fit(kind: str, definition: Path):
    assert crd.problems([golden(kind)], definition) == []


@pytest.mark.parametrize(("field", "name"), TYPOS)
def test_misspelled_field_is_reported(field: str, name: str, definition: Path):
    manifest, where = renamed(golden("tpu"), field, name)
    called = "lm-mia-12345e67-8-16-c4"
    lines = crd.problems([golden("gpu"), manifest], definition)
    assert lines == [f"{called}: {where}: no such field"]


@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_manifests_fit_the_real_definition(kind: str, real: Path):
    assert crd.problems([golden(kind)], real) == []


@pytest.mark.parametrize(("field", "name"), TYPOS)
@pytest.mark.parametrize("kind", ["tpu", "gpu"])
def test_misspelled_field_is_reported_by_the_real_definition(
    kind: str, field: str, name: str, real: Path
):
    manifest, where = renamed(golden(kind), field, name)
    assert any(
        line.endswith(f": {where}: no such field") for line in crd.problems([manifest], real)
    )


def test_each_problem_has_one_line(definition: Path):
    manifest = golden("tpu")
    manifest["spec"]["failurePolicy"] |= {"maxRestarts": "many", "a": 1, "b": 2}
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    del spec["containers"][0]["name"]
    spec["containers"][0]["resources"]["limits"]["google.com/tpu"] = "x"
    problems = sorted(line.split(": ", 1)[1] for line in crd.problems([manifest], definition))
    container = "spec.replicatedJobs[0].template.spec.template.spec.containers[0]"
    assert [re.split(r"='many'|: ", problem)[0] for problem in problems] == [
        "spec.failurePolicy.a",
        "spec.failurePolicy.b",
        "spec.failurePolicy.maxRestarts",
        f"{container}.name",
        f"{container}.resources.limits.google.com/tpu",
    ]


def test_other_version_is_reported(definition: Path):
    [line] = crd.problems([golden("gpu") | {"apiVersion": "jobset.x-k8s.io/v1"}], definition)
    assert line.endswith("v1alpha2")


def test_file_without_jobset_is_an_error(tmp_path: Path):
    path = tmp_path / "crd.yaml"
    path.write_text("kind: Deployment")
    with pytest.raises(ValueError, match="defines no JobSet"):
        crd.problems([golden("gpu")], path)
