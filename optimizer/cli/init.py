"""servefront init"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from optimizer.cli.talk import say

_TEMPLATE = """\
# What to serve (a catalogue name, or a path to a Hugging Face config.json) and on how many chips.
model: {model}
chips: {chips}
engine: vllm  # or sglang, trtllm, atom, or a list to search

# What has to be served, and the loads to search: requests in flight, or requests per second as
# {{request_rate: [1, 20]}}. Leave `load` out to keep the arrivals of a trace as recorded.
workload: {workload}
load: {{concurrency: [1, 256]}}

# What matters; docs name the metrics.
objectives:
  - maximize tokens_per_s_per_user_p50
  - maximize output_tokens_per_s_per_chip
# constraints: ["ttft_p95_ms <= 2000"]
# slo: {{ttft_ms: 2000, tpot_ms: 50}}  # of one request, for goodput_requests_per_s_per_chip

# What may be chosen, where the defaults are too wide.
# precision: {{weights: [native, fp8], kv: [bf16, fp8]}}
# space: {{topology: [aggregated, prefill-decode], tensor_parallel: [1, 2, 4, 8]}}
search: {{trials: 300, seed: 1}}
"""


def init(
    model: Annotated[str, typer.Option(help="Catalogue name, or path to a config.json.")],
    chips: Annotated[
        list[str], typer.Option(metavar="KIND:N", help="A chip kind and how many; repeatable.")
    ],
    workload: Annotated[
        str, typer.Option(metavar="PRESET|TRACE", help="A preset or a trace file.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("job.yaml"),
) -> None:
    """Write a job file to start from."""
    from optimizer.job import load_job
    from results.files import write_atomically
    from spaces.errors import InputError

    if out.exists():
        raise InputError(
            "the file must not exist yet", where=str(out), remedy="choose another with --out"
        )
    text = _TEMPLATE.format(
        model=_model(model, out), chips=_budget(chips), workload=_workload(workload, out)
    )
    draft = out.with_name(f".{out.name}.{os.getpid()}.draft")
    try:
        write_atomically(draft, text)
        load_job(draft)
    except InputError as error:
        raise InputError(
            error.rule,
            where="servefront init",
            key=f"--{error.key.partition('.')[0]}",
            value=error.value,
            remedy=error.remedy,
        ) from None
    finally:
        draft.unlink(missing_ok=True)
    write_atomically(out, text)
    say(f"wrote {out}; next: servefront optimize {out}")


def _model(name: str, out: Path) -> str:
    path = Path(name)
    return _relative(path, out) if path.suffix == ".json" or path.is_dir() else name


def _budget(chips: list[str]) -> str:
    from spaces import catalog
    from spaces.errors import InputError

    parts = []
    for text in chips:
        kind, _, count = text.rpartition(":")
        if not kind or not count.isdecimal():
            raise InputError(
                "chips are given as KIND:N",
                key="--chips",
                value=text,
                remedy="for example --chips gb200:64",
            )
        parts.append(f"{catalog.chip(kind).name}: {int(count)}")
    return f"{{{', '.join(parts)}}}"


def _workload(name: str, out: Path) -> str:
    from objectives.preset_names import preset_names
    from spaces.errors import InputError, did_you_mean

    if name in preset_names():
        return f"{{preset: {name}}}"
    if Path(name).is_file():
        return f"{{trace: {_relative(Path(name), out)}}}"
    raise InputError(
        "the workload must be a preset or a trace file that exists",
        key="--workload",
        value=name,
        remedy=did_you_mean(name, preset_names()),
    )


def _relative(path: Path, out: Path) -> str:
    """The path as the job file sees it, in quotes that YAML understands."""
    import json

    return json.dumps(os.path.relpath(path, out.parent))
