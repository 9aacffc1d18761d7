"""Random hands, the same deals and actions, step by step against independent implementations of the same rules."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel
import pytest

import envs

OVER = -1  # in the records: nobody acts any more
OPEN_SPIEL = {  # env: (game, its chance events in order where the opener is its player 0, most actions in a hand)
    "kuhn_poker": ("kuhn_poker", lambda state, opener: [state.cards[opener], state.cards[1 - opener]], 3),
    "leduc_holdem": (
        "leduc_poker",
        lambda state, opener: [state.cards[opener], state.cards[1 - opener], state.public_card],
        8,
    ),
}


@partial(jax.jit, static_argnums=(0, 1, 3, 4))
def play_hands(env, deal_of, key, num_hands, num_steps):
    """Random legal hands. Returns chance events [H, C] and, [H, T, ...], the mover, mask, action, end and rewards.

    Players are counted from the opener, as in OpenSpiel.
    """
    reset_key, action_key = jax.random.split(key)
    states, _ = jax.vmap(env.reset)(jax.random.split(reset_key, num_hands))
    openers = states.first_player

    def turn(states, key):
        legal = jax.vmap(env.legal_actions)(states)  # [H, A]
        live = legal.any(-1)
        actions = jnp.where(legal, jax.random.uniform(key, legal.shape), -1.0).argmax(-1)
        nexts, _, rewards, _, done, _ = jax.vmap(env.step_env)(states, actions)
        record = {
            "player": jnp.where(live, (states.current_player - openers) % 2, OVER),
            "legal": legal,
            "action": jnp.where(live, actions, OVER),
            "done": done,
            "reward": jax.vmap(jnp.roll)(rewards, -openers),
        }
        return nexts, record

    _, records = jax.lax.scan(turn, states, jax.random.split(action_key, num_steps))
    deals = jnp.stack(jax.vmap(deal_of)(states, openers), -1)
    return openers, deals, jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, 1), records)


def replay(game, deal, record):
    """Plays one recorded hand in OpenSpiel and compares every step."""
    state = game.new_initial_state()
    deal = iter(deal)
    total = np.zeros(2)
    for player, legal, action, done, reward in zip(*record, strict=True):
        while state.is_chance_node():
            state.apply_action(next(deal))
        if state.is_terminal():
            assert player == OVER
            assert done
            assert not any(legal)
            assert not any(reward)
            continue
        assert state.current_player() == player
        assert state.legal_actions() == [number for number, is_legal in enumerate(legal) if is_legal]
        state.apply_action(action)
        total += reward
        assert state.is_terminal() == done
        assert state.is_terminal() or not any(reward)
    assert state.is_terminal()
    assert state.returns() == total.tolist()


def compare_with_open_spiel(name, num_hands, seed):
    """Compares random hands, each distinct record once. Returns the numbers of distinct records and of openers."""
    game_name, deal_of, num_steps = OPEN_SPIEL[name]
    openers, deals, records = play_hands(envs.make(name), deal_of, jax.random.key(seed), num_hands, num_steps)
    names = ("player", "legal", "action", "done", "reward")
    columns = [np.asarray(records[field]).reshape(num_hands, num_steps, -1) for field in names]
    widths = np.cumsum([column.shape[-1] for column in columns])[:-1]
    steps = np.concatenate(columns, -1).astype(np.int8)  # [H, T, fields]
    assert all(
        (steps[..., part] == column).all()
        for part, column in zip(np.split(np.arange(steps.shape[-1]), widths), columns, strict=True)
    )  # rewards are whole chips
    hands = np.concatenate([np.asarray(deals, np.int8), steps.reshape(num_hands, -1)], 1)
    hands = np.unique(hands, axis=0)

    game = pyspiel.load_game(game_name)
    num_cards = deals.shape[-1]
    for hand in hands:
        player, legal, action, done, reward = np.split(hand[num_cards:].reshape(num_steps, -1), widths, -1)
        record = (player[:, 0].tolist(), legal.tolist(), action[:, 0].tolist(), done[:, 0].tolist(), reward.tolist())
        replay(game, hand[:num_cards].tolist(), record)
    return len(hands), len(np.unique(openers))


@pytest.mark.parametrize("name", OPEN_SPIEL)
def test_2000_random_hands_are_played_as_in_open_spiel(name):
    num_distinct, num_openers = compare_with_open_spiel(name, 2_000, seed=0)
    assert num_openers == 2
    assert num_distinct >= {"kuhn_poker": 30, "leduc_holdem": 1_000}[name]


@pytest.mark.full
@pytest.mark.parametrize("name", OPEN_SPIEL)
def test_100000_random_hands_are_played_as_in_open_spiel(name):
    num_distinct, num_openers = compare_with_open_spiel(name, 100_000, seed=1)
    assert num_openers == 2
    assert num_distinct >= {"kuhn_poker": 30, "leduc_holdem": 5_600}[name]
