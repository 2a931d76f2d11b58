"""How manifests are written: YAML that every reader takes the same way, and a plan in words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from spaces.chip import ChipSpec
from spaces.model import ModelSpec
from spaces.plan import DeploymentPlan, Pool

# PyYAML writes these plain because its own reader takes them for text; others read a boolean
# (YAML 1.1 knows y and n) or a number (YAML 1.2 needs no dot before an exponent).
_READ_OTHERWISE = re.compile(r"^([yYnN]|[-+]?\d[\d_]*([eE][-+]?\d+)?)$")


class _Dumper(yaml.SafeDumper):
    """Block style throughout, ambiguous text quoted, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _READ_OTHERWISE.match(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(document: Mapping[str, Any], comment: str) -> str:
    """The document in block style under a comment, keys in the order given."""
    lines = "".join(f"# {line}\n" if line else "#\n" for line in comment.splitlines())
    body = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=10**9
    )
    return lines + body


def headline(plan: DeploymentPlan, model: ModelSpec) -> str:
    """One line that says what is deployed."""
    return f"{model.name}, {plan.topology}, {plan.chips} chips; servefront plan {plan.plan_id}"


def plan_in_words(plan: DeploymentPlan, chips: Mapping[str, ChipSpec]) -> str:
    """The plan as a Markdown list."""
    tier = f", {plan.kv.host_gb_per_chip:g} GB of host memory per chip for KV"
    common = [
        f"- weights {plan.precision.weights}, KV cache {plan.precision.kv}, "
        f"{100 * plan.hbm_fraction:g} % of HBM used",
        f"- prefix caching {'on' if plan.prefix_caching else 'off'}"
        f"{tier if plan.kv.host_gb_per_chip else ''}, router {plan.router}",
    ]
    return "\n".join([*(_pool_in_words(pool, chips) for pool in plan.pools), *common])


def section(title: str, lines: list[str]) -> list[str]:
    """A Markdown section under a heading; nothing where there are no lines."""
    return ["", f"## {title}", "", *lines] if lines else []


def numbered(steps: list[str]) -> list[str]:
    """The steps with numbers; an indented one belongs to the step before it."""
    lines: list[str] = []
    number = 0
    for step in steps:
        number += not step.startswith(" ")
        lines.append(f"   - {step.strip()}" if step.startswith(" ") else f"{number}. {step}")
    return lines


def _pool_in_words(pool: Pool, chips: Mapping[str, ChipSpec]) -> str:
    return (
        f"- {pool.role}: {pool.replicas} x {pool.chips_per_replica} {chips[pool.chip].title} "
        f"(tp {pool.tp}, pp {pool.pp}, dp {pool.dp}, ep {pool.ep}); at most {pool.max_num_seqs} "
        f"sequences and {pool.max_num_batched_tokens} tokens a step for each data-parallel rank"
    )
