"""The same input gives the same bytes: again, in other processes, among other threads."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings

from objectives.simulator import SimulationResult, simulate
from tests.conftest import REPOSITORY
from tests.objectives.simulator.worlds import World, worlds

WORLDS = 30

SERVE = """
import pickle, sys
from tests.objectives.simulator.test_determinism import served
print("\\n".join(map(served, pickle.load(open(sys.argv[1], "rb")))))
"""


def digest(result: SimulationResult) -> str:
    """Of all that a simulation tells, to the last bit."""
    return hashlib.sha256(pickle.dumps(result)).hexdigest()


def served(world: World) -> str:
    """The digest of what happens in a world."""
    return digest(simulate(*world))


@pytest.fixture(scope="module")
def some_worlds() -> list[World]:
    found: list[World] = []

    @given(worlds())
    @settings(max_examples=WORLDS, phases=[Phase.generate])
    def collect(world: World) -> None:
        found.append(world)

    collect()
    return found


def test_a_world_served_again_is_the_same(some_worlds: list[World]) -> None:
    first, again = ([served(world) for world in some_worlds] for _ in range(2))
    assert first == again
    assert len(set(first)) > WORLDS / 2  # they are not one and the same


@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_other_processes_give_the_same_bytes(
    some_worlds: list[World], hash_seed: str, tmp_path: Path
) -> None:
    file = tmp_path / "worlds"
    file.write_bytes(pickle.dumps(some_worlds))
    told = subprocess.run(
        [sys.executable, "-c", SERVE, file],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.split() == [served(world) for world in some_worlds]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_meet(some_worlds: list[World], threads: int) -> None:
    alone = [served(world) for world in some_worlds]
    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(served, some_worlds)) == alone
