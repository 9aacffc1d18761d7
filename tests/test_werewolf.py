"""Werewolf: step by step against the plain-Python reference, ties, ends, what each player may know."""

from collections import Counter
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference_werewolf import Werewolf as Reference
from scipy import stats

from envs.werewolf import Werewolf

ROLES = ("villager", "werewolf", "doctor", "seer")
VILLAGER, WEREWOLF, DOCTOR, SEER = range(4)
NIGHT, ACCUSE, VOTE = range(3)
NUM_STREAMS, CHUNK_STEPS = 32, 64  # games played side by side, each followed by the next; steps recorded at once
CASES = {  # (num_agents, num_werewolves, num_doctors, num_seers): episodes in the suite, episodes in the full run
    (6, 2, 1, 1): (250, 40_000),
    (4, 1, 1, 1): (0, 10_000),
    (4, 1, 0, 0): (0, 5_000),
    (5, 1, 0, 2): (100, 5_000),
    (5, 2, 0, 1): (0, 5_000),
    (5, 1, 4, 0): (0, 5_000),
    (7, 2, 2, 2): (100, 10_000),
    (7, 3, 0, 4): (0, 5_000),
    (8, 1, 2, 1): (0, 5_000),
    (9, 4, 3, 2): (0, 4_000),
    (10, 3, 1, 1): (0, 3_000),
    (12, 5, 2, 2): (50, 2_000),
    (12, 1, 0, 0): (0, 1_000),
}
# Programs run a few times only here: nearly all the time goes into compiling, and half of that into optimising.
jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def on_bits(mask, size):
    return [bool(int(mask) >> bit & 1) for bit in range(size)]


def roles_of(env, state):
    """Role names by seat of one state."""
    N, start = env.num_agents, int(state.start_seat)
    masks = [on_bits(mask, N) for mask in (state.werewolves, state.doctors, state.seers)]
    by_place = ["villager" if not any(held) else ROLES[1 + held.index(True)] for held in zip(*masks, strict=True)]
    assert sum(map(sum, masks)) == N - by_place.count("villager")
    return [by_place[(seat - start) % N] for seat in range(N)]


def first_state(env, roles, start_seat=0):
    """The first state with these roles (first letters) by seat."""
    N = env.num_agents
    by_place = [roles[(start_seat + place) % N] for place in range(N)]
    masks = {letter: sum(1 << place for place in range(N) if by_place[place] == letter) for letter in "wds"}
    first = next(by_place.index(letter) for letter in "dsw" if letter in by_place)
    return any_first_state(env).replace(
        current_player=jnp.int32((start_seat + first) % N),
        start_seat=jnp.int32(start_seat),
        werewolves=jnp.int32(masks["w"]),
        doctors=jnp.int32(masks["d"]),
        seers=jnp.int32(masks["s"]),
        to_act=jnp.int32(sum(masks.values())),
    )


@cache
def jitted(env):
    return jit(env.step_env), jit(env.legal_actions)


@cache
def any_first_state(env):
    return env.reset(jax.random.key(0))[0]


def choose(env, state, *seats):
    """Each seat named in turn by the player to act (None: nobody). Returns what the last `step_env` returns."""
    step, legal_actions = jitted(env)
    for seat in seats:
        action = env.num_agents if seat is None else (seat - int(state.current_player)) % env.num_agents
        assert legal_actions(state)[action]
        state, obs, reward, absorbing, done, info = step(state, jnp.int32(action))
    return state, obs, reward, absorbing, done, info


def alive_of(env, state):
    living = np.asarray(env.observe(state, 0))[7 : 7 + env.num_agents]
    return [seat for seat in range(env.num_agents) if living[seat]]


# Against the reference


class Step(NamedTuple):
    """What one step shows, [T, E, ...] where recorded; the final state is the one before a new game begins."""

    legal: np.ndarray  # before the step
    player: np.ndarray  # before the step
    action: np.ndarray
    first: tuple  # start seat and masks before the step
    seen: np.ndarray  # [..., N, O] bool, `observe` of the final state by all players
    final_legal: np.ndarray
    final_player: np.ndarray
    reward: np.ndarray
    absorbing: np.ndarray
    done: np.ndarray
    illegal: np.ndarray
    winner: np.ndarray
    phase: np.ndarray
    timestep: np.ndarray
    returns: np.ndarray
    first_seen: np.ndarray  # [..., N, O] bool, `observe` before the step


