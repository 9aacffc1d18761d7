"""Trees of small games, built by stepping the game itself: `tree = build_game_tree(make("leduc_holdem"))`.

All chance is in the deals that `env.deals()` lists, so a node of the tree is a deal and the actions played in it. Where
the players act at once, they are asked one after the other, seat 0 first, and nobody sees what the others chose.

An information set is the player's own sequence of what it saw (`information_state` where the game has one, else
`observe`) and did at its own decisions. This is perfect recall whatever `observation=` the game was made with.

A sequence is what a player has done so far: an information set and the action taken there, or nothing yet. Solvers
work on the sequence form (Koller, Megiddo and von Stengel 1996, "Efficient computation of equilibria for extensive
two-person games"): a strategy is one number per sequence, and of the path to a payoff only every player's sequence
counts, so deals that no player can tell apart (suits in Leduc) fall together.

Letters: N agents, A actions, O observation, D deals, M nodes, I information sets, S = N + I A sequences, E payoffs.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

CHUNK = 1024  # nodes stepped in one call; one shape for all levels, so that there is one compilation
SUM_WIDTH = 8  # numbers that one row of a sum table adds up


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class GameTree:
    """A game as arrays (NumPy, on the host). It is a pytree: pass it to a jitted function, or close over it.

    Information sets are ordered by depth, the number of the player's own earlier decisions: those of depth k are
    `depth_starts[k]` to `depth_starts[k + 1]`. Sequence p is player p's empty one, sequence N + A i + a is action a at
    information set i. Nodes are ordered by level, terminal ones included; the first D are the deals.
    """

    num_agents: int = field(metadata={"static": True})
    num_actions: int = field(metadata={"static": True})
    depth_starts: tuple[int, ...] = field(metadata={"static": True})

    # Information sets.
    observations: np.ndarray  # [I, *O] float32, what `env.observe` gives the player to act
    legal_actions: np.ndarray  # [I, A] bool, True = legal
    infoset_player: np.ndarray  # [I] int32, who acts
    infoset_parent: np.ndarray  # [I] int32, the player's sequence that leads here
    child_sums: tuple[tuple[np.ndarray, ...], ...]  # for each depth: `segment_sum` tables to the sequences before it

    # Payoffs.
    payoff_sequences: np.ndarray  # [E, N] int32, the sequence of every player
    payoffs: np.ndarray  # [E, N] float64, reward x probability of the deal
    payoff_sums: tuple[np.ndarray, ...]  # `segment_sum` tables from [E * N] to the S sequences

    # Nodes.
    deal_probabilities: np.ndarray  # [D] float64
    node_infoset: np.ndarray  # [M] int32, -1 where the game is over
    node_children: np.ndarray  # [M, A] int32, -1 where the action is illegal
    node_rewards: np.ndarray  # [M, N] float32, paid on the way into the node

    @property
    def num_infosets(self) -> int:
        return self.legal_actions.shape[0]

    @property
    def num_sequences(self) -> int:
        return self.num_agents + self.num_infosets * self.num_actions

    @property
    def num_nodes(self) -> int:
        return self.node_infoset.shape[0]


def build_game_tree(env, max_nodes: int = 3_000_000) -> GameTree:
    """Builds the tree of a game.

    Args:
        env: a game whose deals can be listed.
        max_nodes: largest tree to build, in nodes.

    Returns:
        The tree; `observations` are in the encoding that `env` was made with.

    Raises:
        ValueError: the game cannot list its deals, or has more than `max_nodes` nodes; or it breaks the environment
            contract (probabilities that do not sum to 1, observations that know more than the player).
    """
    game = env if env.api == "aec" else _InTurns(env)
    try:
        states, probabilities = game.deals()
    except ValueError as error:
        raise ValueError(f"{error}; scripts/exploit.py bounds the exploitability of games too large to list") from None
    probabilities = np.asarray(probabilities, np.float64)
    if probabilities.min() < 0 or abs(probabilities.sum() - 1) > 1e-5:
        raise ValueError(f"{env}: the probabilities of deals() are negative or sum to {probabilities.sum()}, not 1")
    probabilities = probabilities / probabilities.sum()  # float32 ones are off by 1e-8

    states = jax.device_get(states.replace(key=None))
    expand = _make_expand(game)
    _check_size(env, expand, states, len(probabilities), max_nodes)
    return _build(env, expand, states, probabilities, max_nodes)


def uniform_policy(tree: GameTree) -> jax.Array:
    """The policy [I, A] that plays every legal action equally often, in JAX's default float type."""
    legal = jnp.asarray(tree.legal_actions, float)
    return legal / legal.sum(-1, keepdims=True)


