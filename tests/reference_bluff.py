"""Bluff (Cheat, I Doubt It) in plain Python, written from the rules and meant to be read beside them.

Nothing is drawn at random here. The chance of the game is handed to `Bluff.start`: who holds which ranks, and who
opens. Cards are known by their rank only, 0 to num_ranks - 1, because suits play no part. Seats are absolute inside.
"""

CLAIM, PLAY, CHALLENGE = 0, 1, 2
DO_CHALLENGE, PASS = 0, 1
MAX_CLAIM = 4
WIN_BONUS = 10


class Bluff:
    """One game. Call `start`, then `step` until `done`."""

    def __init__(self, num_agents=3, num_decks=1, num_ranks=13, num_suits=4, horizon=1000, shaped_rewards=True):
        self.num_agents = num_agents
        self.num_ranks = num_ranks
        self.copies = num_decks * num_suits  # how many cards of each rank there are
        self.deck_size = self.copies * num_ranks
        self.num_actions = max(num_ranks, MAX_CLAIM)
        self.horizon = horizon
        self.shaped_rewards = shaped_rewards

    def start(self, hands, first_player):
        """Begin a game.

        hands: the deal, one list of ranks for each seat, all of the same length. The cards of the deck that are in
            no hand are the remainder, which starts the pile.
        first_player: the seat that makes the first claim.
        """
        self.hands = [sorted(hand) for hand in hands]
        self.pile = [rank for rank in range(self.num_ranks) for _ in range(self.copies)]
        for hand in self.hands:
            for rank in hand:
                self.pile.remove(rank)
        self.pile_claims = [0] * self.num_ranks  # for each rank, how many cards of the pile were claimed to be of it

        self.current_player = first_player
        self.base = 0  # the rank that action 0 plays, and that comes first in the observation
        self.rank_is_free = True
        self.turn_phase = CLAIM
        self.claimant = None
        self.claim_size = 0
        self.pledged = []  # the cards of the claim under way, out of the claimant's hand and not yet in the pile

        self.timestep = 0
        self.absorbing = False
        self.done = False
        self.winner = [False] * self.num_agents
        self.rewards = [0.0] * self.num_agents
        self.returns = [0.0] * self.num_agents

    def phase(self):
        """0 claim, 1 play, 2 challenge. A decided game stays in the challenge phase in which it was decided."""
        return self.turn_phase

    def legal_actions(self):
        """The mask of the player to act; all False once the game is finished."""
        legal = [False] * self.num_actions
        if self.done:
            return legal
        hand = self.hands[self.current_player]
        if self.turn_phase == CLAIM:
            for k in range(MAX_CLAIM):
                legal[k] = k + 1 <= len(hand)
        elif self.turn_phase == PLAY:
            for a in range(self.num_ranks):
                legal[a] = (self.base + a) % self.num_ranks in hand
        else:
            legal[DO_CHALLENGE] = True
            legal[PASS] = True
        return legal

    def step(self, action):
        """Play one action; returns (rewards, absorbing, done, whether the action was illegal and replaced)."""
        self.rewards = [0.0] * self.num_agents
        if self.done:
            return list(self.rewards), self.absorbing, self.done, False

        legal = self.legal_actions()
        illegal = not (0 <= action < self.num_actions and legal[action])
        if illegal:
            action = PASS if self.turn_phase == CHALLENGE else legal.index(True)

        self.timestep += 1
        if self.turn_phase == CLAIM:
            self._claim(action)
        elif self.turn_phase == PLAY:
            self._play(action)
        elif action == DO_CHALLENGE:
            self._challenge()
        else:
            self._pass()

        if self.timestep >= self.horizon:
            self.done = True
        for seat in range(self.num_agents):
            self.returns[seat] += self.rewards[seat]
        return list(self.rewards), self.absorbing, self.done, illegal

    def _next_seat(self, seat):
        return (seat + 1) % self.num_agents

    def _claim(self, k):
        """The player says how many cards he is going to play."""
        self.claimant = self.current_player
        self.claim_size = k + 1
        self.turn_phase = PLAY

    def _play(self, a):
        """The player lays one card face down. The last one puts the whole claim on the pile."""
        rank = (self.base + a) % self.num_ranks
        self.hands[self.current_player].remove(rank)
        self.pledged.append(rank)
        if self.rank_is_free:  # the first card of a free claim settles the claim's rank
            self.base = rank
            self.rank_is_free = False
        if len(self.pledged) < self.claim_size:
            return
        self.pile += self.pledged
        self.pile_claims[self.base] += self.claim_size
        self.turn_phase = CHALLENGE
        self.current_player = self._next_seat(self.claimant)

    def _challenge(self):
        """The cards just played are turned up; whoever was wrong takes the pile."""
        challenger = self.current_player
        claim_is_true = all(rank == self.base for rank in self.pledged)
        if claim_is_true:
            right, wrong = self.claimant, challenger
        else:
            right, wrong = challenger, self.claimant
        if self.shaped_rewards:
            self.rewards[right] += 1
            self.rewards[wrong] -= len(self.pile)
        self.hands[wrong] = sorted(self.hands[wrong] + self.pile)
        self.pile = []
        self.pile_claims = [0] * self.num_ranks

        if not self.hands[self.claimant]:
            self._win(self.claimant)
            return
        self.rank_is_free = True  # base stays the rank last claimed
        self._new_turn(right)

    def _pass(self):
        """The player lets the claim stand. Once all the others have, the claimant is rid of his cards."""
        following = self._next_seat(self.current_player)
        if following != self.claimant:
            self.current_player = following
            return
        if self.shaped_rewards:
            self.rewards[self.claimant] += self.claim_size
        if not self.hands[self.claimant]:
            self._win(self.claimant)
            return
        self.base = (self.base + 1) % self.num_ranks
        self._new_turn(self._next_seat(self.claimant))

    def _new_turn(self, seat):
        self.current_player = seat
        self.turn_phase = CLAIM
        self.claimant = None
        self.claim_size = 0
        self.pledged = []

    def _win(self, winner):
        self.absorbing = True
        self.done = True
        self.winner[winner] = True
        if self.shaped_rewards:
            self.rewards[winner] += WIN_BONUS
            return
        for seat in range(self.num_agents):
            self.rewards[seat] += 1.0 if seat == winner else -1 / (self.num_agents - 1)

    def observation(self, player):
        """Pile claims, pile size, own hand, claimant's hand size, claim size, phase."""
        hand_counts = [self.hands[player].count(rank) for rank in range(self.num_ranks)]
        claimant_holds, claim_size = 0, 0
        if self.turn_phase == CHALLENGE:
            claimant_holds, claim_size = len(self.hands[self.claimant]), self.claim_size
        return (
            self._rank_thermometer(self.pile_claims)
            + self._thermometer(len(self.pile))
            + self._rank_thermometer(hand_counts)
            + self._thermometer(claimant_holds)
            + self._thermometer(claim_size)
            + [1.0 if self.turn_phase == phase else 0.0 for phase in (CLAIM, PLAY, CHALLENGE)]
        )

    def _thermometer(self, value):
        """As many ones as `value`, in a row as long as the deck."""
        return [1.0 if position < value else 0.0 for position in range(self.deck_size)]

    def _rank_thermometer(self, counts):
        """For each level, for each rank from base on: are there more cards of the rank than the level?"""
        row = []
        for level in range(self.copies):
            for offset in range(self.num_ranks):
                rank = (self.base + offset) % self.num_ranks
                row.append(1.0 if counts[rank] > level else 0.0)
        return row
