"""Werewolf (Dimitry Davidoff's Mafia, 1986), 4 to 12 players.

Rules: every player secretly is a villager, a werewolf, a doctor or a seer; all but the werewolves are humans.
Werewolves know each other. A day has three phases:
    night   First the living doctors, then the living seers, then the living werewolves choose a seat, unseen by all
            others, fellow werewolves included. A doctor protects a living player (himself allowed, the same again
            allowed). A seer learns at once whether another living player is a werewolf. A werewolf names a living
            human. The one named most dies, unless a doctor protects him.
    accuse  The living accuse another living player, or nobody.
    vote    The living vote for another living player, accused or not. Who has most votes dies.
In each phase, at night within each role, seats act in order from a start seat, drawn at reset and known to all. Ties
for most are broken uniformly; where that one is protected at night, nobody dies. Accusations and votes are public at
once. The role of who died stays hidden. After each death the game is over if no werewolf lives (the humans win) or no
more humans than werewolves do (the werewolves win). The dead are never asked, and win or lose with their team.

Every vote kills one and none is held with fewer than three living, so there are at most N - 2 days, which takes a
doctor who saves somebody each night; without doctors each day kills two, and there are at most (N - 1) // 2. The
default game has at most 50 actions.

Actions, seats counted from the player who acts (0 is himself, 1 the next to the left):
    0 ... N - 1     choose that seat
    N               accuse nobody, legal in the accuse phase only
    An illegal action is played as accusing nobody, at night and in the vote as the lowest-numbered legal one.

Observation "paper" (7 + 6 N features; all of the observing player's view, seats counted from him):
    0 ... 3         own role: villager, werewolf, doctor, seer, one-hot
    4 ... 6         phase: night, accuse, vote, one-hot; once the game is over, that in which it ended
    then N          who lives
    then N          fellow werewolves, dead ones included, without oneself; zeros for humans
    then N * 3      for each seat: not a werewolf, unknown, werewolf, one-hot; what a seer found himself, his own seat
                    unknown; zeros for all others
    then N          who was accused this day, zeros once the vote is over

Observation "information_state" (perfect recall; L = `max_days`):
    0 ... 6 + 6 N   as in "paper"
    then N          the start seat, one-hot
    then L * (2 N * N + 4 N)    for each day, zeros where not played:
                    N           own choice at night, one-hot
                    N           who died at night, one-hot
                    N * (N + 1) for each seat, whom it accused, the last for nobody, one-hot
                    N * N       for each seat, whom it voted for, one-hot
                    N           who was voted out, one-hot

Reward: 10 to each player of the team that wins and -10 to the others, dead ones included, when the game ends.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

MIN_AGENTS, MAX_AGENTS = 4, 12
VILLAGER, WEREWOLF, DOCTOR, SEER = 0, 1, 2, 3
NIGHT, ACCUSE, VOTE = 0, 1, 2
ROLE_NAMES = ("villager", "werewolf", "doctor", "seer")
PHASE_NAMES = ("night", "accuse", "vote")
FINDINGS = 3  # not a werewolf, unknown, werewolf
REWARD = 10
# `State.history`, from the lowest bits: for each phase action + 1 (0 not played), then the death in it (0 none)
FIELD_BITS, NUM_FIELDS = 4, len(PHASE_NAMES) + 1
DIED_AT_NIGHT, VOTED_OUT = NIGHT + 1, VOTE + 1


@struct.dataclass
class State:
    """State of one game. Arrays carry no batch axis: use `jax.vmap`. L days.

    "Places" are seats counted from the start seat. Sets of them are masks, bit p the place p: the lowest acts first.
    """

    key: jax.Array  # PRNG key of ties and of all later games
    current_player: jax.Array  # int32, seat to act; the last to have acted once the game is over
    timestep: jax.Array  # int32, actions played in this game
    returns: jax.Array  # [N] float32, rewards of this game so far
    finished: jax.Array  # bool, the game is over
    start_seat: jax.Array  # int32, seat that is first in each phase
    werewolves: jax.Array  # int32, mask of places, dead ones included
    doctors: jax.Array  # int32, likewise
    seers: jax.Array  # int32, likewise
    alive: jax.Array  # int32, mask of places
    day: jax.Array  # int32, 0 to L - 1
    phase: jax.Array  # int32, NIGHT, ACCUSE or VOTE
    to_act: jax.Array  # int32, mask of places that have yet to act in this phase
    protected: jax.Array  # int32, mask of places, of this night
    accused: jax.Array  # int32, mask of places, of this day
    votes: jax.Array  # [N] int8 by place, how often it was named in this night or vote
    inspected: tuple[jax.Array, ...]  # int32, for each seer, the lowest place first: mask of places that he inspected
    history: jax.Array  # [L * N] int16, by day and place: FIELD_BITS for each phase and for the death, as above


@dataclass(frozen=True)
class Werewolf:
    """Werewolf.

    `State.current_player` names who acts, at night too, and so tells who is a doctor, a seer or a werewolf. It is there
    to ask the right agent; an agent must not read it. No observation depends on it.

    Attributes:
        num_agents: players, 4 to 12.
        num_werewolves: 1 or more, fewer than the humans.
        num_doctors: 0 or more.
        num_seers: 0 or more. Who has no other role is a villager.
        observation: "paper" or "information_state".

    Raises:
        ValueError: a parameter is out of its range.
    """

    num_agents: int = 6
    num_werewolves: int = 2
    num_doctors: int = 1
    num_seers: int = 1
    observation: str = "paper"

    api: ClassVar[str] = "aec"
    version: ClassVar[int] = 1
    zero_sum: ClassVar[bool] = False  # all win or lose the same, and the teams are never equally large
    num_teams: ClassVar[int] = 2

    def __post_init__(self):
        N = self.num_agents
        if type(N) is not int or not MIN_AGENTS <= N <= MAX_AGENTS:
            raise ValueError(f"num_agents={N!r}: an integer from {MIN_AGENTS} to {MAX_AGENTS} is allowed")
        left = N
        for name, least, most in (("num_werewolves", 1, (N - 1) // 2), ("num_doctors", 0, N), ("num_seers", 0, N)):
            number, most = getattr(self, name), min(most, left)
            if type(number) is not int or not least <= number <= most:
                reason = f"num_agents={N}, more humans than werewolves, one role each"
                raise ValueError(f"{name}={number!r}: an integer from {least} to {most} is allowed ({reason})")
            left -= number
        if self.observation not in ("paper", "information_state"):
            raise ValueError(f"observation={self.observation!r}: 'paper' or 'information_state' is allowed")

    @property
    def num_actions(self) -> int:
        return self.num_agents + 1

    @property
    def obs_shape(self) -> tuple[int]:
        N = self.num_agents
        paper = len(ROLE_NAMES) + len(PHASE_NAMES) + (3 + FINDINGS) * N
        return (paper if self.observation == "paper" else paper + N + self.max_days * (2 * N * N + 4 * N),)

    @property
    def max_days(self) -> int:
        """Most days in a game."""
        return self.num_agents - 2 if self.num_doctors else (self.num_agents - 1) // 2

    def reset(self, key: jax.Array) -> tuple[State, jax.Array]:
        """Deals the roles; the key is consumed. Returns the state and f32[*obs_shape], what who acts first sees."""
        key, deal_key = jax.random.split(key)
        state = self._deal(key, deal_key)
        return state, self.observe(state, state.current_player)

    def step(self, state: State, action: jax.Array):
        """Plays `action`; where that ends the game, the state and observation returned are the first of a new game.

        Args:
            state: a state.
            action: int, the move of `state.current_player`.

        Returns:
            State; observation f32[*obs_shape] of its player to act; reward f32[N]; absorbing bool[N]; done bool; info
            with `returns` f32[N], `timestep` int32, `illegal_action` bool, `winner` bool[N], `phase` int32 (0 night,
            1 accuse, 2 vote) and `final_state`, the state before the new game.
        """
        state, reward, absorbing, done, info = _auto_reset(self, state, action)
        return state, self.observe(state, state.current_player), reward, absorbing, done, info

    def step_env(self, state: State, action: jax.Array):
        """`step` without the new game. A finished state comes back as it is, with reward 0."""
        action = jnp.asarray(action)
        N = self.num_agents
        at_night, accuses, votes = (state.phase == phase for phase in (NIGHT, ACCUSE, VOTE))
        place = self._place(state, state.current_player)
        allowed = self._allowed(state, place)
        is_seat = (action >= 0) & (action < N)
        number = jnp.where(is_seat, action, N).astype(jnp.int32)
        is_legal = jnp.where(is_seat, (allowed >> number & 1) == 1, (action == N) & accuses)
        number = jnp.where(is_legal, number, jnp.where(accuses, N, _lowest(allowed)))
        place, number, is_legal = _materialize(place, number, is_legal)

        own, chosen = 1 << place, jnp.where(number == N, 0, 1 << _wrap(place + number, N))
        is_werewolf, is_doctor, is_seer = self._roles(state, place)
        protected = state.protected | jnp.where(at_night & is_doctor, chosen, 0)
        accused = state.accused | jnp.where(accuses, chosen, 0)
        counts = state.votes + _is_in(jnp.where(votes | (at_night & is_werewolf), chosen, 0), N)
        to_act = state.to_act & ~own
        over = to_act == 0
        most = _mask(counts == counts.max())
        victim = _random_bit(most, N, self._tie_word(state))
        victim = jnp.where(over & (votes | (at_night & ((protected & victim) == 0))), victim, 0)
        victim, to_act = _materialize(victim, to_act)
        over = to_act == 0

        alive = state.alive & ~victim
        num_alive, num_werewolves = (jax.lax.population_count(mask) for mask in (alive, alive & state.werewolves))
        finished = (victim != 0) & ((num_werewolves == 0) | (2 * num_werewolves >= num_alive))
        phase = jnp.where(over & ~finished, jnp.where(votes, NIGHT, state.phase + 1), state.phase)
        alive, phase, finished = _materialize(alive, phase, finished)
        special = state.werewolves | state.doctors | state.seers
        to_act = jnp.where(over, alive & jnp.where(phase == NIGHT, special, -1), to_act)
        next_player = _wrap(state.start_seat + _lowest(self._first_in_turn(state, phase, to_act)), N)
        resolved = over & ~accuses

        slots, first_slot = jnp.arange(self.max_days * N, dtype=jnp.int32), state.day * N
        choice = jnp.where(slots == first_slot + place, number + 1 << FIELD_BITS * state.phase, 0)
        death = jnp.where(votes, VOTED_OUT, DIED_AT_NIGHT) << FIELD_BITS * (NUM_FIELDS - 1)
        death = jnp.where((victim != 0) & (slots == first_slot + _lowest(victim)), death, 0)

        live = ~state.finished
        wins = self.teams(state) == (num_werewolves > 0)
        reward = jnp.where(live & finished, jnp.where(wins, REWARD, -REWARD), 0).astype(jnp.float32)
        inspects = jnp.where(at_night & is_seer, chosen, 0)
        seer = jax.lax.population_count(state.seers & (own - 1))
        played = state.replace(
            current_player=jnp.where(finished, state.current_player, next_player),
            timestep=state.timestep + 1,
            returns=state.returns + reward,
            finished=finished,
            alive=alive,
            day=state.day + (over & votes & ~finished),
            phase=phase,
            to_act=to_act,
            protected=jnp.where(resolved, 0, protected),
            accused=jnp.where(resolved, 0, accused),
            votes=jnp.where(resolved, jnp.int8(0), counts),
            inspected=tuple(mask | jnp.where(seer == index, inspects, 0) for index, mask in enumerate(state.inspected)),
            history=state.history | (choice | death).astype(jnp.int16),
        )
        state = _select_state(live, played, state)
        info = {
            "returns": state.returns,
            "timestep": state.timestep,
            "illegal_action": live & ~is_legal,
            "winner": state.returns > 0,
            "phase": state.phase,
            "final_state": state,
        }
        absorbing = jnp.broadcast_to(state.finished, (N,))
        return state, self.observe(state, state.current_player), reward, absorbing, state.finished, info

    def legal_actions(self, state: State) -> jax.Array:
        """bool[N + 1], True = legal, of the player to act; none in a finished state."""
        N = self.num_agents
        allowed = self._allowed(state, self._place(state, state.current_player))
        allowed = allowed | jnp.where(state.phase == ACCUSE, 1 << N, 0)
        (allowed,) = _materialize(jnp.where(state.finished, 0, allowed))
        return _is_in(allowed, N + 1)

    def observe(self, state: State, player: jax.Array) -> jax.Array:
        """f32[*obs_shape], what `player` sees, in the encoding that `observation` names."""
        if self.observation == "information_state":
            return self.information_state(state, player)
        return self._paper_features(state, player)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """f32[7 + 7 N + L (2 N N + 4 N)], everything that `player` has seen and done, in order."""
        N, L = self.num_agents, self.max_days
        place = self._place(state, player)
        seats = jnp.arange(N, dtype=jnp.int32)
        is_place = (seats[None] - place) % N == seats[:, None]  # [seat, place]
        history = state.history.astype(jnp.int32).reshape(L, 1, N)
        history = jnp.where(is_place[None], history, 0).sum(2, dtype=jnp.int32)  # [L, seat]
        fields = (history >> FIELD_BITS * field & (1 << FIELD_BITS) - 1 for field in range(NUM_FIELDS))
        night, accusation, vote, death = fields
        # action + 1 with which a seat chooses another one, or nobody: [seat, N + 1]
        choices = np.pad((np.arange(N)[None] - np.arange(N)[:, None]) % N + 1, ((0, 0), (0, 1)), constant_values=N + 1)
        planes = (
            night[:, :1] == choices[:1, :N],
            death == DIED_AT_NIGHT,
            (accusation[:, :, None] == choices[None]).reshape(L, -1),
            (vote[:, :, None] == choices[None, :, :N]).reshape(L, -1),
            death == VOTED_OUT,
        )
        planes = jnp.concatenate(planes, axis=1).astype(jnp.float32).reshape(-1)
        start = _one_hot((state.start_seat - player) % N, N)
        return jnp.concatenate([self._paper_features(state, player), start, planes])

    def teams(self, state: State) -> jax.Array:
        """int32[N], 1 for the werewolves' seats. It is hidden from players."""
        N = self.num_agents
        return _is_in(_rotate(state.werewolves, N - state.start_seat, N), N).astype(jnp.int32)

    def deals(self):
        """Not listed: ties are broken by chance, too.

        Raises:
            ValueError: always; it says how many deals of roles and start seats there are.
        """
        count, left = self.num_agents, self.num_agents
        for number in (self.num_werewolves, self.num_doctors, self.num_seers):
            count *= math.comb(left, number)
            left -= number
        raise ValueError(f"werewolf has {count:.3g} deals, and later draws where votes tie: use games that are sampled")

    def render(self, state: State, player: int | None = None) -> str:
        """The table as text, as `player` sees it; with all roles and night choices where `player` is None."""
        N = self.num_agents
        order = [(int(state.start_seat) + place) % N for place in range(N)]
        roles = [ROLE_NAMES[int(self._role(state, self._place(state, seat)))] for seat in range(N)]
        found = 0 if player is None else int(self._inspected(state, self._place(state, player)))
        over, at_night = bool(state.finished), int(state.phase) == NIGHT
        lines = [f"day {int(state.day) + 1}, {PHASE_NAMES[int(state.phase)]}, seat {order[0]} starts"]
        for seat in range(N):
            place = order.index(seat)
            is_wolf, sees_all = roles[seat] == "werewolf", player in (None, seat)
            role = ("werewolf" if is_wolf else "not a werewolf") if found >> place & 1 else "?"
            role = roles[seat] if sees_all or (is_wolf and roles[player] == "werewolf") else role
            marks = " dead" * (int(state.alive) >> place & 1 == 0) + " accused" * (int(state.accused) >> place & 1)
            # who acts at night tells a role
            marks += " to act" * (seat == int(state.current_player) and not over and (sees_all or not at_night))
            lines.append(f"seat {seat}: {role}{marks}")
        history = np.asarray(state.history, np.int32).reshape(-1, N)
        for day, phase in itertools.product(range(int(state.day) + 1), range(len(PHASE_NAMES))):
            events = []
            for seat, record in zip(order, history[day].tolist(), strict=True):
                action = (record >> FIELD_BITS * phase & (1 << FIELD_BITS) - 1) - 1
                if action >= 0 and (phase != NIGHT or player in (None, seat)):
                    events.append(f"{seat} > {'nobody' if action == N else (seat + action) % N}")
            deaths = history[day] >> FIELD_BITS * (NUM_FIELDS - 1)
            events += [f"{seat} dies" for seat, death in zip(order, deaths, strict=True) if death == phase + 1]
            lines += [f"day {day + 1}, {PHASE_NAMES[phase]}: {', '.join(events)}"] * bool(events)
        if over:
            some = player or 0  # any player's role and result tell who won
            wolves_win = (roles[some] == "werewolf") == (float(state.returns[some]) > 0)
            lines.append(f"over, the {'werewolves' if wolves_win else 'humans'} win")
        return "\n".join(lines)

    def _deal(self, key: jax.Array, deal_key: jax.Array) -> State:
        """First state of a random game."""
        N = self.num_agents
        high, low = jax.random.key_data(deal_key)[:2]  # data of a fresh key are random: no second hash is needed
        numbers = (self.num_werewolves, self.num_doctors, self.num_seers)
        # Floyd's draw (Bentley and Floyd 1987, "A sample of brilliance"): the bound grows by one, and where an earlier
        # place is drawn again, that one becomes the bound. All but the villagers are drawn, werewolves first.
        places = []
        for bound in range(N - sum(numbers), N):
            drawn, high, low = _draw_number(high, low, bound + 1)
            places = [*(jnp.where(earlier == drawn, bound, earlier) for earlier in places), drawn]
        start_seat, *_ = _draw_number(high, low, N)
        ends = np.cumsum(numbers)
        masks = (
            sum((1 << place for place in places[end - number : end]), jnp.int32(0))
            for number, end in zip(numbers, ends, strict=True)
        )
        start_seat, werewolves, doctors, seers = _materialize(start_seat, *masks)
        special, nobody = werewolves | doctors | seers, jnp.int32(0)
        first = doctors if self.num_doctors else seers if self.num_seers else werewolves
        return State(
            key=key,
            current_player=_wrap(start_seat + _lowest(first), N),
            timestep=jnp.int32(0),
            returns=jnp.zeros(N, jnp.float32),
            finished=jnp.bool_(False),
            start_seat=start_seat,
            werewolves=werewolves,
            doctors=doctors,
            seers=seers,
            alive=jnp.int32((1 << N) - 1),
            day=jnp.int32(0),
            phase=jnp.int32(NIGHT),
            to_act=special,
            protected=nobody,
            accused=nobody,
            votes=jnp.zeros(N, jnp.int8),
            inspected=(nobody,) * self.num_seers,
            history=jnp.zeros(self.max_days * N, jnp.int16),
        )

    def _place(self, state: State, player: jax.Array) -> jax.Array:
        """int32, seats from the start seat to `player`."""
        ahead = jnp.asarray(player - state.start_seat, jnp.int32)
        return ahead + jnp.where(ahead < 0, self.num_agents, 0)

    def _roles(self, state: State, place: jax.Array) -> tuple[jax.Array, ...]:
        """Whether `place` is a werewolf, a doctor, a seer."""
        return tuple((mask >> place & 1) == 1 for mask in (state.werewolves, state.doctors, state.seers))

    def _role(self, state: State, place: jax.Array) -> jax.Array:
        is_werewolf, is_doctor, is_seer = self._roles(state, place)
        return jnp.where(is_werewolf, WEREWOLF, jnp.where(is_doctor, DOCTOR, jnp.where(is_seer, SEER, VILLAGER)))

    def _allowed(self, state: State, place: jax.Array) -> jax.Array:
        """Mask of the seats that `place`, which acts, may choose, counted from it."""
        is_werewolf, is_doctor, _ = self._roles(state, place)
        at_night = state.phase == NIGHT
        barred = jnp.where(at_night & is_werewolf, state.werewolves, jnp.where(at_night & is_doctor, 0, 1 << place))
        return _rotate(state.alive & ~barred, place, self.num_agents)

    def _first_in_turn(self, state: State, phase: jax.Array, to_act: jax.Array) -> jax.Array:
        """Those of `to_act` who come before the others."""
        doctors, seers = to_act & state.doctors, to_act & state.seers
        first = jnp.where(doctors != 0, doctors, jnp.where(seers != 0, seers, to_act))
        return jnp.where(phase == NIGHT, first, to_act)

    def _tie_word(self, state: State) -> jax.Array:
        """uint32, random."""
        # `step` brings a new key each time; where only `step_env` plays, the time step tells the draws apart.
        return jax.random.key_data(jax.random.fold_in(state.key, 2 + state.timestep))[0]

    def _inspected(self, state: State, place: jax.Array) -> jax.Array:
        """Mask of the places that the player at `place` inspected, 0 if he is no seer."""
        seer = jax.lax.population_count(state.seers & (1 << place) - 1)
        masks = (jnp.where(seer == index, mask, 0) for index, mask in enumerate(state.inspected))
        return jnp.where((state.seers >> place & 1) == 1, sum(masks, jnp.int32(0)), 0)

    def _paper_features(self, state: State, player: jax.Array) -> jax.Array:
        """f32[7 + 6 N]."""
        N = self.num_agents
        place = self._place(state, player)
        is_werewolf, _, is_seer = self._roles(state, place)
        fellows = jnp.where(is_werewolf, state.werewolves & ~(1 << place), 0)
        inspected = self._inspected(state, place)
        unknown = jnp.where(is_seer, ~inspected & (1 << N) - 1, 0)
        seats = np.arange(N)
        findings = 2 * N + FINDINGS * seats
        by_seat = (  # mask of places, features by seat
            (state.alive, seats),
            (fellows, N + seats),
            (inspected & ~state.werewolves, findings),
            (unknown, findings + 1),
            (inspected & state.werewolves, findings + 2),
            (state.accused, (2 + FINDINGS) * N + seats),
        )
        roles, phases = np.arange(len(ROLE_NAMES)), len(ROLE_NAMES) + np.arange(len(PHASE_NAMES))
        masks = [(1 << self._role(state, place), roles), (1 << state.phase, phases)]
        first = phases[-1] + 1
        return _mask_features(masks + [(_rotate(mask, place, N), first + features) for mask, features in by_seat])


