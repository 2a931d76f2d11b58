"""What lies in deploy/ is valid, and says what the command line does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from optimizer.cli import app
from optimizer.cli.errors import INTERRUPTED, NOTHING_FEASIBLE, SOME_FAILED, WRONG_INPUT
from tests.conftest import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
KUBERNETES = ("1.31", kubernetes_validate.latest_version())


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a manifest by kind."""
    found = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    return {document["kind"]: document for document in found}


@pytest.fixture
def job() -> dict[str, Any]:
    """The spec of the Job."""
    spec: dict[str, Any] = documents("job.yaml")["Job"]["spec"]
    return spec


@pytest.fixture
def ray_pods() -> dict[str, dict[str, Any]]:
    """The pods of the RayJob, head and workers."""
    cluster = documents("rayjob.yaml")["RayJob"]["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    return {
        "head": cluster["headGroupSpec"]["template"]["spec"],
        "workers": workers["template"]["spec"],
    }


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_job_is_valid_kubernetes(version: str) -> None:
    for document in documents("job.yaml").values():
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_pods_of_the_ray_job_are_valid_kubernetes(
    ray_pods: dict[str, dict[str, Any]], version: str
) -> None:
    for name, spec in ray_pods.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        kubernetes_validate.validate(pod, version, strict=True)


def test_the_ray_job_has_only_keys_that_kuberay_knows() -> None:
    # RayJobSpec of KubeRay 1.4: ray-operator/apis/ray/v1/rayjob_types.go
    spec = documents("rayjob.yaml")["RayJob"]["spec"]
    known = {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"}
    assert set(spec) == known
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}


def test_each_exit_code_has_the_action_it_needs(job: dict[str, Any]) -> None:
    (container,) = job["template"]["spec"]["containers"]
    actions: dict[int, str] = {}
    for rule in job["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {"values": []})
        assert codes.get("containerName", container["name"]) == container["name"]
        for code in codes["values"]:
            actions.setdefault(code, rule["action"])
    final = (WRONG_INPUT, NOTHING_FEASIBLE, SOME_FAILED)
    assert {code: actions.get(code) for code in final} == dict.fromkeys(final, "FailJob")
    assert actions[INTERRUPTED] == actions[128 + 15] == "Ignore"
    assert 1 not in actions and 137 not in actions, "counted against backoffLimit"
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # the policy needs it
    assert job["podReplacementPolicy"] == "Failed"


def test_the_job_of_the_manifest_is_one(job: dict[str, Any], tmp_path: Path) -> None:
    config = documents("job.yaml")["ConfigMap"]
    volumes = {volume["name"]: volume for volume in job["template"]["spec"]["volumes"]}
    assert volumes["job"]["configMap"]["name"] == config["metadata"]["name"]
    claim = documents("job.yaml")["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["study"]["persistentVolumeClaim"]["claimName"] == claim
    (container,) = job["template"]["spec"]["containers"]
    command, path, *options = container["args"]
    assert (command, path) == ("optimize", "/job/job.yaml")
    file = tmp_path / "job.yaml"
    file.write_text(config["data"]["job.yaml"])
    found = CliRunner().invoke(app, [command, str(file), *options, "--dry-run"])
    assert found.exit_code == 0, found.stderr
    batch = yaml.safe_load(config["data"]["job.yaml"])["search"]["batch_size"]
    assert batch >= int(container["resources"]["limits"]["cpu"]), "cores would be idle"


def test_the_ray_job_runs_the_same_study_on_ray(
    job: dict[str, Any], ray_pods: dict[str, dict[str, Any]]
) -> None:
    entry = documents("rayjob.yaml")["RayJob"]["spec"]["entrypoint"].split()
    (container,) = job["template"]["spec"]["containers"]
    assert entry == ["servefront", *container["args"], "--executor", "ray"]
    (head,) = ray_pods["head"]["containers"]
    assert head["volumeMounts"] == container["volumeMounts"]
    assert head["env"] == container["env"]
    images = {c["image"] for pod in ray_pods.values() for c in pod["containers"]}
    assert images == {container["image"]}


def test_the_image_has_what_the_project_has() -> None:
    lines = (DEPLOY / "Dockerfile").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    copied = set(re.findall(r"^COPY (.+) \S+$", lines, re.MULTILINE))
    files = {name for group in copied for name in group.split()}
    packages = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert files == packages | {"pyproject.toml", project["project"]["readme"], "LICENSE"}
    assert all((REPOSITORY / name).exists() for name in files)
    (extras,) = re.findall(r"/source\[(.+?)\]", lines)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    (base,) = re.findall(r"^FROM python:3\.(\d+)-slim$", lines, re.MULTILINE)
    assert 11 <= int(base) <= 13
    assert 'ENTRYPOINT ["tini", "--", "servefront"]' in lines