@partial(jit, static_argnums=0)
def play_chunk(env, states, keys):
    """Random play. In odd streams most choices fall on the lowest seat: that brings votes together, and saves."""
    N = env.num_agents
    seen_by_all = jax.vmap(jax.vmap(env.observe, (None, 0)), (0, None))
    is_odd = jnp.arange(NUM_STREAMS) % 2 == 1

    def turn(states, key):
        score_key, herd_key, wild_key, number_key = jax.random.split(key, 4)
        legal = jax.vmap(env.legal_actions)(states)
        seats = (states.current_player[:, None] + jnp.arange(N)[None]) % N
        herds = is_odd & (jax.random.uniform(herd_key, (NUM_STREAMS,)) < 3 / 4)
        scores = jax.random.uniform(score_key, legal.shape)
        lowest = jnp.concatenate([1 + N - seats, jnp.ones((NUM_STREAMS, 1))], axis=1)
        actions = jnp.where(legal, jnp.where(herds[:, None], lowest, scores), -1.0).argmax(-1)
        wild = jax.random.randint(number_key, actions.shape, -2, N + 3)
        actions = jnp.where(jax.random.uniform(wild_key, actions.shape) < 1 / 16, wild, actions)
        nexts, _, reward, absorbing, done, info = jax.vmap(env.step)(states, actions)
        final = info["final_state"]
        players = jnp.arange(N)
        return nexts, Step(
            legal,
            states.current_player,
            actions,
            (states.start_seat, states.werewolves, states.doctors, states.seers),
            seen_by_all(final, players) == 1,
            jax.vmap(env.legal_actions)(final),
            final.current_player,
            reward,
            absorbing,
            done,
            info["illegal_action"],
            info["winner"],
            info["phase"],
            info["timestep"],
            info["returns"],
            seen_by_all(states, players) == 1,
        )

    return jax.lax.scan(turn, states, keys)


class Fate:
    """Breaks the reference's ties as the game did: whoever died, or somebody protected where nobody did."""

    def __init__(self, reference, died, counts):
        self.reference, self.died, self.counts = reference, died, counts

    def __call__(self, candidates):
        self.counts["tie"] += 1
        if self.died:
            assert self.died[0] in candidates
            return self.died[0]
        self.counts["tie, saved"] += 1
        saved = [seat for seat in candidates if seat in self.reference.protected]
        assert self.reference.phase() == NIGHT
        assert saved
        return saved[0]


def show(reference):
    return np.array([reference.observation(player) for player in range(reference.num_agents)])


def replay(env, steps, stream, reference, counts):
    """Plays one stream of `steps` in the reference and compares all there is; returns the reference."""
    N = env.num_agents
    for t in range(len(steps.done)):
        at = t, stream
        if reference is None or reference.done:
            reference = Reference(N, env.num_werewolves, env.num_doctors, env.num_seers)
            start, *masks = (int(field[at]) for field in steps.first)
            by_place = [1 * (masks[0] >> p & 1) + 2 * (masks[1] >> p & 1) + 3 * (masks[2] >> p & 1) for p in range(N)]
            numbers = Counter(by_place)
            assert [numbers[role] for role in (WEREWOLF, DOCTOR, SEER)] == [
                env.num_werewolves,
                env.num_doctors,
                env.num_seers,
            ]
            reference.start([ROLES[by_place[(seat - start) % N]] for seat in range(N)], start)
            np.testing.assert_array_equal(steps.first_seen[at], show(reference))
        assert steps.legal[at].tolist() == reference.legal_actions()
        assert int(steps.player[at]) == reference.current_player
        before, after = (seen[at][0, 7 : 7 + N] for seen in (steps.first_seen, steps.seen))
        died = np.flatnonzero(before & ~after).tolist()
        assert len(died) <= 1
        day_before = reference.phase(), reference.current_player
        outcome = reference.step(int(steps.action[at]), Fate(reference, died, counts))
        rewards, absorbing, done, illegal = outcome
        assert steps.reward[at].tolist() == rewards
        assert steps.absorbing[at].tolist() == [absorbing] * N
        assert (bool(steps.done[at]), bool(steps.illegal[at])) == (done, illegal)
        assert steps.winner[at].tolist() == reference.winner
        assert (int(steps.phase[at]), int(steps.timestep[at])) == (reference.phase(), reference.timestep)
        assert steps.returns[at].tolist() == reference.returns
        assert int(steps.final_player[at]) == reference.current_player
        assert steps.final_legal[at].tolist() == reference.legal_actions()
        np.testing.assert_array_equal(steps.seen[at], show(reference))
        counts["steps"] += 1
        counts["episodes"] += done
        counts["illegal"] += illegal
        counts["saved"] += day_before[0] == NIGHT and reference.phase() == ACCUSE and not died
        if done:
            won = reference.winner[reference.roles.index("werewolf")]
            counts["won by werewolves" if won else "won by humans"] += 1
            counts[f"over in {('the night', '', 'the vote')[reference.phase()]}"] += 1
    return reference


