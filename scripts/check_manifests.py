"""Checks Kubernetes manifests without a cluster: python scripts/check_manifests.py FILE...

A JobSet is held against the fields of its API that are used here, and each job in it, pods and
all, against Kubernetes' own schema, in which unknown fields are errors.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

KUBERNETES = "1.34"
_COUNT = {"type": "integer", "minimum": 0}
_NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
_ACTIONS = ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RecreateJob")


def _closed(required: tuple[str, ...] = (), **properties: object) -> dict:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


# Of jobset.x-k8s.io/v1alpha2.
_RULE = _closed(
    ("action",),
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:-]*[A-Za-z0-9_])?$"},
    action={"enum": list(_ACTIONS)},
    onJobFailureReasons={"type": "array", "items": {"type": "string"}},
    targetReplicatedJobs={"type": "array", "items": _NAME},
)
_REPLICATED_JOB = _closed(
    ("name", "template"),
    name=_NAME,
    replicas=_COUNT,
    template=_closed(("spec",), spec={}, metadata={}),
)
JOB_SET = _closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata={"type": "object", "required": ["name"], "properties": {"name": _NAME}},
    spec=_closed(
        ("replicatedJobs",),
        replicatedJobs={"type": "array", "minItems": 1, "items": _REPLICATED_JOB},
        failurePolicy=_closed(maxRestarts=_COUNT, rules={"type": "array", "items": _RULE}),
        network=_closed(enableDNSHostnames={"type": "boolean"}, subdomain=_NAME),
        suspend={"type": "boolean"},
        ttlSecondsAfterFinished=_COUNT,
    ),
)


def problems(manifest: object) -> Iterator[str]:
    """What is wrong with a JobSet, one line for each."""
    found = list(jsonschema.Draft202012Validator(JOB_SET).iter_errors(manifest))
    yield from (f"{error.json_path}: {error.message}" for error in found)
    if found or not isinstance(manifest, dict):
        return
    set_name = manifest["metadata"]["name"]
    for entry in manifest["spec"]["replicatedJobs"]:
        # What the controller makes of an entry, but for labels of its own.
        metadata = {
            **entry["template"].get("metadata", {}),
            "name": f"{set_name}-{entry['name']}-0",
        }
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
        try:
            kubernetes_validate.validate(
                {**job, "spec": entry["template"]["spec"]}, KUBERNETES, strict=True
            )
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            yield f"replicatedJobs {entry['name']}: {place}: {error.message}"


def main(files: list[str]) -> int:
    wrong = [
        f"{file}: {problem}"
        for file in files
        for manifest in yaml.safe_load_all(Path(file).read_text(encoding="utf-8"))
        for problem in problems(manifest)
    ]
    print("\n".join(wrong) if wrong else f"{len(files)} manifests are valid")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
