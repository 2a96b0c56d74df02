"""Validates JobSets against JobSet's CustomResourceDefinition, as a cluster does, without a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a CRD has about ten thousand lines
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {  # only the fields that we write, since a CRD does not define metadata
    "type": "object",
    "required": ["name"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "labels": _STRINGS,
        "annotations": _STRINGS,
    },
}


def problems(manifests: Sequence[Mapping[str, Any]], definition: Path) -> list[str]:
    """Returns a line for each problem of the JobSets: the JobSet, the field and what is wrong; empty if all fit.

    A field that the definition does not have is a problem, although a cluster may silently drop it. Rules in CEL and
    the checks of JobSet's webhooks are not evaluated.

    Args:
      manifests: JobSets as plain values.
      definition: JobSet's file jobset.x-k8s.io_jobsets.yaml, or the file manifests.yaml of one of its releases.

    Raises:
      ValueError: if the file defines no JobSet.
    """
    schemas, lines = _schemas(definition), list[str]()
    for manifest in manifests:
        name, version = manifest["metadata"].get("name"), manifest["apiVersion"].partition("/")[2]
        if version not in schemas:
            lines.append(f"{name}: apiVersion={version}: the file defines {', '.join(schemas)}")
            continue
        errors = jsonschema.Draft7Validator(schemas[version]).iter_errors(manifest)
        lines += [f"{name}: {line}" for error in errors for line in _lines(error)]
    return lines


def _schemas(definition: Path) -> dict[str, dict[str, Any]]:
    """Returns {version: schema} of a JobSet."""
    for document in yaml.load_all(definition.read_text(), Loader=_LOADER):
        if document and document["kind"] == "CustomResourceDefinition":
            spec = document["spec"]
            if spec["names"]["kind"] == "JobSet":
                return {v["name"]: _root(v["schema"]["openAPIV3Schema"]) for v in spec["versions"]}
    raise ValueError(f"{definition}: defines no JobSet")


def _root(schema: Mapping[str, Any]) -> dict[str, Any]:
    return _strict({**schema, "properties": {**schema["properties"], "metadata": _METADATA}})


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a Kubernetes schema to JSON Schema that refuses fields which Kubernetes would drop."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]} | {k: schema[k] for k in ("pattern",) if k in schema}
    kept = {k: v for k, v in schema.items() if k != "nullable"}
    if "items" in schema:
        kept["items"] = _strict(schema["items"])
    if "properties" in schema:
        kept["properties"] = {k: _strict(v) for k, v in schema["properties"].items()}
    if isinstance(schema.get("additionalProperties"), Mapping):
        kept["additionalProperties"] = _strict(schema["additionalProperties"])
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        kept.setdefault("additionalProperties", False)
    if schema.get("nullable") and "type" in schema:
        kept["type"] = [schema["type"], "null"]
    return kept


def _lines(problem: Any) -> Iterator[str]:
    """Yields lines with the field and the problem of an error of jsonschema."""
    where = ""
    for part in problem.absolute_path:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    before = f"{where}." if where else ""
    if problem.validator == "additionalProperties":
        for field in sorted(problem.instance.keys() - problem.schema.get("properties", {})):
            yield f"{before}{field}: no such field"
    elif problem.validator == "required":
        for field in problem.validator_value:
            if field not in problem.instance:
                yield f"{before}{field}: missing"
    elif problem.validator == "type":
        kinds = problem.validator_value
        kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
        yield f"{where}={problem.instance!r:.60}: must be of type {kind}"
    else:
        yield f"{where}: {problem.message}"