def compare_with_reference(parameters, num_episodes):
    env = Werewolf(*parameters)
    counts = Counter()
    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(sum(parameters)), NUM_STREAMS))
    references, chunk = [None] * NUM_STREAMS, 0
    while counts["episodes"] < num_episodes:
        states, steps = play_chunk(env, states, jax.random.split(jax.random.key(chunk), CHUNK_STEPS))
        steps, chunk = jax.tree.map(np.asarray, steps), chunk + 1
        references = [replay(env, steps, stream, references[stream], counts) for stream in range(NUM_STREAMS)]
    print(f"{parameters}: 0 mismatches; {dict(counts)}")
    assert min(counts["illegal"], counts["won by werewolves"]) > 0
    assert (counts["saved"] > 0) == (env.num_doctors > 0)
    if env.num_agents - 2 * env.num_werewolves > 1:  # else humans hardly ever win
        assert min(counts["won by humans"], counts["tie"]) > 0
    return counts


@pytest.mark.parametrize("parameters", [case for case, (suite, _) in CASES.items() if suite])
def test_random_episodes_equal_the_reference(parameters):
    compare_with_reference(parameters, CASES[parameters][0])


@pytest.mark.full
@pytest.mark.parametrize("parameters", CASES)
def test_100_000_random_episodes_equal_the_reference(parameters):
    compare_with_reference(parameters, CASES[parameters][1])


# Ends


def test_one_werewolf_against_one_villager_after_a_vote_is_over_and_won_by_the_werewolf():
    env = Werewolf(4, 1, 0, 0)
    state = first_state(env, "vwvv")
    state, _, reward, _, done, info = choose(env, state, 2)  # the night: two humans are left
    assert not done
    assert not reward.any()
    assert int(info["phase"]) == ACCUSE
    state, _, reward, absorbing, done, info = choose(env, state, *[None] * 3, 3, 3, 0)
    assert alive_of(env, state) == [0, 1]
    assert done
    assert absorbing.all()
    assert reward.tolist() == [-10, 10, -10, -10]
    assert info["winner"].tolist() == [False, True, False, False]
    assert int(info["phase"]) == VOTE


def test_one_werewolf_against_one_villager_after_a_night_is_over_and_no_vote_is_held():
    env = Werewolf(4, 1, 1, 0)
    state = first_state(env, "dvvw", start_seat=3)
    state, *_, done, info = choose(env, state, 1, 1)  # saved
    assert alive_of(env, state) == [0, 1, 2, 3]
    state, *_, done, info = choose(env, state, *[None] * 4, 2, 2, 2, 1)
    assert alive_of(env, state) == [0, 1, 3]
    assert not done
    state, _, reward, _, done, info = choose(env, state, 0, 1)
    assert alive_of(env, state) == [0, 3]
    assert done
    assert reward.tolist() == [-10, -10, -10, 10]
    assert int(info["phase"]) == NIGHT
    assert not jitted(env)[1](state).any()


def test_werewolves_win_as_soon_as_they_are_as_many_as_the_humans():
    env = Werewolf(5, 2, 0, 0)
    state, _, reward, _, done, _ = choose(env, first_state(env, "vwvwv"), 0, 0)
    assert done
    assert reward.tolist() == [-10, 10, -10, 10, -10]
    env = Werewolf(6, 2, 0, 0)  # three humans after the night, two after the vote
    state, *_, done, _ = choose(env, first_state(env, "vwvwvv"), 0, 0)
    assert not done
    state, _, reward, _, done, _ = choose(env, state, *[None] * 5, 2, 3, 2, 2, 2)
    assert done
    assert reward.tolist() == [-10, 10, -10, 10, -10, -10]


