"""Steady decoding of a pipeline: many rounds of its micro-batches at once, and exactly.

While no request comes, goes or waits to be let in, the same micro-batches go round: each enters
the first stage again when it has left the last one. When one leaves a stage follows from two
times, when it left the stage before and when the micro-batch before it left this one; the later
one binds. So a round is a few maxima and sums, and needs no event.

As long as the same ones bind in every round, all times follow from one of them, which follows from
itself a round ago: a stage that is never idle, or a micro-batch that never waits. Step times are
affine in the context, so the rounds grow by a constant, and many of them have a closed form. It
holds until another one would bind, which the leads of the one over the other tell.
"""

from __future__ import annotations

from objectives.simulator.admission import count_leapt
from objectives.simulator.decodes import give_tokens
from objectives.simulator.gaps import count_gaps
from objectives.simulator.jit import compiled
from objectives.simulator.leap_limits import affine_limit, blocks_within, growth_of
from objectives.simulator.state import DECODING, State
from objectives.simulator.steps import stage_seconds, sum_batch

# Fewer rounds are not worth the look ahead.
_LEAST_ROUNDS = 3
# Times of a leap are kept relative to its beginning. Leads below this are ties, and drifts of a
# lead below this in a round are rounding.
_TIE_S, _DRIFT_S = 1e-12, 1e-13
_PATTERN_BITS = 62


@compiled
def enter_flight(state: State, replica_id: int, flight: int, end_s: float) -> None:
    """Note a micro-batch that has just entered the pipeline, behind the others."""
    place = state.replicas[replica_id].flights - 1
    state.flight_ids[replica_id, place] = flight
    state.flight_end_s[replica_id, place] = end_s


@compiled
def leave_flight(state: State, replica_id: int) -> int:
    """Take the first micro-batch out of the pipeline; returns its name."""
    flights = state.replicas[replica_id].flights
    flight = state.flight_ids[replica_id, 0]
    for place in range(1, flights):
        state.flight_ids[replica_id, place - 1] = state.flight_ids[replica_id, place]
        state.flight_end_s[replica_id, place - 1] = state.flight_end_s[replica_id, place]
    return int(flight)