def _wrap(number: jax.Array, size: int) -> jax.Array:
    """`number` modulo `size`, for numbers from 0 to 2 * `size` - 1."""
    return number - jnp.where(number >= size, size, 0)


def _rotate(mask: jax.Array, by: jax.Array, size: int) -> jax.Array:
    """Of a mask of `size` bits, that whose bit i is its bit (i + `by`) % `size`, for `by` from 0 to `size`."""
    return (mask >> by | mask << size - by) & (1 << size) - 1


def _lowest(mask: jax.Array) -> jax.Array:
    """Index of the lowest bit of a mask that is not 0."""
    return jax.lax.population_count(~mask & (mask - 1))


def _is_in(mask: jax.Array, size: int) -> jax.Array:
    """bool[size], the bits of `mask`."""
    return (mask >> jnp.arange(size, dtype=jnp.int32) & 1) == 1


def _mask(bits: jax.Array) -> jax.Array:
    """Mask of the bits in bool[size]."""
    return jnp.where(bits, 1 << jnp.arange(bits.shape[0], dtype=jnp.int32), 0).sum(dtype=jnp.int32)


def _random_bit(mask: jax.Array, size: int, word: jax.Array) -> jax.Array:
    """One of the bits of `mask`, each equally often up to 2^-28 for a random uint32 `word`; at most 16 of them."""
    skipped = (word >> 4) * jax.lax.population_count(mask).astype(jnp.uint32) >> 28
    for number in range(size - 1):
        mask = jnp.where(number < skipped, mask & (mask - 1), mask)
    return mask & -mask


