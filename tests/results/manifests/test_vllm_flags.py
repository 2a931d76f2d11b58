"""The flag tables, how they are used and how they are made."""

from __future__ import annotations

import importlib.util
import json
import os
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from results.manifests.vllm_flags import assert_legal, flag_table
from spaces.errors import InputError

REPOSITORY = Path(__file__).parents[3]


def test_a_version_names_its_table_and_none_the_newest() -> None:
    assert flag_table("0.31").version == flag_table("0.31.7").version == "0.31.0"
    assert flag_table().version == "0.33.0"
    with pytest.raises(InputError, match=r"known are 0\.31, 0\.33"):
        flag_table("1.0")


def test_known_facts_are_in_the_table() -> None:
    """Names added to and removed from vLLM over time."""
    table = flag_table("0.33.0")
    assert table.flags["--tensor-parallel-size"].kind == "integer"
    assert table.flags["--enable-expert-parallel"].kind == "switch"
    assert table.flags["--headless"].kind == "flag"
    assert set(table.flags["--kv-offloading-backend"].choices) == {"native", "lmcache"}
    assert {"auto", "bfloat16", "fp8"} <= set(table.flags["--kv-cache-dtype"].choices)
    assert {"NixlConnector", "OffloadingConnector", "MultiConnector"} <= table.connectors
    for gone in ("--swap-space", "--expert-parallel-size", "--num-scheduler-steps"):
        assert gone not in table.flags


@pytest.mark.parametrize(
    "arguments",
    [
        ["--expert-parallel-size", "4"],
        ["--no-headless"],
        ["--kv-offloading-backend", "disk"],
    ],
)
def test_what_the_version_does_not_take_stops(arguments: list[str]) -> None:
    with pytest.raises(AssertionError):
        assert_legal(arguments, flag_table("0.33.0"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tensor-parallel-size", "two"],
        ["--gpu-memory-utilization", "high"],
        ["--kv-transfer-config", "{"],
    ],
)
def test_values_of_the_wrong_kind_stop(arguments: list[str]) -> None:
    with pytest.raises(ValueError):
        assert_legal(arguments, flag_table("0.33.0"))


def test_legal_arguments_pass() -> None:
    switches = ["--no-enable-prefix-caching", "--headless"]
    valued = ["--kv-cache-dtype", "a-plugins-own", "--kv-transfer-config", "{}"]
    assert_legal([*switches, *valued, "--tensor-parallel-size", "2"], flag_table("0.33.0"))


def test_the_table_is_read_from_a_wheel_without_importing_it(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-9.1.2-py3-none-any.whl"
    sources = {
        "vllm/config/cache.py": """
import torch_is_not_needed
Kind = Literal["auto", "fp8"]
class CacheConfig:
    kind: Kind | str = "auto"
    strict: Literal["a", "b"] | None = None
    size: int | None = None
    share: Annotated[float, Field(gt=0)] = 0.9
    on: bool = True
    names: list[str] = field()
    extra: dict[str, Any] = field()
""",
        "vllm/engine/arg_utils.py": """
def add_cli_args(parser):
    cache_kwargs = get_kwargs(CacheConfig)
    group = parser.add_argument_group(title="x")
    group.add_argument("--kind", "-k", **cache_kwargs["kind"])
    group.add_argument("--strict", **cache_kwargs["strict"])
    group.add_argument("--size", **{**cache_kwargs["size"], "default": None})
    group.add_argument("--share", **cache_kwargs["share"])
    group.add_argument("--on", **cache_kwargs["on"])
    group.add_argument("--names", **cache_kwargs["names"])
    group.add_argument("--extra", **cache_kwargs["extra"])
    group.add_argument("--ranks", "-r", type=int)
    group.add_argument("--both", action=argparse.BooleanOptionalAction)
""",
        "vllm/entrypoints/openai/cli_args.py": """
class FrontendArgs:
    host: str | None = None
    port: int = 8000
def make(parser):
    parser.add_argument("--headless", action="store_true")
""",
        "vllm/distributed/kv_transfer/kv_connector/factory.py": """
Factory.register_connector("BConnector", "b", "B")
Factory.register_connector("AConnector", "a", "A")
""",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in sources.items():
            archive.writestr(name, text)
    table = _maker().flag_table(wheel)
    assert table["version"] == "9.1.2"
    assert table["connectors"] == ["AConnector", "BConnector"]
    assert table["flags"] == {
        "--both": {"kind": "switch"},
        "--extra": {"kind": "json"},
        "--headless": {"kind": "flag"},
        "--host": {"kind": "text"},
        "--kind": {"kind": "choice", "choices": ["auto", "fp8"], "open": True},
        "--names": {"kind": "list"},
        "--on": {"kind": "switch"},
        "--port": {"kind": "integer"},
        "--ranks": {"kind": "integer"},
        "--share": {"kind": "number"},
        "--size": {"kind": "integer"},
        "--strict": {"kind": "choice", "choices": ["a", "b"]},
    }


def test_the_shipped_table_is_what_the_wheel_says() -> None:
    wheel = os.environ.get("VLLM_WHEEL")
    if not wheel:
        pytest.skip("no vLLM wheel given; set VLLM_WHEEL to the path of one")
    made = _maker().flag_table(Path(wheel))
    minor = ".".join(made["version"].split(".")[:2])
    shipped = REPOSITORY / "results" / "manifests" / "flags" / f"vllm-{minor}.json"
    assert made == json.loads(shipped.read_text(encoding="utf-8"))


def _maker() -> ModuleType:
    path = REPOSITORY / "scripts" / "make_flag_table.py"
    spec = importlib.util.spec_from_file_location("make_flag_table", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