def test_humans_win_with_the_last_werewolf_and_the_dead_win_with_their_team():
    env = Werewolf(4, 1, 0, 0)
    state, *_, done, _ = choose(env, first_state(env, "vwvv"), 2)
    state, _, reward, _, done, info = choose(env, state, None, 0, None, 1, 3, 1)
    assert alive_of(env, state) == [0, 3]
    assert done
    assert reward.tolist() == [10, -10, 10, 10]
    assert info["winner"].tolist() == [True, False, True, True]
    again, _, reward, *_ = jitted(env)[0](state, jnp.int32(1))
    assert not reward.any()
    assert int(again.current_player) == 3


def test_a_vote_is_held_when_nobody_was_accused_and_the_accused_stay_until_it_is_over():
    env = Werewolf()
    state = first_state(env, "dvvwws")
    state, *_ = choose(env, state, 1, 3, 1, 1)  # saved
    state, *_, info = choose(env, state, *[None] * 6)
    assert int(info["phase"]) == VOTE
    state, *_ = choose(env, state, 2, 2, 3, 2, 2, 2)
    assert alive_of(env, state) == [0, 1, 3, 4, 5]
    state, *_ = choose(env, state, 1, 4, 1, 1, 4, None, 4)
    accused = np.asarray(env.observe(state, 1))[-6:]
    assert int(state.phase) == ACCUSE
    assert accused.tolist() == [0, 0, 0, 1, 0, 0]  # seat 4, three to the left
    state, *_ = choose(env, state, 0, None)
    assert int(state.phase) == VOTE
    accused = np.asarray(env.observe(state, 1))[-6:]
    assert accused.tolist() == [0, 0, 0, 1, 0, 1]
    state, *_ = choose(env, state, *[3] * 2, 0, 3, 3)
    assert not np.asarray(env.observe(state, 1))[-6:].any()


def longest(env):
    """Most nights and most actions of a game, by trying all ways in which roles can be lost."""

    @cache
    def search(werewolves, doctors, seers, villagers):
        humans = doctors + seers + villagers
        if werewolves == 0 or werewolves >= humans:
            return 0, 0
        counts = (werewolves, doctors, seers, villagers)
        without = [tuple(n - (i == lost) for i, n in enumerate(counts)) for lost in range(4) if counts[lost]]
        nights = [after for after in without if after[0] == werewolves] + [counts] * (doctors > 0)
        best = (0, 0)
        for after in nights:
            living = sum(after)
            is_over = after[0] >= living - after[0]
            votes = [tuple(n - (i == lost) for i, n in enumerate(after)) for lost in range(4) if after[lost]]
            later = [(0, 0)] if is_over else [search(*rest) for rest in votes]
            for days, actions in later:
                day = werewolves + doctors + seers + (0 if is_over else 2 * living)
                best = (max(best[0], days + 1), max(best[1], actions + day))
        return best

    special = env.num_werewolves + env.num_doctors + env.num_seers
    return search(env.num_werewolves, env.num_doctors, env.num_seers, env.num_agents - special)


def test_no_game_lasts_longer_than_the_days_there_are_slots_for():
    for N, W, D, S in product(range(4, 13), range(1, 6), range(3), range(3)):
        if 2 * W < N and W + D + S <= N:
            env = Werewolf(N, W, D, S)
            days, _ = longest(env)
            assert days <= env.max_days
            if D or W == 1:
                assert days == env.max_days
    assert longest(Werewolf())[1] == 50


def test_the_longest_default_game_has_50_actions_on_4_days():
    env = Werewolf()
    state = first_state(env, "wwdsvv", start_seat=2)
    order = [2, 3, 4, 5, 0, 1]
    for out in (4, 1, 5, 0):  # nobody dies at night
        living = alive_of(env, state)
        human = next(seat for seat in living if seat > 1)
        night = [human, 0] + [human] * sum(seat < 2 for seat in living)
        votes = [out if seat != out else next(other for other in living if other != out) for seat in order]
        votes = [vote for seat, vote in zip(order, votes, strict=True) if seat in living]
        state, _, reward, _, done, info = choose(env, state, *night, *[None] * len(living), *votes)
        assert bool(done) == (out == 0)
    assert int(info["timestep"]) == 50
    assert int(state.day) == 3
    assert reward.tolist() == [-10, -10, 10, 10, 10, 10]


# Night


