"""One choice: what is shown, counted and kept of a turn's deltas."""

from collections.abc import Sequence

from services.frontend.core.replies.choice import Choice, Piece, TextRules
from services.frontend.core.turns.turns import Deliver
from shared.ids import TurnId
from shared.wire.messages import FinishReason, TokenLogprobs

EOS = 256


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode("utf-8", "replace")


def deliver(choice: Choice, text: str, finish: FinishReason | None = None) -> Piece:
    tokens = [*text.encode(), *([EOS] if finish == "stop" else [])]
    logprobs = [TokenLogprobs(token=token, logprob=-1.0) for token in tokens]
    return choice.on_deliver(Deliver(TurnId("t"), tokens, finish, logprobs))


def test_the_end_token_counts_but_is_neither_shown_nor_kept() -> None:
    choice = Choice(0, decode, [], TextRules())
    deliver(choice, "hi")
    end = deliver(choice, "!", "stop")
    assert (end.text, end.finish, end.cancel) == ("!", "stop", False)
    assert choice.num_completion_tokens == 4
    assert choice.kept() == ([*b"hi!"], "hi!")


def test_logprobs_come_with_their_text_and_stop_before_the_cut() -> None:
    choice = Choice(0, decode, [], TextRules(stop=["STOP"]))
    assert [start for _, start in deliver(choice, "aS").logprobs] == [0]
    assert deliver(choice, "TO").logprobs == []
    end = deliver(choice, "Pz")
    assert (end.text, end.finish, end.cancel, end.logprobs) == ("", "stop", True, [])
    assert choice.num_completion_tokens == 5
    assert choice.kept() == ([*b"a"], "a")
    assert choice.stop_string == "STOP"


def test_the_first_stop_string_is_the_one() -> None:
    for stop, keep in ((["zz", "c", "bc"], False), (["bc"], True)):
        choice = Choice(0, decode, [], TextRules(stop=stop, keep_stop=keep))
        assert choice.stop_string is None
        deliver(choice, "abcd", "stop")
        assert choice.stop_string == "bc"
    choice = Choice(0, decode, [], TextRules(stop=["STOP"]))
    deliver(choice, "aST", "stop")
    assert choice.stop_string is None


def test_held_text_comes_out_at_the_end() -> None:
    choice = Choice(0, decode, [], TextRules(stop=["STOP"]))
    assert deliver(choice, "aST").text == "a"
    end = deliver(choice, "", "length")
    assert (end.text, end.finish) == ("ST", "length")
    assert len(end.logprobs) == 2


def test_a_stop_token_of_the_request_can_be_shown() -> None:
    rules = TextRules(keep_stop=True, stop_token_ids=[33])
    choice = Choice(0, decode, [], rules)
    end = choice.on_deliver(Deliver(TurnId("t"), [*b"a!"], "stop"))
    assert (end.text, end.finish) == ("a!", "stop")


def test_a_discarded_reply_ends_at_once_with_the_prompts_logprobs() -> None:
    choice = Choice(0, decode, [], TextRules(discard=True))
    entries = [TokenLogprobs(token=1, logprob=None)]
    piece = choice.on_deliver(Deliver(TurnId("t"), [97], None, None, entries, 5))
    assert (piece.text, piece.finish, piece.cancel) == ("", "length", True)
    assert choice.prompt_logprobs == entries
    assert choice.num_completion_tokens == 0
    assert choice.cached_tokens == 5


def test_pieces_carry_every_generated_token() -> None:
    choice = Choice(0, decode, [], TextRules(stop=["STOP"]))
    assert list(deliver(choice, "aST").tokens) == [*b"aST"], "held back or not"
    assert list(deliver(choice, "OPz").tokens) == [*b"OP"], "nothing beyond the stop"
    choice = Choice(0, decode, [], TextRules())
    assert list(deliver(choice, "a", "stop").tokens) == [97, EOS]
