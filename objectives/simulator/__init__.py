"""The event-driven simulator: a scenario and an offered load in, request records out."""

from objectives.simulator.records import PoolRecord, RequestRecords, SimulationResult
from objectives.simulator.scenario import KvOnLink, PoolSetup, Scenario, SharedStore
from objectives.simulator.simulate import simulate

__all__ = [
    "KvOnLink",
    "PoolRecord",
    "PoolSetup",
    "RequestRecords",
    "Scenario",
    "SharedStore",
    "SimulationResult",
    "simulate",
]