@pytest.mark.parametrize("start_seat", range(5))
def test_at_night_mask_and_action_are_relative_and_no_werewolf_attacks_a_werewolf(start_seat):
    env = Werewolf(5, 2, 0, 0)
    step, legal_actions = jitted(env)
    roles = "vwvvw"
    for turn in range(5):  # the werewolves sit everywhere
        turned = roles[turn:] + roles[:turn]
        state = first_state(env, turned, start_seat)
        wolves = [seat for seat in range(5) if turned[seat] == "w"]
        players = []
        for _ in range(2):
            player = int(state.current_player)
            players.append(player)
            expected = [turned[(player + r) % 5] != "w" for r in range(5)]
            assert legal_actions(state).tolist() == [*expected, False]
            state, *_ = step(state, jnp.int32(expected.index(True)))
        assert sorted(players) == wolves
        assert players == sorted(wolves, key=lambda seat: (seat - start_seat) % 5)
        for victim in set(range(5)) - set(wolves):
            state, *_ = choose(env, first_state(env, turned, start_seat), victim, victim)
            assert alive_of(env, state) == [seat for seat in range(5) if seat != victim]
        for attacked in wolves:  # an illegal choice goes to the first human to the left instead
            state = first_state(env, turned, start_seat)
            for _ in range(2):
                player = int(state.current_player)
                first_human = next(seat for r in range(5) if turned[seat := (player + r) % 5] == "v")
                state, *_, info = step(state, jnp.int32((attacked - player) % 5))
                assert info["illegal_action"]
            assert not set(wolves) - set(alive_of(env, state))
            assert first_human in range(5)


def test_at_night_doctors_act_first_then_seers_then_werewolves_each_from_the_start_seat():
    env = Werewolf(9, 2, 2, 2)
    state = first_state(env, "wdsvvwdsv", start_seat=4)
    step, legal_actions = jitted(env)
    order = []
    while int(state.phase) == NIGHT:
        order.append(int(state.current_player))
        own = bool(legal_actions(state)[0])
        assert own == (order[-1] in (1, 6))  # only doctors may choose themselves
        state, *_ = step(state, jnp.int32(-1))
    assert order == [6, 1, 7, 2, 5, 0]


def test_a_doctor_saves_whom_he_protects_himself_included_and_again():
    env = Werewolf(6, 1, 1, 0)
    state = first_state(env, "dvvvvw")
    for out in (1, 2, 3):
        living = alive_of(env, state)
        state, *_ = choose(env, state, 0, 0)  # he protects himself and is attacked
        assert alive_of(env, state) == living
        votes = [out if seat != out else 0 for seat in living]
        state, *_ = choose(env, state, *[None] * len(living), *votes)
    state, *_ = choose(env, state, 4, 0)
    assert 0 not in alive_of(env, state)


def test_a_seer_sees_at_once_whether_it_is_a_werewolf_and_nobody_else_does():
    env = Werewolf(6, 2, 0, 2)
    state = first_state(env, "svwvsw", start_seat=1)
    unknown = [0, 1, 0]

    def findings(state, player):
        return np.asarray(env.observe(state, player))[7 + 12 : 7 + 30].reshape(6, 3).tolist()

    state, *_ = choose(env, state, 5)  # seat 4
    assert int(state.current_player) == 0
    assert findings(state, 4) == [unknown, [0, 0, 1], *[unknown] * 4]
    assert findings(state, 0) == [unknown] * 6
    state, *_ = choose(env, state, 4)  # the other seer is no werewolf
    assert findings(state, 0) == [*[unknown] * 4, [1, 0, 0], unknown]
    for player in (1, 2, 3, 5):
        assert not np.any(findings(state, player))
    before = findings(state, 0), findings(state, 4)
    state, *_ = choose(env, state, 4, 4)  # the dead keep what they found
    assert 4 not in alive_of(env, state)
    assert (findings(state, 0), findings(state, 4)) == before


# Chance


def deaths(env, state, actions, num_keys):
    """Who is dead after `actions`, for many keys: counts by seat, and the number of dead in each."""
    states = jax.vmap(lambda key: state.replace(key=key))(jax.random.split(jax.random.key(7), num_keys))
    step = jit(jax.vmap(env.step_env, (0, None)))
    for action in actions:
        states, *_ = step(states, jnp.int32(action))
    living = np.asarray(jit(jax.vmap(env.observe, (0, None)))(states, 0))[:, 7 : 7 + env.num_agents]
    return np.bincount(living.argmin(1), minlength=env.num_agents), (living == 0).sum(1)


