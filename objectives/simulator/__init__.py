"""The event-driven simulator: a scenario and an offered load in, request records out."""

from objectives.simulator.records import HostRecord, PoolRecord, RequestRecords, SimulationResult
from objectives.simulator.scenario import HostSetup, KvOnLink, PoolSetup, Scenario, SharedStore
from objectives.simulator.simulate import simulate

__all__ = [
    "HostRecord",
    "HostSetup",
    "KvOnLink",
    "PoolRecord",
    "PoolSetup",
    "RequestRecords",
    "Scenario",
    "SharedStore",
    "SimulationResult",
    "simulate",
]