@compiled
def flights_return(state: State, replica_id: int) -> bool:
    """Whether each micro-batch would be put together again as it is: none is over its share."""
    replica = state.replicas[replica_id]
    pool = state.pools[replica.pool]
    requests, seats = state.requests, state.seats
    most = pool.step_tokens // pool.verified
    for rank_id in range(replica.first_rank, replica.first_rank + pool.ranks):
        rank = state.ranks[rank_id]
        share = min(most, (rank.running + pool.stages - 1) // pool.stages)
        if pool.flight_requests > 0:
            share = min(most, pool.flight_requests)
        for flight in range(replica.flights):
            inside = 0
            for place in range(rank.seats_start, rank.seats_start + rank.running):
                request = requests[seats[place]]
                if request.flight == state.flight_ids[replica_id, flight]:
                    inside += 1
                    if request.phase != DECODING:
                        return False
            if inside > share:
                return False
    return True


@compiled
def rounds_ahead(state: State, replica_id: int) -> int:
    """How many micro-batches may end before one has to be looked at; 0 if too few to leap.

    Notes what each takes in each stage.
    """
    replica = state.replicas[replica_id]
    flights = replica.flights
    ends = _until_one_ends(state, replica_id)
    if ends < _LEAST_ROUNDS * flights:
        return 0
    stages = state.pools[replica.pool].stages
    for place in range(flights):
        flight = state.flight_ids[replica_id, place]
        sum_batch(state, replica_id, flight)
        state.flight_requests[replica_id, place] = replica.batch_requests
        steps = affine_limit(state, replica_id, flight)
        ends = min(ends, place + (steps - 1) * flights + 1)
        for stage in range(stages):
            first_s, slope_s = stage_seconds(state, replica_id, flight, stage)
            state.flight_s[replica_id, place, stage] = first_s
            state.flight_slope_s[replica_id, place, stage] = slope_s
    ends = _within_blocks(state, replica_id, ends)
    return ends if ends >= _LEAST_ROUNDS * flights else 0


@compiled
def _until_one_ends(state: State, replica_id: int) -> int:
    """Ends of micro-batches until a request ends, that end included."""
    replica = state.replicas[replica_id]
    requests, seats = state.requests, state.seats
    ends = 1 << 40
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        for place in range(replica.flights):
            flight = state.flight_ids[replica_id, place]
            for seat in range(rank.seats_start, rank.seats_start + rank.running):
                request = requests[seats[seat]]
                if request.flight == flight:
                    ends = min(ends, place + (request.steps_left - 1) * replica.flights + 1)
    return ends


@compiled
def _within_blocks(state: State, replica_id: int, ends: int) -> int:
    """The most ends, up to `ends`, whose KV blocks every rank can supply."""
    replica = state.replicas[replica_id]
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        available = blocks_within(state, rank_id)
        if _growth(state, replica_id, rank_id, ends) <= available:
            continue
        low, high = 1, ends  # the first end needs none: a new step is what takes them
        while high - low > 1:
            middle = (low + high) >> 1
            if _growth(state, replica_id, rank_id, middle) <= available:
                low = middle
            else:
                high = middle
        ends = low
    return ends


@compiled
def _growth(state: State, replica_id: int, rank_id: int, ends: int) -> int:
    """KV blocks a rank takes until the last of so many ends, which is not followed by a step."""
    blocks, flights = 0, state.replicas[replica_id].flights
    for place in range(flights):
        again = _count_of(place, flights, ends - 1)
        blocks += growth_of(state, rank_id, state.flight_ids[replica_id, place], 1 + again)
    return blocks


@compiled
def _count_of(place: int, flights: int, ends: int) -> int:
    """How many of the first `ends` ends are of the micro-batch at a place."""
    return max(0, (ends - place + flights - 1) // flights)


@compiled
def leap_end_s(state: State, replica_id: int) -> float:
    """When the last micro-batch of the leap just planned ends."""
    ends = state.replicas[replica_id].leap_steps
    done = _go_round(state, replica_id, ends - 1, float("inf"), False)
    origin_s = state.clock[0].now_s
    return float(origin_s + state.rolling_s[0, done % state.replicas[replica_id].flights])


@compiled
def settle_rounds(state: State, replica_id: int) -> None:
    """Bring a leaping pipeline to this moment: what ended before has ended and entered again."""
    clock, replica = state.clock[0], state.replicas[replica_id]
    pool, flights = state.pools[replica.pool], replica.flights
    origin_s = replica.leap_start_s
    until_s = clock.now_s - origin_s
    done = _go_round(state, replica_id, replica.leap_steps - 1, until_s, True)
    replica.leap_steps = 0
    if done == 0:
        return
    count_leapt(state, replica_id, done)
    replica.steps += done
    for place in range(flights):
        again = _count_of(place, flights, done)
        if again == 0:
            continue
        _give(state, replica_id, place, again)
        state.batches[replica.pool, state.flight_requests[replica_id, place]] += again
        for stage in range(pool.stages):
            slope_s = state.flight_slope_s[replica_id, place, stage]
            replica.work_s += again * state.flight_s[replica_id, place, stage]
            replica.work_s += slope_s * (again * (again + 1) / 2)
    _turn(state, replica_id, done % flights)
    for stage in range(pool.stages):
        state.stage_free_s[replica_id, stage] = origin_s + state.rolling_s[1, stage]


@compiled
def _turn(state: State, replica_id: int, first: int) -> None:
    """Put the micro-batches in the order in which they end now, the one at `first` first."""
    flights = state.replicas[replica_id].flights
    origin_s = state.replicas[replica_id].leap_start_s
    names = state.flight_ids[replica_id]
    for place in range(flights):
        state.turned[place] = names[(first + place) % flights]
    for place in range(flights):
        names[place] = state.turned[place]
        end_s = state.rolling_s[0, (first + place) % flights]
        state.flight_end_s[replica_id, place] = origin_s + end_s


@compiled
def _give(state: State, replica_id: int, place: int, steps: int) -> None:
    """Give the requests of a micro-batch the tokens of steps that ended, and the next one's KV."""
    replica = state.replicas[replica_id]
    flight = state.flight_ids[replica_id, place]
    first_end_s = state.flight_end_s[replica_id, place]
    last_end_s = replica.leap_start_s + state.rolling_s[2, place]
    decodes, tokens = 0, 0
    for rank_id in range(replica.first_rank, replica.first_rank + state.pools[replica.pool].ranks):
        rank = state.ranks[rank_id]
        for seat in range(rank.seats_start, rank.seats_start + rank.running):
            request_id = state.seats[seat]
            request = state.requests[request_id]
            if request.flight == flight:
                count_gaps(state, first_end_s - request.last_token_s, 0.0, 1, 1)
                request.last_token_s = last_end_s
                tokens += give_tokens(state, rank_id, request_id, steps, steps)
                decodes += 1
    replica.decode_tokens += tokens
    replica.decode_request_steps += decodes * steps
    replica.request_steps += decodes * steps


@compiled
def _go_round(state: State, replica_id: int, most: int, until_s: float, counts: bool) -> int:
    """Let micro-batches end and enter again, at most `most` of them and before `until_s`.

    Begins with the state at the beginning of the leap and leaves in `State.rolling_s`, in seconds
    from then, when each micro-batch ends next [0], when each stage is free [1], and when each
    micro-batch ended last [2]. With `counts` the gaps between a micro-batch's ends are counted.
    Returns how many ended.
    """
    replica = state.replicas[replica_id]
    flights, stages = replica.flights, state.pools[replica.pool].stages
    origin_s = replica.leap_start_s
    ends_s, free_s, ended_s = state.rolling_s[0], state.rolling_s[1], state.rolling_s[2]
    for place in range(flights):
        ends_s[place] = state.flight_end_s[replica_id, place] - origin_s
    for stage in range(stages):
        free_s[stage] = state.stage_free_s[replica_id, stage] - origin_s
    done, entry, alike, pattern, found = 0, 1, 0, -1, 0
    while done < most and ends_s[done % flights] < until_s:
        place = done % flights
        if place == 0:
            for other in range(flights):
                state.rolled_s[0, other] = ends_s[other]
            for stage in range(stages):
                state.rolled_s[1, stage] = free_s[stage]
            found = 0
        if counts and entry > 1:
            gap_s = ends_s[place] - ended_s[place]
            count_gaps(state, gap_s, 0.0, 1, state.flight_requests[replica_id, place])
        ended_s[place] = ends_s[place]
        found |= _enter_again(state, replica_id, place, entry)
        done += 1
        if place == flights - 1:
            entry += 1
            alike = alike + 1 if found == pattern else 0
            pattern = found
            if alike >= 2 and flights * stages <= _PATTERN_BITS:
                depth, slope_s = _critical(state, replica_id, pattern)
                if 0 < depth < alike:
                    left = (most - done) // flights
                    rounds = _rounds_alike(state, replica_id, pattern, slope_s, left, until_s)
                    if rounds > 1:
                        _skip(state, replica_id, rounds, slope_s, counts)
                        done += rounds * flights
                        entry += rounds
                        alike, pattern = 0, -1
    return done


@compiled
def _enter_again(state: State, replica_id: int, place: int, entry: int) -> int:
    """Send a micro-batch through the stages for the `entry`-th time.

    Returns the bits of those stages that it found busy.
    """
    stages = state.pools[state.replicas[replica_id].pool].stages
    ends_s, free_s = state.rolling_s[0], state.rolling_s[1]
    first_s, slope_s = state.flight_s[replica_id, place], state.flight_slope_s[replica_id, place]
    time_s, found = ends_s[place], 0
    for stage in range(stages):
        lead_s = free_s[stage] - time_s
        state.leads_s[1, place, stage] = state.leads_s[0, place, stage]
        state.leads_s[0, place, stage] = lead_s
        if lead_s > _TIE_S:
            found |= 1 << (place * stages + stage)
        time_s = max(time_s, free_s[stage]) + first_s[stage] + slope_s[stage] * entry
        free_s[stage] = time_s
    ends_s[place] = time_s
    return found


@compiled
def _critical(state: State, replica_id: int, pattern: int) -> tuple[int, float]:
    """On which rounds before all times of a round hang, and by how much rounds grow.

    Follows what bound each time back to the time that hangs on itself a round ago. Returns 0
    rounds where the times hang on several, or on one several rounds ago.
    """
    replica = state.replicas[replica_id]
    flights, stages = replica.flights, state.pools[replica.pool].stages
    root, depth, slope_s = -1, 0, 0.0
    for start in range(flights + stages):
        place, stage = (start, stages - 1) if start < flights else (flights - 1, start - flights)
        steps, before, own_slope_s = 0, -1, 0.0
        while steps <= flights + stages:
            before, own_slope_s = _round_back(state, replica_id, pattern, place, stage)
            if before == place * stages + stage:
                break
            place, stage = before // stages, before % stages
            steps += 1
        if steps > flights + stages or (root >= 0 and root != before):
            return 0, 0.0
        root, slope_s, depth = before, own_slope_s, max(depth, steps + 1)
    return depth, slope_s


@compiled
def _round_back(
    state: State, replica_id: int, pattern: int, place: int, stage: int
) -> tuple[int, float]:
    """The time of the round before on which one hangs, and the slopes of the steps between."""
    replica = state.replicas[replica_id]
    flights, stages = replica.flights, state.pools[replica.pool].stages
    slope_s = 0.0
    while True:
        slope_s += state.flight_slope_s[replica_id, place, stage]
        if (pattern >> (place * stages + stage)) & 1:
            if place == 0:
                return (flights - 1) * stages + stage, slope_s
            place -= 1
        else:
            if stage == 0:
                return place * stages + stages - 1, slope_s
            stage -= 1


@compiled
def _rounds_alike(
    state: State, replica_id: int, pattern: int, slope_s: float, most: int, until_s: float
) -> int:
    """Rounds, at most `most` and all before `until_s`, in which the same times bind."""
    replica = state.replicas[replica_id]
    flights, stages = replica.flights, state.pools[replica.pool].stages
    for place in range(flights):
        for stage in range(stages):
            lead_s = state.leads_s[0, place, stage]
            drift_s = lead_s - state.leads_s[1, place, stage]
            if not (pattern >> (place * stages + stage)) & 1:
                lead_s, drift_s = -lead_s, -drift_s
            if drift_s < -_DRIFT_S:
                most = min(most, int(max(lead_s, 0.0) / -drift_s) - 1)
    last = flights - 1
    step_s = state.rolling_s[0, last] - state.rolled_s[0, last]
    if most > 1 and _after(state.rolling_s[0, last], step_s, slope_s, most - 1) >= until_s:
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) >> 1
            if _after(state.rolling_s[0, last], step_s, slope_s, middle - 1) < until_s:
                low = middle
            else:
                high = middle
        most = low
    return most


@compiled
def _after(time_s: float, step_s: float, slope_s: float, rounds: int) -> float:
    """A time of a round, so many rounds later; the last step was `step_s`, the next is longer."""
    return time_s + rounds * step_s + slope_s * (rounds * (rounds + 1) / 2)


@compiled
def _skip(state: State, replica_id: int, rounds: int, slope_s: float, counts: bool) -> None:
    """Go through rounds in which the same times bind."""
    replica = state.replicas[replica_id]
    ends_s, free_s, ended_s = state.rolling_s[0], state.rolling_s[1], state.rolling_s[2]
    for place in range(replica.flights):
        step_s = ends_s[place] - state.rolled_s[0, place]
        if counts:
            weight = state.flight_requests[replica_id, place]
            count_gaps(state, step_s, slope_s, rounds, weight)
        ended_s[place] = _after(ends_s[place], step_s, slope_s, rounds - 1)
        ends_s[place] = _after(ends_s[place], step_s, slope_s, rounds)
    for stage in range(state.pools[replica.pool].stages):
        step_s = free_s[stage] - state.rolled_s[1, stage]
        free_s[stage] = _after(free_s[stage], step_s, slope_s, rounds)