def test_of_a_five_way_tie_one_is_out_at_random_and_never_all():
    env = Werewolf(5, 1, 1, 0)
    state, *_ = choose(env, first_state(env, "vdvwv", start_seat=2), 0, 0, *[None] * 5)
    counts, num_dead = deaths(env, state, [1] * 5, 5_000)  # everybody votes for the next to the left
    assert (num_dead == 1).all()
    assert (counts > 0).all()
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("start_seat", [0, 5])
def test_ties_of_two_and_three_in_the_vote_are_uniform(start_seat):
    env = Werewolf(6, 1, 1, 0)
    state, *_ = choose(env, first_state(env, "vdvwvv", start_seat), 0, 0, *[None] * 6)
    order = [(start_seat + place) % 6 for place in range(6)]
    for votes, tied in (
        ({0: 1, 1: 0, 2: 1, 3: 0, 4: 2, 5: 3}, [0, 1]),
        ({0: 5, 1: 2, 2: 3, 3: 5, 4: 2, 5: 3}, [2, 3, 5]),
    ):
        counts, num_dead = deaths(env, state, [(votes[seat] - seat) % 6 for seat in order], 3_000)
        assert (num_dead == 1).all()
        assert np.flatnonzero(counts).tolist() == tied
        assert stats.chisquare(counts[tied]).pvalue > 1e-3


def test_a_tie_of_werewolves_is_drawn_before_the_doctor_saves():
    env = Werewolf(8, 3, 1, 0)
    state = first_state(env, "wvdvwvvw")
    actions = [(1 - 2) % 8, (1 - 0) % 8, (3 - 4) % 8, (5 - 7) % 8]  # the doctor saves 1; 1, 3 and 5 are named
    counts, num_dead = deaths(env, state, actions, 3_000)
    saved = int((num_dead == 0).sum())
    assert counts[0] == saved  # none is dead: argmin gives 0
    assert np.flatnonzero(counts).tolist() == [0, 3, 5]
    assert stats.chisquare([saved, counts[3], counts[5]]).pvalue > 1e-3


def test_ties_of_one_game_are_drawn_independently_also_by_step_env_alone():
    env = Werewolf(7, 1, 1, 0)
    state, *_ = choose(env, first_state(env, "vdvvvvw"), 0, 0, *[None] * 7)
    states = jax.vmap(lambda key: state.replace(key=key))(jax.random.split(jax.random.key(3), 4_000))
    step = jit(jax.vmap(env.step_env, (0, None)))

    def vote(states, votes):
        for seat, other in votes:
            states, *_ = step(states, jnp.int32((other - seat) % 7))
        return states

    first = [(0, 2), (1, 2), (2, 3), (3, 2), (4, 3), (5, 3), (6, 0)]
    after = vote(states, first)
    is_out = (np.asarray(after.alive) >> 2 & 1) == 0
    assert stats.binomtest(int(is_out.sum()), len(is_out)).pvalue > 1e-3
    # the same tie again, with the same keys, at another time step
    again = vote(states.replace(timestep=states.timestep + 1), first)
    is_out_again = (np.asarray(again.alive) >> 2 & 1) == 0
    assert stats.binomtest(int((is_out == is_out_again).sum()), len(is_out)).pvalue > 1e-3


def test_roles_and_start_seats_are_dealt_equally_often_at_reset_and_after_a_game():
    env = Werewolf()
    num_deals = 6 * 180

    def count(states):
        rows = np.stack([states.start_seat, states.werewolves, states.doctors, states.seers], axis=1)
        deals, counts = np.unique(rows, axis=0, return_counts=True)
        assert len(deals) == num_deals
        for _, werewolves, doctors, seers in deals.tolist():
            assert [mask.bit_count() for mask in (werewolves, doctors, seers)] == [2, 1, 1]
            assert not werewolves & doctors | (werewolves | doctors) & seers
            assert (werewolves | doctors | seers) < 64
        assert stats.chisquare(counts).pvalue > 1e-3

    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), 30_000))
    count(states)
    last = states.replace(  # the first werewolf in turn decides the game
        phase=jnp.full_like(states.phase, VOTE),
        alive=jnp.full_like(states.alive, 7),
        to_act=jnp.ones_like(states.phase),
    )
    last = last.replace(
        current_player=last.start_seat,
        werewolves=jnp.full_like(last.phase, 1),
        doctors=jnp.full_like(last.phase, 2),
        seers=jnp.full_like(last.phase, 4),
    )
    fresh, *_, done, _ = jit(jax.vmap(env.step))(last, jnp.ones(30_000, jnp.int32))
    assert done.all()
    count(fresh)


