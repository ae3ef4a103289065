"""Requests of which each once broke something, here or elsewhere, by kind.

A kind makes a fresh variant whenever it is asked. The statuses that may answer it are what
docs/api.md says: refused, or taken and kept within bounds.
"""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SERVED, REFUSED, TOO_LARGE = frozenset({200}), frozenset({400}), frozenset({413})
EITHER = SERVED | REFUSED | TOO_LARGE
VOCABULARY = 260  # of the demo model
BODY_BYTES_MAX = 20_000_000
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
NUMBERS = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Poison:
    """Attributes:
    path: of HTTP; over NATS the body says what it is.
    statuses: that may answer it.
    nats: whether it can be sent over NATS too.
    """

    body: bytes
    path: str = CHATS
    statuses: frozenset[int] = REFUSED
    nats: bool = True


Make = Callable[[random.Random, str], Poison]
Fields = Mapping[str, Any]


def chat(model: str, fields: Fields, statuses: frozenset[int] = REFUSED) -> Poison:
    """A chat with fields of a bad day."""
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": model, "messages": messages, "max_tokens": 4} | dict(fields)
    return Poison(json.dumps(body).encode(), CHATS, statuses)


def completion(model: str, fields: Fields, statuses: frozenset[int] = REFUSED) -> Poison:
    """A completion with fields of a bad day."""
    body = {"model": model, "prompt": "hello", "max_tokens": 4} | dict(fields)
    return Poison(json.dumps(body).encode(), COMPLETIONS, statuses)


def written(model: str, name: str, value: str, statuses: frozenset[int] = REFUSED) -> Poison:
    """A chat in which the text `value` stands for a field's value."""
    made = chat(model, {name: "@@"}, statuses)
    return Poison(made.body.replace(b'"@@"', value.encode()), CHATS, statuses)


def _tiny_divisors(rng: random.Random, model: str) -> Poison:
    tiny = rng.choice([1e-40, 1e-320, 5e-324, 1e-300, 1e-8])
    return chat(
        model,
        rng.choice(
            [
                {"temperature": tiny, "top_p": 0.9},
                {"temperature": tiny, "min_p": 1},
                {"repetition_penalty": tiny, "top_k": 5},
                {"top_p": tiny, "temperature": 2},
                {"temperature": tiny, "repetition_penalty": tiny, "logprobs": True},
            ]
        ),
        SERVED,
    )


def _no_numbers(rng: random.Random, model: str) -> Poison:
    return written(
        model, rng.choice(NUMBERS), rng.choice(["NaN", "Infinity", "-Infinity", "1e400", "-1e400"])
    )


def _out_of_range(rng: random.Random, model: str) -> Poison:
    name, values = rng.choice(
        [
            ("temperature", ["-1", "2.0000001", "-5e-324", "1e308"]),
            ("top_p", ["0", "-0.0", "1.0000001", "1e-9999"]),
            ("min_p", ["-1e-9", "1.1"]),
            ("repetition_penalty", ["0", "-1", "10.5"]),
            ("presence_penalty", ["2.1", "-1e300"]),
            ("top_k", ["-2", "2147483648", "1e30"]),
        ]
    )
    return written(model, name, rng.choice(values))


def _bias_spellings(rng: random.Random, model: str) -> Poison:
    keys = [
        "0" * 12 + "99999", "0" * 40 + "1", "0" * 12 + str(2**64), "1" * 5000, " 1", "+1", "-1",
        "1_0", "\u0661", "\uff11", "1.0", "1e1", "0x1", "", str(VOCABULARY), str(2**31), str(2**63),
    ]  # fmt: skip
    return chat(model, {"logit_bias": {rng.choice(keys): 1.0}})


def _bias_many_spellings(rng: random.Random, model: str) -> Poison:
    """100,000 that Python takes for one number."""
    token = str(rng.randrange(VOCABULARY))
    zeros = map("".join, product("0\u0660\uff10", repeat=11))
    return chat(model, {"logit_bias": {zero + token: 1 for zero in islice(zeros, 100_000)}})


def _huge_ids(rng: random.Random, model: str) -> Poison:
    huge = rng.choice([VOCABULARY, 2**31 - 1, 2**31, 2**63, 2**64, 10**40, 10**4000])
    name = rng.choice(["stop_token_ids", "allowed_token_ids"])
    if huge < 10**100:
        return chat(model, {name: [1, huge]})
    return written(model, name, f"[1, 1{'0' * 5000}]")


def _template(rng: random.Random, model: str) -> Poison:
    text = rng.choice([LOOPS, "{{ 1/0 }}", "{{ 'a' * 10**10 }}", "{% include '/etc/passwd' %}"])
    return chat(model, {"chat_template_kwargs": {"chat_template": text}})


