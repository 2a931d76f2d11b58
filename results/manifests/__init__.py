"""From a deployment plan to the files that deploy it.

One module a target, each with `ENGINES`, the engines it can run, and `export(plan, model, chips)`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

from results.manifests import dynamo, vllm
from spaces.chip import ChipSpec
from spaces.errors import InputError, did_you_mean
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan

_MODULES: dict[str, ModuleType] = {"dynamo": dynamo, "vllm": vllm}
TARGETS = tuple(sorted(_MODULES))

__all__ = ["TARGETS", "export", "targets_of", "write_manifests"]


def export(
    plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec], target: str
) -> dict[str, str]:
    """The files that deploy `plan` on `target`: file name to text.

    `chips` holds the chip kinds the pools name. Raises `InputError` for an unknown target, for an
    engine the target cannot run and for a plan the engine's flags cannot describe.
    """
    if target not in _MODULES:
        raise InputError(
            "the target must be a known one",
            key="target",
            value=target,
            remedy=did_you_mean(target, TARGETS),
        )
    module = _MODULES[target]
    _check_engines(plan, target, module.ENGINES)
    _check_tiers(plan, target)
    files: dict[str, str] = module.export(plan, model, chips)
    return files


def targets_of(
    plan: DeploymentPlan, model: ModelSpec, chips: Mapping[str, ChipSpec]
) -> tuple[tuple[str, ...], dict[str, InputError]]:
    """The targets that can deploy `plan`, and why each of the others cannot."""
    able, refused = [], {}
    for target in TARGETS:
        try:
            export(plan, model, chips, target)
            able.append(target)
        except InputError as error:
            refused[target] = error
    return tuple(able), refused


def _check_engines(plan: DeploymentPlan, target: str, known: Sequence[str]) -> None:
    """Refuse engines a target cannot run, and several at a time."""
    for engine in plan.engines:
        if engine not in known:
            raise InputError(
                f"target {target} runs {' or '.join(known)}",
                key="engine",
                value=engine,
                remedy="choose a plan for that engine, or another target",
            )
    settings = [plan.settings(pool) for pool in plan.pools]
    kinds = {(own.engine, own.engine_version, own.precision): own for own in settings}
    if len(kinds) > 1:
        told = [f"{o.engine} {o.engine_version} {o.precision.kv} KV" for o in kinds.values()]
        raise InputError(
            f"target {target} runs one release of one engine with one KV format in all pools",
            key="pools",
            value="; ".join(told),
            remedy="choose a plan whose pools are alike in these",
        )


def _check_tiers(plan: DeploymentPlan, target: str) -> None:
    """Refuse what no target here has flags for."""
    if plan.splits_decode:
        raise InputError(
            f"no engine of target {target} splits decode into attention and expert pools",
            key="topology",
            value=plan.topology,
            remedy="choose a point of another topology",
        )
    if plan.has_midfill:
        raise InputError(
            f"target {target} has no midfill pool",
            key="topology",
            value=plan.topology,
            remedy="choose a point of topology aggregated or prefill-decode",
        )
    if plan.kv.swap_gb_per_chip:
        raise InputError(
            f"no engine of target {target} swaps preempted requests to host memory",
            key="kv.swap_gb_per_chip",
            value=plan.kv.swap_gb_per_chip,
            remedy="set it to 0: they compute preempted requests again",
        )
    if plan.max_queued_requests:
        raise InputError(
            f"no engine of target {target} bounds its waiting queue",
            key="max_queued_requests",
            value=plan.max_queued_requests,
            remedy="leave it out, and bound the requests in flight where they come in",
        )
    if plan.kv.handoff not in (None, "after-prefill"):
        raise InputError(
            f"the connector of target {target} moves KV between pools once a prompt is computed",
            key="kv.handoff",
            value=plan.kv.handoff,
            remedy="leave it out",
        )
    kept_simple = plan.kv.retention == "lru" and plan.kv.fetch == "always"
    fetched_simply = not (plan.kv.layerwise or plan.kv.prefetch)
    if plan.kv.shared_gb or plan.kv.ssd_gb_per_chip or not (kept_simple and fetched_simply):
        raise InputError(
            f"target {target} has no flags for KV on disks or in a shared store, a retention "
            "other than lru, or fetching otherwise than always, whole and at admission",
            key="kv",
            value=plan.kv.model_dump(exclude_defaults=True),
            remedy="choose a point with `ssd_gb_per_chip` and `shared_gb` 0, retention lru, fetch "
            "always, no `layerwise` and no `prefetch`",
        )


def write_manifests(files: Mapping[str, str], directory: Path) -> None:
    """Write the files into `directory`, which is made if need be.

    Each file appears whole or not at all. Files of the same names are replaced; scripts are made
    executable. Raises `InputError` where the directory cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in sorted(files.items()):
            _write_whole(directory / name, text)
    except OSError as error:
        raise InputError(
            f"the manifests cannot be written ({error.strerror})", where=str(directory)
        ) from None


def _write_whole(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o755 if path.suffix == ".sh" else 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