@pytest.mark.parametrize("parameters", [(4, 1, 0, 0), (7, 2, 3, 2), (12, 5, 4, 3)])
def test_every_seat_gets_each_role_equally_often(parameters):
    env = Werewolf(*parameters)
    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 12_000))
    assert stats.chisquare(np.bincount(states.start_seat, minlength=env.num_agents)).pvalue > 1e-3
    for masks, number in zip((states.werewolves, states.doctors, states.seers), parameters[1:], strict=True):
        held = np.asarray(masks)[:, None] >> np.arange(env.num_agents)[None] & 1
        assert (held.sum(1) == number).all()
        if 0 < number < env.num_agents:
            expected = number / env.num_agents * 12_000
            variance = expected * (1 - number / env.num_agents) * env.num_agents / (env.num_agents - 1)
            # the counts sum to a constant: N - 1 degrees of freedom
            statistic = ((held.sum(0) - expected) ** 2).sum() / variance
            assert stats.chi2.sf(statistic, env.num_agents - 1) > 1e-3


# What players know


def decode(env, info, player):
    """What an `information_state` says: own night choices and public events as the reference keeps them."""
    N, L = env.num_agents, env.max_days
    paper, start, days = info[: 7 + 6 * N], info[7 + 6 * N : 7 + 7 * N], info[7 + 7 * N :].reshape(L, -1)
    assert start.sum() == 1
    order = [(player + int(start.argmax()) + place) % N for place in range(N)]
    public, own = [], []

    def names(row):
        """The absolute seat that a row names; [] if none."""
        assert row.sum() <= 1
        return [(player + int(r)) % N for r in np.flatnonzero(row)]

    num_out = int(days[:, -N:].sum())
    has_ended_by_vote = paper[6] == 1 and (num_out == L or not days[num_out, 2 * N : 2 * N + N * (N + 1)].any())
    is_past_night = paper[4] == 0 and not has_ended_by_vote
    for day, row in enumerate(days):
        night, killed, accused, votes, out = np.split(row, np.cumsum([N, N, N * (N + 1), N * N]))
        own += [(day, seat) for seat in names(night)]
        if killed.any() or day < num_out or (day == num_out and is_past_night):
            public.append(("night", day, (names(killed) or [None])[0]))
        for name, table in (("accuse", accused.reshape(N, N + 1)), ("vote", votes.reshape(N, N))):
            for seat in order:
                seen = table[(seat - player) % N]
                assert seen.sum() <= 1
                if seen.any():
                    nobody = len(seen) > N and seen[N]
                    public.append((name, day, seat, None if nobody else names(seen[:N])[0]))
        public += [("out", day, seat) for seat in names(out)]
    named = sum(event[0] != "night" or event[2] is not None for event in public)
    assert info[7 + 7 * N :].sum() == named + len(own), "nothing else is in it"
    return public, own


