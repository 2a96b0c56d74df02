"""Whether a cluster would take JobSets, by its CustomResourceDefinition, without a cluster."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lm_mia.errors import UserError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a CRD has some ten thousand lines
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_METADATA = {  # the parts that we write; a CRD does not say what metadata are
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
_WAY_OUT = "check the spelling; JobSet 0.10 and later have all that is written here"


def check(manifests: Sequence[Mapping[str, Any]], crd_path: str | Path) -> None:
    """Holds JobSets against their definition, and refuses fields that are not in it, which a cluster may leave out.

    Its rules in CEL, and what JobSet's webhooks ask, are not looked at.

    Args:
      manifests: of JobSets.
      crd_path: of JobSet's jobset.x-k8s.io_jobsets.yaml, or the manifests.yaml of one of its releases.

    Raises:
      UserError: a line for each problem, with the JobSet's name and the field; or if there is no such file, it defines
        no JobSet, or jsonschema is not installed.
    """
    try:
        import jsonschema
    except ImportError as error:
        raise UserError(f"--crd={crd_path}: needs jsonschema; pip install jsonschema") from error
    schemas, wrong = _schemas(crd_path), []
    for manifest in manifests:
        name, version = manifest["metadata"].get("name"), manifest["apiVersion"].partition("/")[2]
        if version not in schemas:
            known = ", ".join(schemas)
            wrong.append(f"{name}: apiVersion={version}: {crd_path} defines {known}; {_WAY_OUT}")
            continue
        problems = jsonschema.Draft7Validator(schemas[version]).iter_errors(manifest)
        wrong += [f"{name}: {line}" for problem in problems for line in _lines(problem)]
    if wrong:
        raise UserError("\n".join(wrong))


def _schemas(path: str | Path) -> dict[str, dict[str, Any]]:
    """Version -> schema of a JobSet."""
    try:
        documents = list(yaml.load_all(Path(path).read_text(), Loader=_LOADER))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = getattr(error, "strerror", None) or "no YAML"
        raise UserError(f"--crd={path}: {what}; check the spelling") from error
    for document in documents:
        try:
            if document["spec"]["names"]["kind"] == "JobSet":
                return {
                    v["name"]: _root(v["schema"]["openAPIV3Schema"])
                    for v in document["spec"]["versions"]
                }
        except (KeyError, TypeError):
            continue
    raise UserError(
        f"--crd={path}: defines no JobSet; give jobset.x-k8s.io_jobsets.yaml of the JobSet that the cluster has"
    )


def _root(schema: Mapping[str, Any]) -> dict[str, Any]:
    return _strict({**schema, "properties": {**schema["properties"], "metadata": _METADATA}})


def _strict(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of Kubernetes as JSON Schema that refuses the fields which Kubernetes would leave out."""
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
    """Of a problem that jsonschema found: the field, and what is wrong with it."""
    where = ""
    for part in problem.absolute_path:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else str(part)
    before = f"{where}." if where else ""
    if problem.validator == "additionalProperties":
        for field in sorted(problem.instance.keys() - problem.schema.get("properties", {})):
            yield f"{before}{field}: no such field; {_WAY_OUT}"
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
