"""Whether a load generator's run is one to learn from: of the plan's model, and run to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spaces import catalog
from spaces.errors import InputError
from spaces.plan import DeploymentPlan

# Where more requests than this failed, the load was not what the run says.
MOST_FAILED = 0.05


def check_run(result: Mapping[str, Any], plan: DeploymentPlan, where: str) -> None:
    """Raise an `InputError` where the run was cancelled, failed, or was of another model.

    Names that the catalogue does not know, such as paths of weights, are taken as the plan's.
    """
    planned = catalog.known_model(plan.model)
    for name in _models(result):
        served = catalog.known_model(name)
        if served is not None and planned is not None and served != planned:
            raise InputError(
                f"the result is of {served}, the plan of {planned}",
                where=where,
                value=name,
                remedy="give with --plan the deployment that was measured",
            )
    if result.get("was_cancelled") is True:
        raise InputError("the run was cancelled", where=where, remedy="measure to the end")
    asked, failed = _requests(result)
    if failed > MOST_FAILED * asked:
        raise InputError(
            f"at most {MOST_FAILED:.0%} of the requests may have failed",
            where=where,
            value=f"{failed:g} of {asked:g}",
            remedy="measure a load that the deployment serves",
        )


def _models(result: Mapping[str, Any]) -> Iterator[str]:
    """What the clients call the model: vLLM `model_id`, AIPerf in its configuration."""
    if isinstance(name := result.get("model_id"), str):
        yield name
    config = result.get("input_config")
    if not isinstance(config, Mapping):
        return
    models, endpoint = config.get("models"), config.get("endpoint")
    items = models.get("items") if isinstance(models, Mapping) else None
    for item in items if isinstance(items, list) else []:
        if isinstance(item, Mapping) and isinstance(name := item.get("name"), str):
            yield name
    names = endpoint.get("model_names") if isinstance(endpoint, Mapping) else None
    yield from (
        name for name in (names if isinstance(names, list) else []) if isinstance(name, str)
    )


def _requests(result: Mapping[str, Any]) -> tuple[float, float]:
    """Requests that were sent and ended, and those of them that failed."""
    failed = _number(result.get("failed")) + _average(result.get("error_request_count"))
    good = _number(result.get("completed")) + _average(result.get("request_count"))
    return good + failed, failed


def _average(statistics: Any) -> float:
    return _number(statistics.get("avg")) if isinstance(statistics, Mapping) else 0.0


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0
