"""Kemps in plain Python, written from the rules and meant to be read beside them.

Nothing is drawn at random here. The chance of the game is handed in: the deal to `Kemps.start`; the order of the swaps,
the cards that replace a swept centre, and which of several declarations counts to `Kemps.step`. A card is an int,
`card // num_suits` its rank and `card % num_suits` its suit. Seats are absolute everywhere but in observations.
"""

CENTRE_SIZE = 4


class Kemps:
    """One game. Call `start`, then `step` until `done`."""

    def __init__(self, num_agents=4, num_ranks=13, num_suits=4, hand_size=4, comm_dim=2, horizon=200):
        self.num_agents = num_agents
        self.num_ranks = num_ranks
        self.num_suits = num_suits
        self.hand_size = hand_size
        self.comm_dim = comm_dim
        self.horizon = horizon
        self.deck_size = num_ranks * num_suits
        # An action is a move and a signal: move * comm_dim + signal. The moves below this one are the swaps.
        self.no_op = num_ranks * num_ranks
        self.kemps = self.no_op + 1
        self.stop_kemps = self.no_op + 2
        self.num_moves = self.no_op + 3
        self.num_actions = self.num_moves * comm_dim

    def start(self, hands, centre):
        """Begin a game.

        hands: the deal, one list of hand_size cards for each seat.
        centre: the four cards that lie open in the middle.
        """
        self.hands = [sorted(hand) for hand in hands]
        self.centre = sorted(centre)
        self.swept = []
        dealt = sum(self.hands, self.centre)
        self.undealt = [card for card in range(self.deck_size) if card not in dealt]
        self.signals = [None] * self.num_agents

        self.timestep = 0
        self.absorbing = False
        self.done = False
        self.winner = [False] * self.num_agents
        self.rewards = [0.0] * self.num_agents
        self.returns = [0.0] * self.num_agents

    def rank(self, card):
        return card // self.num_suits

    def partner(self, seat):
        return (seat + self.num_agents // 2) % self.num_agents

    def team(self, seat):
        return [seat, self.partner(seat)]

    def legal_actions(self, seat):
        """The mask of that seat; all False once the game is finished."""
        legal = []
        for action in range(self.num_actions):
            move = action // self.comm_dim
            if move < self.no_op:
                give, take = move // self.num_ranks, move % self.num_ranks
                held = any(self.rank(card) == give for card in self.hands[seat])
                offered = any(self.rank(card) == take for card in self.centre)
                legal.append(held and offered and not self.done)
            else:
                legal.append(not self.done)
        return legal

    def step(self, actions, order, new_centre, choose):
        """Play one action of every seat; returns (rewards, absorbing, done, for each seat whether it was illegal).

        actions: one action for each seat.
        order: the seats in the order in which their swaps resolve.
        new_centre: called without arguments when the centre is swept; returns the four undealt cards that replace it.
        choose: called where several seats declare at once, with the list of them in rising order; returns the one
            whose declaration counts.
        """
        self.rewards = [0.0] * self.num_agents
        if self.done:
            return list(self.rewards), self.absorbing, self.done, [False] * self.num_agents

        self.timestep += 1
        moves, illegal = [], []
        for seat in range(self.num_agents):
            action = actions[seat]
            is_legal = 0 <= action < self.num_actions and self.legal_actions(seat)[action]
            if not is_legal:
                action = self.no_op * self.comm_dim  # the no-op that signals 0
            illegal.append(not is_legal)
            moves.append(action // self.comm_dim)
            self.signals[seat] = action % self.comm_dim

        declarers = [seat for seat in range(self.num_agents) if moves[seat] in (self.kemps, self.stop_kemps)]
        if declarers:
            caller = declarers[0] if len(declarers) == 1 else choose(declarers)
            self._declare(caller, moves[caller])
        elif all(move == self.no_op for move in moves):
            self._sweep(new_centre)
        else:
            for seat in order:
                if moves[seat] < self.no_op:
                    self._swap(seat, moves[seat] // self.num_ranks, moves[seat] % self.num_ranks)

        if self.timestep >= self.horizon:
            self.done = True
        for seat in range(self.num_agents):
            self.returns[seat] += self.rewards[seat]
        return list(self.rewards), self.absorbing, self.done, illegal

    def _swap(self, seat, give, take):
        offered = [card for card in self.centre if self.rank(card) == take]
        if not offered:
            return  # somebody was faster
        taken = min(offered)
        given = min(card for card in self.hands[seat] if self.rank(card) == give)
        self.hands[seat].remove(given)
        self.centre.remove(taken)
        self.hands[seat] = sorted([*self.hands[seat], taken])
        self.centre = sorted([*self.centre, given])

    def _sweep(self, new_centre):
        if len(self.undealt) < CENTRE_SIZE:  # a draw
            self.absorbing = True
            self.done = True
            return
        self.swept += self.centre
        self.centre = sorted(new_centre())
        self.undealt = [card for card in self.undealt if card not in self.centre]

    def has_four_of_a_kind(self, seat):
        ranks = [self.rank(card) for card in self.hands[seat]]
        return any(ranks.count(rank) >= 4 for rank in ranks)

    def _declare(self, caller, move):
        ours = self.team(caller)
        others = [seat for seat in range(self.num_agents) if seat not in ours]
        if move == self.kemps:
            if self.has_four_of_a_kind(self.partner(caller)):
                self._pay(ours, 1.0)
                self._pay(others, -1.0)
            else:
                self._pay(ours, -1.0)
                self._pay(others, 1.0)
        else:
            caught = [seat for seat in others if any(self.has_four_of_a_kind(mate) for mate in self.team(seat))]
            if caught:
                self._pay(ours, 1.0)
                self._pay(caught, -1.0)
            else:
                self._pay(ours, -1.0)
                self._pay(others, 1.0)
        self.absorbing = True
        self.done = True

    def _pay(self, seats, amount):
        for seat in seats:
            self.rewards[seat] = amount
            self.winner[seat] = amount > 0

    def observation(self, player):
        """The hands by seat, of which only one's own is filled in; the centre; the signals by seat."""
        row = []
        for r in range(self.num_agents):
            for card in range(self.deck_size):
                row.append(1.0 if r == 0 and card in self.hands[player] else 0.0)
        for card in range(self.deck_size):
            row.append(1.0 if card in self.centre else 0.0)
        for r in range(self.num_agents):
            for signal in range(self.comm_dim):
                row.append(1.0 if self.signals[(player + r) % self.num_agents] == signal else 0.0)
        return row
