"""What is to be generated, and the turns that this is for schedulers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.frontend.core.limits.quotas import Quotas, kv_expiry_s, priority_within
from services.frontend.core.replies.forms import Held
from services.frontend.core.turns.turns import NewTurn
from services.frontend.models.registry import ServedModel
from services.frontend.prepare.fit import max_new_tokens
from services.frontend.prepare.requests import GenerationRequest, Owner
from services.frontend.prepare.sampling import SEEDS, sampling_params
from services.frontend.prepare.tokenize import TokenizedPrompt
from shared.ids import ModelId, new_id
from shared.locations import known_places
from shared.wire.messages import SamplingParams
from shared.wire.shards import expected_as, turn_id_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """For each prompt `n` choices, choice numbers in that order.

    Attributes:
        samplings: one a prompt (their room for output differs).
        show_special: decode special tokens too.
        kv_expiry_s: how long its KV outlives its last use; 0: as every tier has it.
    """

    request: GenerationRequest
    model: ServedModel
    prompts: Sequence[TokenizedPrompt]
    samplings: Sequence[SamplingParams]
    priority: int = 0
    kv_expiry_s: int = 0
    show_special: bool = False

    @property
    def owner(self) -> Owner:
        return self.request.owner

    @property
    def asked_model(self) -> ModelId:
        """The model as the request calls it."""
        asked = self.request.model
        return self.model.card.model_id if asked is None else ModelId(asked)

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.request.n

    def prompt_of(self, index: int) -> TokenizedPrompt:
        """The prompt of choice `index`."""
        return self.prompts[index // self.request.n]

    def new_turn(self, index: int, trace: str) -> NewTurn:
        """The turn of choice `index`."""
        asked, owner, model = self.request, self.owner, self.model
        prompt, sampling = self.prompt_of(index), self.samplings[index // asked.n]
        assert sampling.seed is not None
        if index:
            sampling = replace(sampling, seed=(sampling.seed + index) % SEEDS)
        agent = asked.turn.agent if index == 0 else None
        is_new = not (known_places(prompt.kv_at) or prompt.num_history)
        expected = expected_as(owner.session_id, agent, is_new=is_new)
        return NewTurn(
            turn_id=turn_id_in(new_id("turn"), owner.tenant, expected),
            model_id=model.card.model_id,
            prompt=prompt.tokens,
            sampling=sampling,
            tenant=owner.tenant,
            session_id=owner.session_id,
            priority=self.priority,
            request_id=asked.origin.request_id,
            cache_salt=owner.cache_salt,
            slo_ttft_ms=asked.origin.slo_ttft_ms,
            slo_tpot_ms=asked.origin.slo_tpot_ms,
            adapter=model.adapter,
            claim=prompt.claim,
            kv_at=prompt.kv_at,
            num_history=prompt.num_history,
            images=prompt.images,
            agent=agent,
            kv_expiry_s=self.kv_expiry_s,
            trace=trace,
        )


def plan_of(
    request: GenerationRequest,
    model: ServedModel,
    prompts: Sequence[TokenizedPrompt],
    held: Held,
    quotas: Quotas,
    *,
    default: int,
    show_special: bool = False,
) -> Plan:
    """What is to be generated.

    Args:
        held: what the reply is held to.
        default: length of a reply if the request gives none; 0: as long as fits.
        show_special: special tokens are read in it.

    Raises:
        InvalidRequest: it does not fit the model, or a token id is outside the vocabulary.
    """
    limits, asked = quotas.of(request.owner.tenant), request.turn
    wishes = [wish for wish in asked.wishes if wish.is_own]

    def sampling(prompt: TokenizedPrompt) -> SamplingParams:
        num = max_new_tokens(
            request.max_tokens,
            default,
            num_prompt=len(prompt.tokens),
            max_model_len=model.card.max_model_len,
        )
        wish = request.sampling
        if num < wish.min_tokens <= (request.max_tokens or 0):  # there is room for no more
            wish = replace(wish, min_tokens=num)
        return sampling_params(wish, model, max_tokens=num, held=held)

    return Plan(
        request=request,
        model=model,
        prompts=prompts,
        samplings=list(map(sampling, prompts)),
        priority=priority_within(limits.priority, asked.priority, default=0),
        kv_expiry_s=kv_expiry_s(
            limits,
            asked.kv_expiry_s,
            retained_s=max((wish.duration_s for wish in wishes), default=0.0),
            is_released=any(wish.lets_go for wish in wishes),
        ),
        show_special=show_special or request.show_special,
    )