def _template_library(rng: random.Random, model: str) -> Poison:
    name, value = rng.choice(
        [
            ("tools", [{"type": "function"}]), ("documents", [{"text": LOOPS}]),
            ("continue_final_message", True), ("tokenize", True), ("return_dict", True),
            ("return_tensors", "pt"), ("return_assistant_tokens_mask", True),
            ("tokenizer_kwargs", {"x": 1}), ("conversation", []), ("max_length", 1),
            ("truncation", True), ("padding", True), ("add_generation_prompt", 7),
        ]
    )  # fmt: skip
    return chat(model, {"chat_template_kwargs": {name: value}})


def _template_names(rng: random.Random, model: str) -> Poison:
    """Names that no template reads, and that Python or Jinja know."""
    names = ["self", "loop", "range", "cycler", "__class__", "messages", "raise_exception", "x" * 9]
    value: Any = rng.choice([LOOPS, {"a": {"b": [1] * 9999}}, None, 10**30])
    return chat(model, {"chat_template_kwargs": {rng.choice(names): value}})


def _template_in_text(rng: random.Random, model: str) -> Poison:
    text = rng.choice([LOOPS, "{{ 1/0 }}", "{%", "<|im_end|>" * 50, "{{ messages }}"])
    return chat(model, {"messages": [{"role": "user", "content": text}]}, SERVED)


def _long_text(rng: random.Random, model: str) -> Poison:
    text = rng.choice(["long ", "\U0001f98a", "a", "{{ "])
    content = (text * 2_000_000)[:2_000_000]
    if len(content.encode()) > 7_000_000:
        content = content[:1_000_000]
    if rng.random() < 0.5:
        return completion(model, {"prompt": content})
    return chat(model, {"messages": [{"role": "user", "content": content}]})


def _long_text_cut(rng: random.Random, model: str) -> Poison:
    """All of it would have to be tokenized, if it were, to keep the end."""
    return completion(model, {"prompt": "ab " * 600_000, "truncate_prompt_tokens": 9}, EITHER)


def _tokenize_long(rng: random.Random, model: str) -> Poison:
    body: dict[str, Any] = {"model": model, "prompt": "x" * 2_000_000, "return_token_strs": True}
    path = "/tokenize"
    if rng.random() < 0.5:
        body, path = {"model": model, "tokens": [65] * 2_000_000}, "/detokenize"
    return Poison(json.dumps(body).encode(), path, EITHER, nats=False)


def _many_messages(rng: random.Random, model: str) -> Poison:
    num = rng.choice([65_000, 65_536, 65_537])
    return chat(model, {"messages": [{"role": "user", "content": "hi"}] * num})


def _deep(rng: random.Random, model: str) -> Poison:
    num, name = rng.choice([200, 5000, 100_000]), rng.choice(["messages", "stop", "logit_bias"])
    opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
    middle = "" if opening == "[" else "1"
    return written(model, name, opening * num + middle + closing * num)


def _wrong_utf8(rng: random.Random, model: str) -> Poison:
    body = chat(model, {}).body
    wrong = rng.choice([
        b"\xff\xfe", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\xf0\x9f",
        b"\\ud800", b"\\udfff\\ud800", b"\\u12", b"\x00", b"\\x41",
    ])  # fmt: skip
    return Poison(body.replace(b"hello", wrong), CHATS, REFUSED)


def _many_choices(rng: random.Random, model: str) -> Poison:
    if rng.random() < 0.3:
        return completion(model, {"prompt": ["a"] * 1024, "n": 2})
    return written(model, "n", rng.choice(["129", "0", "-1", "1e18", "9" * 400, "2147483648"]))


def _echo_logprobs(rng: random.Random, model: str) -> Poison:
    text = "".join(rng.choices("abcdefgh ", k=4500))
    return completion(
        model, {"prompt": text, "echo": True, "logprobs": 20, "max_tokens": 1}, EITHER
    )


def _stops(rng: random.Random, model: str) -> Poison:
    return chat(
        model,
        {
            "stop": rng.choice(
                [["x"] * 17, ["x" * 513], [""], "", ["a", 1], {"a": 1}, ["x"] * 100_000]
            )
        },
    )


def _near_stops(rng: random.Random, model: str) -> Poison:
    stops = ["a" * (512 - n) + "b" for n in range(1, 17)]
    return chat(model, {"stop": stops, "max_tokens": 60, "ignore_eos": True,
                        "allowed_token_ids": [97]}, SERVED)  # fmt: skip


