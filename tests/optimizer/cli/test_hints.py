"""What the command line says to do next is what can be done."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from optimizer.cli import app
from optimizer.cli.hints import export_hints
from results.manifests import TARGETS
from spaces.plan import DeploymentPlan, KvTiers, Pool


def aggregated(**keys: object) -> DeploymentPlan:
    pool = Pool(role="aggregated", chip="h200", tp=8)
    data = {"model": "llama-3.1-70b", "topology": "aggregated", "pools": (pool,), **keys}
    return DeploymentPlan.model_validate(data)


def test_the_command_told_is_one_that_works(tmp_path: Path) -> None:
    plan = aggregated()
    path = tmp_path / "plan.yaml"
    path.write_text(plan.to_yaml())
    (hint,) = export_hints(plan, str(path))
    assert hint == f"servefront export {path} --target vllm --out deploy"
    arguments = [*hint.split()[1:-1], str(tmp_path / "deploy")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert (tmp_path / "deploy" / "DEPLOY.md").exists()


def test_a_plan_that_no_target_deploys_is_told_with_each_ones_reason() -> None:
    first, *others = export_hints(aggregated(kv=KvTiers(shared_gb=100)), "plan.yaml")
    assert first == "no target can deploy it:"
    assert len(others) == len(TARGETS)
    assert all("shared store" in line for line in others)


def test_a_model_that_the_catalogue_lacks_is_told() -> None:
    (hint,) = export_hints(aggregated(model="lama-3.1-70b"), "plan.yaml")
    assert hint.startswith("no target can deploy it: ") and "did you mean" in hint