def segment_sum(values: jax.Array, tables: tuple[np.ndarray, ...]) -> jax.Array:
    """Sums groups of `values` [n] by the tables of `segment_sum_tables`; [num_segments].

    It only gathers. A scatter-add does the same, but on a GPU in an order that changes from run to run.
    """
    for table in tables:
        values = jnp.concatenate([values, jnp.zeros(1, values.dtype)])[table].sum(-1)
    return values


def segment_sum_tables(segments: np.ndarray, num_segments: int) -> tuple[np.ndarray, ...]:
    """Index tables with which `segment_sum` adds up all values of one segment.

    Args:
        segments: int[n], the segment of every value.
        num_segments: how many segments there are; a segment without values sums to 0.

    Returns:
        Tables [rows, SUM_WIDTH] that add up SUM_WIDTH values a row until every segment is one row, and a last one
        [num_segments, 1] that puts them in order. An index one past the end stands for a zero.
    """
    tables = []
    used, segments = np.unique(segments, return_inverse=True)
    while True:
        counts = np.bincount(segments, minlength=len(used))
        num_rows = -(-counts // SUM_WIDTH)
        order = np.argsort(segments, kind="stable")
        rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
        first_row = np.repeat(np.cumsum(num_rows) - num_rows, counts)
        table = np.full((num_rows.sum(), SUM_WIDTH), len(segments), np.int32)
        table[first_row + rank // SUM_WIDTH, rank % SUM_WIDTH] = order
        tables.append(table)
        if len(table) == len(used):
            break
        segments = np.repeat(np.arange(len(used)), num_rows)
    place = np.full((num_segments, 1), len(used), np.int32)
    place[used, 0] = np.arange(len(used))
    return (*tables, place)


@struct.dataclass
class _TurnState:
    """A state of a parallel game in which some players have chosen."""

    key: jax.Array
    current_player: jax.Array  # int32, who is asked
    game: Any  # State, without its key
    chosen: jax.Array  # [N] int32, actions of the players before him


class _InTurns:
    """A parallel game, its players asked one after the other."""

    def __init__(self, env):
        self.env, self.num_actions = env, env.num_actions

    def deals(self) -> tuple[_TurnState, np.ndarray]:
        states, probabilities = self.env.deals()
        D = len(probabilities)
        nothing = jnp.zeros((D, self.env.num_agents), jnp.int32)
        return _TurnState(states.key, nothing[:, 0], states.replace(key=None), nothing), probabilities

    def step_env(self, state: _TurnState, action: jax.Array):
        seats = jnp.arange(self.env.num_agents, dtype=jnp.int32)
        chosen = jnp.where(seats == state.current_player, action, state.chosen)
        is_last = state.current_player == len(seats) - 1
        after, obs, reward, absorbing, done, info = self.env.step_env(self._game(state), chosen)
        game = jax.tree.map(lambda new, old: jnp.where(is_last, new, old), after.replace(key=None), state.game)
        state = state.replace(
            current_player=jnp.where(is_last, 0, state.current_player + 1),
            game=game,
            chosen=jnp.where(is_last, 0, chosen),
        )
        return state, obs, jnp.where(is_last, reward, 0), absorbing & is_last, done & is_last, info

    def legal_actions(self, state: _TurnState) -> jax.Array:
        return self.env.legal_actions(self._game(state))[state.current_player]

    def observe(self, state: _TurnState, player: jax.Array) -> jax.Array:
        return self.env.observe(self._game(state), player)

    def information_state(self, state: _TurnState, player: jax.Array) -> jax.Array:
        return getattr(self.env, "information_state", self.env.observe)(self._game(state), player)

    def _game(self, state: _TurnState):
        return state.game.replace(key=state.key)


class _Level(NamedTuple):
    """Nodes of one level where somebody acts; n nodes, m children that are not terminal."""

    player: np.ndarray  # [n] int32
    legal: np.ndarray  # [n, A] bool
    observation: np.ndarray  # [n, *O] float32
    information: np.ndarray  # [n, ...] float32, what tells information sets apart
    reward: np.ndarray  # [n, A, N] float32
    done: np.ndarray  # [n, A] bool
    children: object  # State, [m, ...], in the order of nodes, then actions


def _make_expand(env) -> Callable[[object], _Level]:
    """Jitted function from states [CHUNK, ...] without their keys to a `_Level` with the children of all actions."""
    information_state = getattr(env, "information_state", env.observe)

    def expand(state) -> _Level:
        state = state.replace(key=jax.random.key(0))  # never drawn from: all chance is in the deal
        player = state.current_player

        def play(action):
            child, _, reward, _, done, _ = env.step_env(state, action)
            return child.replace(key=None), reward, done

        children, reward, done = jax.vmap(play)(jnp.arange(env.num_actions, dtype=jnp.int32))
        legal = env.legal_actions(state)
        observation = env.observe(state, player)
        return _Level(player, legal, observation, information_state(state, player), reward, done, children)

    return jax.jit(jax.vmap(expand))


def _levels(expand, states) -> Iterator[_Level]:
    """The levels of the tree under `states` [n, ...], from the top."""

    def expand_chunk(states, start, size) -> _Level:
        rows = np.minimum(np.arange(start, start + CHUNK), size - 1)
        level = jax.device_get(expand(jax.tree.map(lambda leaf: leaf[rows], states)))
        level = jax.tree.map(lambda leaf: leaf[: size - start], level)
        goes_on = level.legal & ~level.done
        return level._replace(children=jax.tree.map(lambda leaf: leaf[goes_on], level.children))

    while size := len(jax.tree.leaves(states)[0]):
        chunks = [expand_chunk(states, start, size) for start in range(0, size, CHUNK)]
        level = jax.tree.map(lambda *leaves: np.concatenate(leaves), *chunks)
        states = level.children
        yield level


def _check_size(env, expand, states, num_deals: int, max_nodes: int) -> None:
    """Raises where the first deal's tree, times the number of deals, is too large, before time goes into the rest."""
    num_nodes = 1
    for level in _levels(expand, jax.tree.map(lambda leaf: leaf[:1], states)):
        num_nodes += level.legal.sum()
        _check_limit(env, num_nodes * num_deals, num_deals, max_nodes)


def _check_limit(env, num_nodes: int, num_deals: int, max_nodes: int) -> None:
    if num_nodes > max_nodes:
        raise ValueError(
            f"{env} has about {num_nodes:,} nodes or more ({num_deals:,} deals) and max_nodes is {max_nodes:,}: too "
            "large for a game tree; scripts/exploit.py bounds the exploitability of large games"
        )


def _build(env, expand, states, deal_probabilities: np.ndarray, max_nodes: int) -> GameTree:
    N, A, D = env.num_agents, env.num_actions, len(deal_probabilities)

    # Information sets, numbered as they are found; by their own sequence and the bytes of what was seen.
    number_of = {}
    observations = np.zeros((0, *env.obs_shape), np.float32)
    legal_actions = np.zeros((0, A), bool)
    infoset_player = infoset_parent = np.zeros(0, np.int64)

    # Lists with an array for each level.
    payoffs, payoff_sequences = [], []
    acting_nodes, acting_infosets, acting_children = [], [], []
    rewards = [np.zeros((D, N), np.float32)]

    # The nodes of a level where somebody acts.
    nodes = np.arange(D)  # [n]
    probabilities = deal_probabilities  # [n]
    sequences = np.tile(np.arange(N), (D, 1))  # [n, N]
    num_nodes = D  # found so far, terminal ones included
    for level in _levels(expand, states):
        own_sequence = sequences[np.arange(len(nodes)), level.player]
        information = level.information + np.float32(0)  # -0.0 becomes 0.0, whose bytes are others
        keys = zip(own_sequence.tolist(), (row.tobytes() for row in information), strict=True)
        infoset = np.array([number_of.setdefault(key, len(number_of)) for key in keys])

        numbers, first = np.unique(infoset, return_index=True)
        first = first[numbers >= len(legal_actions)]
        observations = np.concatenate([observations, level.observation[first]])
        legal_actions = np.concatenate([legal_actions, level.legal[first]])
        infoset_player = np.concatenate([infoset_player, level.player[first]])
        infoset_parent = np.concatenate([infoset_parent, own_sequence[first]])
        for name, known, seen in (
            ("observe()", observations, level.observation),
            ("legal_actions()", legal_actions, level.legal),
        ):
            if not np.array_equal(known[infoset], seen):
                raise ValueError(f"{env}: {name} differs between states in which the player has seen and done the same")

        parent, action = np.nonzero(level.legal)  # of the children, in their order
        children = np.full(level.legal.shape, -1)
        children[parent, action] = num_nodes + np.arange(len(parent))
        num_nodes += len(parent)
        _check_limit(env, num_nodes, D, max_nodes)
        acting_nodes.append(nodes)
        acting_infosets.append(infoset)
        acting_children.append(children)

        reward = level.reward[parent, action]
        pays = reward.any(-1)
        probabilities, sequences = probabilities[parent], sequences[parent]
        sequences[np.arange(len(parent)), level.player[parent]] = N + infoset[parent] * A + action
        rewards.append(reward)
        payoffs.append(probabilities[pays, None] * reward[pays])
        payoff_sequences.append(sequences[pays])

        goes_on = ~level.done[parent, action]
        nodes = children[parent, action][goes_on]
        probabilities, sequences = probabilities[goes_on], sequences[goes_on]

    # Number the information sets by depth, then player.
    depth = np.zeros(len(infoset_parent), np.int64)
    for i, sequence in enumerate(infoset_parent):  # a parent is found before its children
        depth[i] = 0 if sequence < N else depth[(sequence - N) // A] + 1
    order = np.lexsort((infoset_player, depth))
    new_infoset = np.argsort(order)
    new_sequence = np.concatenate([np.arange(N), (N + new_infoset[:, None] * A + np.arange(A)).ravel()])
    new_sequence = new_sequence.astype(np.int32)

    node_infoset = np.full(num_nodes, -1, np.int32)
    node_children = np.full((num_nodes, A), -1, np.int32)
    nodes = np.concatenate(acting_nodes)
    node_infoset[nodes] = new_infoset[np.concatenate(acting_infosets)]
    node_children[nodes] = np.concatenate(acting_children)

    payoff_sequences = new_sequence[np.concatenate(payoff_sequences)]
    payoffs = np.concatenate(payoffs)
    payoff_sequences, same = np.unique(payoff_sequences, axis=0, return_inverse=True)
    payoffs = np.stack([np.bincount(same, payoffs[:, p], len(payoff_sequences)) for p in range(N)], axis=-1)

    depth, infoset_parent = depth[order], new_sequence[infoset_parent[order]]
    depth_starts = np.searchsorted(depth, np.arange(depth[-1] + 2)).tolist()
    child_sums = []
    first_sequence, num_sequences = 0, N
    for start, end in itertools.pairwise(depth_starts):
        child_sums.append(segment_sum_tables(infoset_parent[start:end] - first_sequence, num_sequences))
        first_sequence, num_sequences = N + start * A, (end - start) * A

    return GameTree(
        num_agents=N,
        num_actions=A,
        depth_starts=tuple(depth_starts),
        observations=observations[order],
        legal_actions=legal_actions[order],
        infoset_player=infoset_player[order].astype(np.int32),
        infoset_parent=infoset_parent,
        child_sums=tuple(child_sums),
        payoff_sequences=payoff_sequences,
        payoffs=payoffs,
        payoff_sums=segment_sum_tables(payoff_sequences.ravel(), N + len(order) * A),
        deal_probabilities=deal_probabilities,
        node_infoset=node_infoset,
        node_children=node_children,
        node_rewards=np.concatenate(rewards),
    )
