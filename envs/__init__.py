"""Games by name: `make("kuhn_poker")`; `available_envs()` lists the names."""

import dataclasses
import difflib
import importlib

import numpy as np

_GAMES = {
    "kuhn_poker": "KuhnPoker",
    "leduc_holdem": "LeducHoldem",
    "texas_limit_holdem": "TexasLimitHoldem",
    "texas_nolimit_holdem": "TexasNolimitHoldem",
    "five_card_draw": "FiveCardDraw",
    "seven_card_stud": "SevenCardStud",
    "goofspiel": "Goofspiel",
    "bluff": "Bluff",
    "werewolf": "Werewolf",
    "kemps": "Kemps",
    "liars_dice": "LiarsDice",
}


def available_envs() -> tuple[str, ...]:
    """Names that `make` takes."""
    return tuple(_GAMES)


def make(name: str, /, **kwargs):
    """Builds a game.

    Args:
        name: one of `available_envs()`.
        **kwargs: parameters of the game, `observation` among them ("paper" or "information_state"). NumPy numbers and
            arrays are taken as the plain ones.

    Raises:
        ValueError: an unknown name or parameter, or a value out of range.
    """
    if not isinstance(name, str) or name not in _GAMES:
        close = difflib.get_close_matches(str(name).lower(), _GAMES, n=1, cutoff=0.4)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown environment {name!r}: {hint}available are {', '.join(_GAMES)}")
    game = getattr(importlib.import_module(f"envs.{name}"), _GAMES[name])
    fields = [field.name for field in dataclasses.fields(game)]
    for parameter in kwargs:
        if parameter not in fields:
            raise ValueError(f"{name} has no parameter {parameter!r}: its parameters are {', '.join(fields)}")
    plain = {
        name: value.tolist() if isinstance(value, np.generic | np.ndarray) else value for name, value in kwargs.items()
    }
    return game(**plain)