@pytest.mark.parametrize("parameters", [(6, 2, 1, 1), (7, 2, 0, 2), (12, 3, 1, 1)])
def test_information_state_tells_all_that_was_public_and_ones_own_choices_and_no_more(parameters):
    env = Werewolf(*parameters, observation="information_state")
    N = env.num_agents
    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(5), NUM_STREAMS))
    _, steps = play_chunk(env, states, jax.random.split(jax.random.key(6), CHUNK_STEPS))
    steps = jax.tree.map(np.asarray, steps)
    num_games = 0
    for stream in range(48 // N):
        reference = None
        for t in range(CHUNK_STEPS):
            at = t, stream
            if reference is None or reference.done:
                num_games += 1
                start, *masks = (int(field[at]) for field in steps.first)
                by_place = [sum(role * (mask >> p & 1) for role, mask in enumerate(masks, 1)) for p in range(N)]
                reference = Reference(*parameters)
                reference.start([ROLES[by_place[(seat - start) % N]] for seat in range(N)], start)
            before, after = (seen[at][0, 7 : 7 + N] for seen in (steps.first_seen, steps.seen))
            died = np.flatnonzero(before & ~after).tolist()
            reference.step(int(steps.action[at]), Fate(reference, died, Counter()))
            for player in range(N):
                info = steps.seen[at][player].astype(int)
                assert info.shape == env.obs_shape
                public, own = decode(env, info, player)
                assert public == reference.public_history
                assert own == reference.own_actions[player]
                assert info[: 7 + 6 * N].tolist() == reference.observation(player)
                assert info[7 + 6 * N :][:N].argmax() == (reference.start_seat - player) % N
    assert num_games >= 48 // N


def test_nothing_seen_depends_on_roles_and_night_choices_of_others_in_10_000_states():
    from test_env_contract import GAMES  # the same deal of what is hidden as there

    env = Werewolf(7, 2, 1, 2)
    redeal = GAMES["werewolf"].redeal

    @jit
    def look(states, players, keys):
        def both(state, player, key):
            other = redeal(env, state, player, key)

            def seen(state):
                own = state.current_player == player
                legal = env.legal_actions(state) & own
                return env.observe(state, player), env.information_state(state, player), legal

            roles = jnp.stack([state.werewolves, state.doctors, state.seers])
            others = jnp.stack([other.werewolves, other.doctors, other.seers])
            differs = (roles != others).any(), (state.history != other.history).any()
            return seen(state), seen(other), differs

        return jax.vmap(both)(states, players, keys)

    states, _ = jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(8), 500))
    step = jit(jax.vmap(env.step))
    legal_actions = jit(jax.vmap(env.legal_actions))
    num_states, num_different = 0, np.zeros(2, int)
    for t in range(20):
        keys = jax.random.split(jax.random.key(t), 502)
        players = jax.random.randint(keys[0], (500,), 0, 7)
        seen, seen_of_others, differs = look(states, players, keys[2:])
        for left, right in zip(seen, seen_of_others, strict=True):
            np.testing.assert_array_equal(left, right)
        num_states += 500
        num_different += np.array([np.sum(part) for part in differs])
        scores = jax.random.uniform(keys[1], (500, 8))
        for _ in range(3):
            actions = jnp.where(legal_actions(states), scores, -1.0).argmax(-1)
            states, *_ = step(states, actions)
    assert num_states == 10_000
    assert (num_different > 9_000).all()


# Parameters


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_agents": 3}, "num_agents=3: an integer from 4 to 12"),
        ({"num_agents": 13}, "num_agents=13: an integer from 4 to 12"),
        ({"num_agents": 6.0}, r"num_agents=6\.0"),
        ({"num_agents": 4}, "num_werewolves=2: an integer from 1 to 1 .*more humans than werewolves"),
        ({"num_werewolves": 3}, "num_werewolves=3: an integer from 1 to 2"),
        ({"num_werewolves": 0}, "num_werewolves=0: an integer from 1 to 2"),
        ({"num_werewolves": True}, "num_werewolves=True"),
        ({"num_doctors": 5}, "num_doctors=5: an integer from 0 to 4"),
        ({"num_doctors": 4}, "num_seers=1: an integer from 0 to 0"),
        ({"num_seers": -1}, "num_seers=-1: an integer from 0 to 3"),
        ({"observation": "all"}, "observation='all': 'paper' or 'information_state'"),
    ],
)
def test_parameters_out_of_range_are_refused_with_what_is_allowed(parameters, message):
    with pytest.raises(ValueError, match=message):
        Werewolf(**parameters)


def test_sizes_are_those_of_the_paper_and_teams_are_never_equal():
    for N in range(4, 13):
        env = Werewolf(N, 1)
        assert (env.num_actions, env.obs_shape) == (N + 1, (7 + 6 * N,))
        assert env.zero_sum is False
    with pytest.raises(ValueError, match=r"1\.08e\+03 deals"):
        Werewolf().deals()


def test_render_hides_at_night_who_acts_and_shows_what_a_seer_found():
    env = Werewolf()
    state = first_state(env, "dvvwws")
    state, *_ = choose(env, state, 1, 3)
    assert int(state.current_player) == 3
    assert "seat 3: not a werewolf" not in env.render(state, 5)
    assert "seat 3: werewolf" in env.render(state, 5)
    assert "seat 5: seer" in env.render(state, 5)
    assert "to act" in env.render(state, 3)
    assert "seat 4: werewolf" in env.render(state, 3)
    assert "to act" in env.render(state)
    for player in (0, 1, 2, 4, 5):
        assert "to act" not in env.render(state, player)
    assert "werewolf" not in env.render(state, 0)
    assert "5 > 3" not in env.render(state, 0)
    assert "5 > 3" in env.render(state)
    state, *_ = choose(env, state, 0, 0, 3)
    assert "0 dies" in env.render(state, 1)
    assert "to act" in env.render(state, 1)
    assert "1 > 3" in env.render(state, 2)
