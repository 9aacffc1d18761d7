"""Werewolf in plain Python, written from the rules and meant to be read beside them.

Nothing is drawn at random here. The chance of the game is handed in: `Werewolf.start` is told the roles and the start
seat, `Werewolf.step` is given a function that breaks ties. Seats are absolute inside; actions, masks and observations
count them from the player concerned, who is 0.
"""

VILLAGER, WEREWOLF, DOCTOR, SEER = "villager", "werewolf", "doctor", "seer"
ROLES = [VILLAGER, WEREWOLF, DOCTOR, SEER]
NIGHT, ACCUSE, VOTE = 0, 1, 2
NOT_WEREWOLF, UNKNOWN, IS_WEREWOLF = 0, 1, 2
STAKE = 10.0


class Werewolf:
    """One game. Call `start`, then `step` until `done`."""

    def __init__(self, num_agents=6, num_werewolves=2, num_doctors=1, num_seers=1):
        self.num_agents = num_agents
        self.num_werewolves = num_werewolves
        self.num_doctors = num_doctors
        self.num_seers = num_seers
        self.num_actions = num_agents + 1
        self.pass_action = num_agents

    def start(self, roles, start_seat):
        """Begin a game.

        roles: for each seat "villager", "werewolf", "doctor" or "seer", in the numbers the game was made with.
        start_seat: the seat from which the order of acting is counted, by night and by day, the whole game through.
        """
        N = self.num_agents
        self.roles = list(roles)
        self.start_seat = start_seat
        self.alive = [True] * N
        self.findings = [[UNKNOWN] * N for _ in range(N)]  # findings[seer][seat]
        self.day = 0
        # ("night", day, who died or None), ("accuse", day, who, whom or None), ("vote", day, who, whom) and
        # ("out", day, who died), all seats absolute, in the order in which they became known
        self.public_history = []
        self.own_actions = [[] for _ in range(N)]  # own_actions[seat]: (day, seat named) of every night

        self.timestep = 0
        self.absorbing = False
        self.done = False
        self.winner = [False] * N
        self.rewards = [0.0] * N
        self.returns = [0.0] * N
        self._begin_night()

    def phase(self):
        """0 night, 1 accuse, 2 vote. A finished game stays in the phase in which it was decided."""
        return self.day_phase

    def legal_actions(self):
        """The mask of the player to act; all False once the game is finished."""
        legal = [False] * self.num_actions
        if self.done:
            return legal
        me = self.current_player
        for r in range(self.num_agents):
            legal[r] = self._may_name(me, self._seat(me, r))
        if self.day_phase == ACCUSE:
            legal[self.pass_action] = True
        return legal

    def _seat(self, player, r):
        """The seat that is r places to the left of the player."""
        return (player + r) % self.num_agents

    def _may_name(self, me, other):
        if not self.alive[other]:
            return False
        if self.day_phase == NIGHT and self.roles[me] == DOCTOR:
            return True
        if self.day_phase == NIGHT and self.roles[me] == WEREWOLF:
            return self.roles[other] != WEREWOLF
        return other != me

    def step(self, action, choose):
        """Play one action; returns (rewards, absorbing, done, whether the action was illegal and replaced).

        choose: called where several seats are tied for the most names or votes, with the list of those seats in
            rising order; returns the one of them that fate picks.
        """
        self.rewards = [0.0] * self.num_agents
        if self.done:
            return list(self.rewards), self.absorbing, self.done, False

        legal = self.legal_actions()
        illegal = not (0 <= action < self.num_actions and legal[action])
        if illegal:
            action = self.pass_action if self.day_phase == ACCUSE else legal.index(True)

        self.timestep += 1
        me = self.current_player
        named = None if action == self.pass_action else self._seat(me, action)
        if self.day_phase == NIGHT:
            self._act_at_night(me, named)
        elif self.day_phase == ACCUSE:
            if named is not None:
                self.accused[named] = True
            self.public_history.append(("accuse", self.day, me, named))
        else:
            self.votes.append(named)
            self.public_history.append(("vote", self.day, me, named))

        self.still_to_act.pop(0)
        if not self.still_to_act:
            self._end_phase(choose)
        if not self.done:
            self.current_player = self.still_to_act[0]
        for seat in range(self.num_agents):
            self.returns[seat] += self.rewards[seat]
        return list(self.rewards), self.absorbing, self.done, illegal

    def _act_at_night(self, me, named):
        self.own_actions[me].append((self.day, named))
        if self.roles[me] == DOCTOR:
            self.protected.append(named)
        elif self.roles[me] == SEER:
            self.findings[me][named] = IS_WEREWOLF if self.roles[named] == WEREWOLF else NOT_WEREWOLF
        else:
            self.attacked.append(named)

    def _living_in_order(self):
        """The living seats, from the start seat on."""
        seats = [self._seat(self.start_seat, r) for r in range(self.num_agents)]
        return [seat for seat in seats if self.alive[seat]]

    def _begin_night(self):
        self.day_phase = NIGHT
        self.protected = []
        self.attacked = []
        self.votes = []
        self.accused = [False] * self.num_agents
        self.still_to_act = []
        for role in (DOCTOR, SEER, WEREWOLF):
            self.still_to_act += [seat for seat in self._living_in_order() if self.roles[seat] == role]
        self.current_player = self.still_to_act[0]

    def _end_phase(self, choose):
        """Everybody who acts in this phase has acted."""
        if self.day_phase == NIGHT:
            victim = self._most_named(self.attacked, choose)
            if victim in self.protected:
                victim = None
            self.public_history.append(("night", self.day, victim))
            if victim is not None:
                self._die(victim)
            if not self.done:
                self.day_phase = ACCUSE
                self.still_to_act = self._living_in_order()
        elif self.day_phase == ACCUSE:
            self.day_phase = VOTE
            self.still_to_act = self._living_in_order()
        else:
            victim = self._most_named(self.votes, choose)
            self.public_history.append(("out", self.day, victim))
            self.accused = [False] * self.num_agents
            self._die(victim)
            if not self.done:
                self.day += 1
                self._begin_night()

    def _most_named(self, names, choose):
        most = max(names.count(seat) for seat in names)
        candidates = [seat for seat in range(self.num_agents) if names.count(seat) == most]
        return candidates[0] if len(candidates) == 1 else choose(candidates)

    def _die(self, victim):
        self.alive[victim] = False
        living_roles = [self.roles[seat] for seat in range(self.num_agents) if self.alive[seat]]
        werewolves = living_roles.count(WEREWOLF)
        humans = len(living_roles) - werewolves
        if werewolves == 0:
            self._finish(werewolves_win=False)
        elif werewolves >= humans:
            self._finish(werewolves_win=True)

    def _finish(self, werewolves_win):
        self.absorbing = True
        self.done = True
        for seat in range(self.num_agents):
            self.winner[seat] = (self.roles[seat] == WEREWOLF) == werewolves_win
            self.rewards[seat] = STAKE if self.winner[seat] else -STAKE

    def observation(self, player):
        """Own role, phase, alive, fellow werewolves, own findings as a seer, accused this day."""
        seats = [self._seat(player, r) for r in range(self.num_agents)]
        own_role = [self.roles[player] == role for role in ROLES]
        phase = [self.day_phase == p for p in (NIGHT, ACCUSE, VOTE)]
        alive = [self.alive[seat] for seat in seats]
        fellows = [self.roles[player] == WEREWOLF and self.roles[seat] == WEREWOLF and seat != player for seat in seats]
        findings = []
        for seat in seats:
            for finding in (NOT_WEREWOLF, UNKNOWN, IS_WEREWOLF):
                findings.append(self.roles[player] == SEER and self.findings[player][seat] == finding)
        accused = [self.accused[seat] for seat in seats]
        return [1.0 if flag else 0.0 for flag in own_role + phase + alive + fellows + findings + accused]