def _mask_features(masks: Sequence[tuple[jax.Array, np.ndarray]]) -> jax.Array:
    """f32 features out of bits: of a pair (mask, features) the feature `features[i]` is bit i of the mask.

    The bits of several masks share a word, and all features are written in one pass: a CPU is then much faster.
    """
    word_of, bit_of = np.zeros((2, sum(len(features) for _, features in masks)), np.uint32)
    words, num_bits = [], 32
    for mask, features in masks:
        if num_bits + len(features) > 32:
            words.append(jnp.uint32(0))
            num_bits = 0
        words[-1] = words[-1] | mask.astype(jnp.uint32) << num_bits
        word_of[features], bit_of[features] = len(words) - 1, num_bits + np.arange(len(features))
        num_bits += len(features)
    word, *others = _materialize(*words)
    for number, other in enumerate(others, 1):
        word = jnp.where(word_of == number, other, word)
    return (word >> bit_of & 1).astype(jnp.float32)


# repeated block: materialize (tests/test_repeated_blocks.py)
def _materialize(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays as they are, each computed once.

    XLA on a CPU builds whatever computes a value into every operation that uses the value, and so computes it again in
    each, unless a reduction lies between; an `optimization_barrier` does not stop it.
    """

    def materialize(array):
        first = (jnp.arange(2) == 0).reshape(2, *[1] * array.ndim)
        if array.dtype == jnp.bool_:
            return (first & array[None]).any(0)
        return jnp.where(first, array[None], 0).sum(0, dtype=array.dtype)

    return tuple(materialize(array) for array in arrays)


# repeated block: draw_number (tests/test_repeated_blocks.py)
def _draw_number(high: jax.Array, low: jax.Array, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """floor(size * u) as int32, size <= 65536, for the binary fraction u = 0.[high][low], and the two uint32 words of
    the fraction that is left over, which is as random as u but for log2(size) bits."""
    size = np.uint32(size)

    def high_word(word):
        """The upper 32 bits of word * size."""
        return ((word >> 16) * size + ((word & np.uint32(0xFFFF)) * size >> 16)) >> 16

    carry = high_word(low)
    rest = high * size + carry
    return (high_word(high) + (rest < carry)).astype(jnp.int32), rest, low * size


# repeated block: child_keys (tests/test_repeated_blocks.py)
def _child_keys(key: jax.Array, num: int) -> list[jax.Array]:
    """The keys of `jax.random.split(key, num)`, made one by one: with 1,000 games a CPU is then up to 40 % faster."""
    if jax.random.key_impl(key) == "unsafe_rbg":  # folding the same number in twice would bring back the first key
        return list(jax.random.split(key, num))
    return [jax.random.fold_in(key, child) for child in range(num)]


# repeated block: auto_reset (tests/test_repeated_blocks.py)
def _auto_reset(env, state: State, action: jax.Array):
    """`env.step_env`, and where the episode ended, the first state of a new one; no observation.

    The key is split once; the state that ends and the one that begins carry the same new key.
    """
    key, deal_key = _child_keys(state.key, 2)
    final_state, _, reward, absorbing, done, info = env.step_env(state.replace(key=key), action)
    state = _select_state(done, env._deal(key, deal_key), final_state)
    return state, reward, absorbing, done, info


# repeated block: select_state (tests/test_repeated_blocks.py)
def _select_state(condition: jax.Array, state: State, other: State) -> State:
    """`state` where `condition`, else `other`, field by field. Both carry the same key, which is not selected."""
    selected = jax.tree.map(
        lambda new, old: jnp.where(condition, new, old), state.replace(key=None), other.replace(key=None)
    )
    return selected.replace(key=other.key)


# repeated block: one_hot (tests/test_repeated_blocks.py)
def _one_hot(index: jax.Array, size: int) -> jax.Array:
    """f32[size], 1 at `index`."""
    return (jnp.arange(size, dtype=jnp.int32) == index).astype(jnp.float32)