def _huge_lengths(rng: random.Random, model: str) -> Poison:
    name = rng.choice(["seed", "max_tokens", "min_tokens", "max_completion_tokens", "priority"])
    return written(model, name, rng.choice([str(2**63), str(-(2**63) - 1), "1e30", "9" * 5000]))


def _token_prompts(rng: random.Random, model: str) -> Poison:
    wrongs: list[Any] = [-1, VOCABULARY, 2**31 - 1, 2**31, 2**63, 10**30, 1.5, True, None, "1", []]
    wrong = rng.choice(wrongs)
    prompt: Any = [1, 2, wrong]
    return completion(model, {"prompt": rng.choice([prompt, [[5], prompt]])})


def _wrong_types(rng: random.Random, model: str) -> Poison:
    wrong: Any = rng.choice([{}, [[]], "5", [None], {"a": [1]}])
    names = ["messages", "max_tokens", "temperature", "n", "stream", "logit_bias", "seed",
             "model", "session_id", "logprobs", "stream_options", "top_k"]  # fmt: skip
    fields = dict.fromkeys(rng.sample(names, rng.randint(1, 6)), wrong)
    if fields.keys() <= {"logit_bias", "stream_options"} or "model" in fields:
        fields["max_tokens"] = wrong
    return chat(model, fields | {"n": "5"}, frozenset({400, 404}))


def _parts(rng: random.Random, model: str) -> Poison:
    content = rng.choice([
        [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], [None], [[]], 5,
        [{"type": "text"}], [{"type": "text", "text": 5}],
    ])  # fmt: skip
    message = {"role": rng.choice(["user", "assistant", "tool"]), "content": content}
    return chat(model, {"messages": [message]})


def _too_large(rng: random.Random, model: str) -> Poison:
    return Poison(b" " * (BODY_BYTES_MAX + rng.choice([1, 10_000_000])), CHATS, TOO_LARGE, False)


def _all_limits(rng: random.Random, model: str) -> Poison:
    fields = {
        "temperature": 2, "top_p": 5e-324, "top_k": 1, "min_p": 1, "repetition_penalty": 10,
        "presence_penalty": rng.choice([-2, 2]), "frequency_penalty": rng.choice([-2, 2]),
        "logit_bias": {str(n): rng.choice([-100, 100]) for n in range(VOCABULARY)},
        "stop_token_ids": list(range(0, VOCABULARY, 2)), "min_tokens": 4, "logprobs": True,
        "top_logprobs": 20, "seed": rng.choice([-(2**63), 2**63 - 1]), "priority": -(2**31),
        "stop": ["x" * 512] * 16, "cache_salt": "\U0001f98a" * 256,
    }  # fmt: skip
    return chat(model, fields, SERVED)


def _nothing_allowed(rng: random.Random, model: str) -> Poison:
    """All that is allowed is forbidden by something else."""
    fields = {"allowed_token_ids": [256], "logit_bias": {"256": -100}, "min_tokens": 4,
              "stop_token_ids": [256], "top_p": 0.1}  # fmt: skip
    return chat(model, fields, SERVED)


def _odd_sessions(rng: random.Random, model: str) -> Poison:
    name = rng.choice(["*", ">", "a.b.c", "../../x", "{}", "\u202e" * 256, "a b", "%00", "\r\n"])
    return chat(model, {"session_id": name}, REFUSED if "\n" in name else SERVED)


def make(name: str, seed: str, model: str) -> Poison:
    """One of a kind; the same seed makes the same."""
    return KINDS[name](random.Random(seed), model)


KINDS: Mapping[str, Make] = {
    "tiny-divisors": _tiny_divisors,
    "no-numbers": _no_numbers,
    "out-of-range": _out_of_range,
    "bias-spellings": _bias_spellings,
    "bias-100000-spellings": _bias_many_spellings,
    "huge-ids": _huge_ids,
    "template": _template,
    "template-library": _template_library,
    "template-names": _template_names,
    "template-in-text": _template_in_text,
    "text-2m-chars": _long_text,
    "text-cut": _long_text_cut,
    "tokenize-2m": _tokenize_long,
    "messages-65000": _many_messages,
    "deep-nesting": _deep,
    "wrong-utf8": _wrong_utf8,
    "many-choices": _many_choices,
    "echo-logprobs": _echo_logprobs,
    "stops": _stops,
    "near-stops": _near_stops,
    "huge-lengths": _huge_lengths,
    "token-prompts": _token_prompts,
    "wrong-types": _wrong_types,
    "content-parts": _parts,
    "body-too-large": _too_large,
    "all-limits": _all_limits,
    "nothing-allowed": _nothing_allowed,
    "odd-sessions": _odd_sessions,
}
"""By name; make one with a seeded generator and the model's name."""
