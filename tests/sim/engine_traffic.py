"""Sessions that make the engine's simulated worlds busy, and the run of such a world."""

from functools import partial
from itertools import count
from typing import TypeVar

from shared.ids import SessionId, TurnId
from shared.messages import FinishReason, SamplingParams
from tests.sim.engine_clients import VOCABULARY, ClientTurn, reference
from tests.sim.engine_world import EngineWorld
from tests.sim.heap import MS

W = TypeVar("W", bound=EngineWorld)


class Traffic:
    """Sessions of several turns each, on shared system prompts, with every kind of trouble."""

    def __init__(self, world: EngineWorld) -> None:
        self.world = world
        self.random = world.random
        self._ids = count()
        self.turns_left: dict[SessionId, int] = {}
        self.forgotten: set[SessionId] = set()
        size = world.core.tokens_max // 3
        self.system_prompts = [self._tokens(self.random.randrange(size)) for _ in range(2)]
        world.on_client_done = self._on_done
        for number in range(self.random.randrange(2, 12)):
            session_id = SessionId(f"s{number}")
            self.turns_left[session_id] = self.random.randrange(1, 7)
            world.sessions[session_id] = list(self.random.choice(self.system_prompts))
            world.after(self.random.randrange(10 * MS), partial(self._ask, session_id))
        if self.random.random() < 0.4:
            world.after(self.random.randrange(20 * MS), self._lose_connection)
        if self.random.random() < 0.3:
            world.after(self.random.randrange(20 * MS), self._lose_blocks)
        if self.random.random() < 0.3:
            for _ in range(10):
                world.after(self.random.randrange(50 * MS), world.kvstore.expire)
        if self.random.random() < 0.5:
            world.after(self.random.randrange(20 * MS), self._forget)

    def _tokens(self, length: int) -> list[int]:
        return [self.random.randrange(1, VOCABULARY) for _ in range(length)]

    def _ask(self, session_id: SessionId) -> None:
        """The session's next turn, on all that was said before."""
        world, rng = self.world, self.random
        if session_id in self.forgotten:
            return
        self.turns_left[session_id] -= 1
        history = world.sessions[session_id]
        if len(history) > world.core.tokens_max * 2 // 3 and rng.random() < 0.8:
            history = world.sessions[session_id] = []
            world.num_kept[session_id] = 0
        prompt = history + self._tokens(rng.randrange(1, 12))
        sampling = SamplingParams(
            max_tokens=rng.randrange(1, 16),
            min_tokens=rng.choice([0, 0, 3]),
            ignore_eos=rng.random() < 0.2,
            stop_token_ids=rng.choice([[], [5]]),
            prompt_logprobs=rng.choice([None, None, None, 0]),
        )
        tokens_max = world.core.tokens_max
        expected: tuple[list[int], FinishReason] = ([], "error")
        if len(prompt) < tokens_max:
            expected = reference(prompt, sampling, tokens_max)
        turn_id = TurnId(f"t{next(self._ids)}")
        client = ClientTurn(turn_id, session_id, prompt, sampling, rng.choice([0, 0, 1]), *expected)
        world.submit(client)
        if rng.random() < 0.1:
            world.after(rng.randrange(5 * MS), lambda: self._cancel(client))
        if rng.random() < 0.1:
            world.after(rng.randrange(5 * MS), lambda: self._replace(client))

    def _on_done(self, client: ClientTurn) -> None:
        """Read the answer, perhaps be seen typing, and ask again."""
        world, rng = self.world, self.random
        session_id = client.session_id
        if session_id in self.forgotten:
            return
        world.sessions[session_id] = client.prompt + client.got
        world.num_kept[session_id] = max(len(world.sessions[session_id]) - 1, 0)
        if rng.random() < 0.6:
            delay_ns = rng.randrange(10 * MS)
            world.after(delay_ns, lambda: world.advise(session_id, rng.choice([1, 2])))
            if rng.random() < 0.2:
                world.after(2 * delay_ns, lambda: world.take_back(session_id))
        if self.turns_left[session_id]:
            world.after(rng.randrange(20 * MS), lambda: self._ask(session_id))

    def _forget(self) -> None:
        """A user asks to be forgotten, while a turn runs if any does, and does not come back."""
        running = sorted({turn.request.session_id or "" for turn in self.world.core.running})
        session_id = SessionId(self.random.choice(running or sorted(self.turns_left)))
        self.forgotten.add(session_id)
        self.world.forget(session_id)

    def _cancel(self, client: ClientTurn) -> None:
        if not client.is_over:
            self.world.cancel(client)

    def _replace(self, client: ClientTurn) -> None:
        """The scheduler places the turn again, here again."""
        if not client.is_over:
            client.attempt += 1
            self.world.submit(client)

    def _lose_connection(self) -> None:
        """For a while, or so shortly that the worker only learns of a new kvstore."""
        self.world.lose_kvstore(is_restart=self.random.random() < 0.5)
        if self.random.random() < 0.7:
            self.world.disconnect()
            self.world.after(self.random.choice([1, 5 * MS]), self.world.connect)
        else:
            self.world.connect()

    def _lose_blocks(self) -> None:
        blocks = list(self.world.kvstore.blocks)
        for key in self.random.sample(blocks, len(blocks) // 2):
            self.world.kvstore.lose(key)


def run_world(world: W, seed: int) -> W:
    """Give a world its traffic and run it to its end; a failure names the seed."""
    Traffic(world)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world
