"""The event-driven simulator: a scenario and an offered load in, request records out.

Where to find what, each group resting on those below it:

- in and out: `scenario`, `simulate`, `records`; `layout*` lays a scenario out as arrays, `results`
  reads the answers off them; `speculation` draws how many steps answers take
- the loop: `loop` takes events in order; `clients`, `flow_end`, `step_end` and `step_begin` say
  what each brings about, `passing_on` what a request does between two pools
- one step: `batching` chooses what is in it, `admission` who is let in; `steps` says how long it
  takes, `prompt_costs` what prompts cost, `decodes` and `gaps` what it gives
- many steps as one event: `leaps`, `leap_limits`, and `pipeline` for stages
- memory and links: `cache`, `slots`, `tiers`, `flows`; `transfer` and `handoff` between pools
- the rest: `routing`, `hosts`, the event queue in `events`
- below all: `state` is what there is; `jit`, `linking`, `compiled_state`: how it is compiled
"""

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
