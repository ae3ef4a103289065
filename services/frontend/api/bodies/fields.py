"""Every field of a body that is known here or elsewhere, and what becomes of it.

A field works, or is refused by name unless its value changes nothing, or cannot change the answer
and is ignored. What works is what the bodies have; the other fields stand here. Fields that are in
neither are ignored too. Known elsewhere means: to OpenAI, Anthropic, vLLM, SGLang, Cohere, Jina,
Voyage or text-embeddings-inference. ``docs/fields.md`` shows the table (``python -m
cli.docs.fields``).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from services.frontend.api.bodies.anthropic import MessagesBody
from services.frontend.api.bodies.base import Body, Endpoint, Note, Stage, unsupported
from services.frontend.api.bodies.oneshot import (
    ClassifyBody,
    CohereEmbedBody,
    EmbeddingBody,
    PoolingBody,
    RerankBody,
    ScoreBody,
)
from services.frontend.api.bodies.responses import (
    ConversationBody,
    ConversationItemsBody,
    ResponsesBody,
)
from services.frontend.api.bodies.text import (
    AdvisoryBody,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    LoadAdapterBody,
    TokenizeBody,
    UnloadAdapterBody,
)
from shared.errors import InvalidRequest

B = TypeVar("B", bound=Body)
Endpoints = tuple[Endpoint, ...]
Fate = Literal["works", "refused", "ignored"]

BODIES: tuple[type[Body], ...] = (
    ChatBody, CompletionBody, ResponsesBody, MessagesBody, TokenizeBody, DetokenizeBody,
    EmbeddingBody, CohereEmbedBody, PoolingBody, ClassifyBody, RerankBody, ScoreBody,
    ConversationBody, ConversationItemsBody, AdvisoryBody, LoadAdapterBody, UnloadAdapterBody,
)  # fmt: skip
CHAT: Endpoints = ("chat",)
TEXT: Endpoints = ("chat", "completions")
SAMPLED: Endpoints = (*TEXT, "responses", "messages")
RESPONSES: Endpoints = ("responses",)
MESSAGES: Endpoints = ("messages",)
TEMPLATE: Endpoints = ("chat", "tokenize")
LISTED: Endpoints = ("embeddings", "pooling", "classify")
PAIRS: Endpoints = ("rerank", "score")
ENCODED: Endpoints = (*LISTED, *PAIRS)
ONESHOT: Endpoints = (*ENCODED, "v2/embed")
INFERENCE: Endpoints = (*TEXT, *ONESHOT)
ADAPTERS: Endpoints = ("load_lora_adapter", "unload_lora_adapter")
SHOWN: Endpoints = (*INFERENCE, "tokenize", "detokenize")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of some endpoints' bodies.

    Attributes:
        values: if it is refused: those that change nothing; if it works: those that are served, all
            that its body's type lets through if there are none here. Null always passes.
        hint: what to use instead, or what is special.
        stage: of `prepare` that it goes to, if it works and is of text.
    """

    name: str
    endpoints: Endpoints
    fate: Fate
    values: tuple[Any, ...] = ()
    hint: str = ""
    stage: Stage | None = None


def _working() -> Iterator[Field]:
    """The fields that the bodies have; those of which the same is said are one."""
    rows: dict[tuple[str, Note], list[Endpoint]] = {}
    for kind in BODIES:
        for name, info in kind.model_fields.items():
            own = next((each for each in info.metadata if isinstance(each, Note)), Note())
            stage = own.stage or _stage_of(kind, name)
            rows.setdefault((name, Note(own.hint, own.values, stage)), []).append(kind.endpoint)
            for part in own.parts.model_fields if own.parts is not None else ():
                row = rows.setdefault((f"{name}.{part}", Note(stage=stage)), [])
                row.append(kind.endpoint)
    for (name, note), endpoints in rows.items():
        yield Field(name, tuple(endpoints), "works", note.values, note.hint, note.stage)


def _stage_of(kind: type[Body], name: str) -> Stage | None:
    """Of the class that has the field, and says where its fields go."""
    owners = (each for each in kind.__mro__ if name in get_annotations(each))
    stages = (vars(owner).get("stage") for owner in owners)
    return next((stage for stage in stages if stage is not None), None)


def _refused(names: str, endpoints: Endpoints, *values: Any, hint: str = "") -> Iterator[Field]:
    return (Field(name, endpoints, "refused", values, hint) for name in names.split())


def _ignored(names: str, endpoints: Endpoints) -> Iterator[Field]:
    return (Field(name, endpoints, "ignored") for name in names.split())


_CUT_HINT = "use truncate_prompt_tokens"
_TEXT_REFUSED = (
    *_refused("use_beam_search", TEXT, False),
    *_refused("length_penalty", TEXT, 1.0),
    *_refused("early_stopping", TEXT, False),
    *_refused("beam_width", TEXT, 1),
    *_refused("bad_words stop_regex logits_processors logit_processors", TEXT, []),
    *_refused("vllm_xargs kv_transfer_params ec_transfer_params", SAMPLED, {}),
    *_refused("custom_params", TEXT, {}),
    *_refused(
        "structural_tag custom_logit_processor thinking_token_budget repetition_detection"
        " session_params bootstrap_host bootstrap_port bootstrap_room",
        TEXT,
    ),
    *_refused("extra_key", TEXT, hint="use cache_salt"),
    *_refused("lora_path", (*TEXT, *LISTED), hint="name the adapter as the model"),
    *_refused("adapter_source", TEXT, "local", hint="adapters are registered here first"),
    *_refused(
        "merged_adapters adapter_parameters adapter_ids", TEXT, hint="one adapter: use adapter_id"
    ),
    *_refused("no_stop_trim", TEXT, False, hint="use include_stop_str_in_output"),
    *_refused("spaces_between_special_tokens", TEXT, True),
    *_refused("return_hidden_states return_routed_experts return_meta_info", TEXT, False),
    *_refused("return_weight_versions return_token_offsets", TEXT, False),
    *_refused("routed_experts_prompt_start", TEXT, 0),
    *_refused("logprob_token_ids", TEXT),
    *_refused("watermarking", SAMPLED, False),
    *_refused("return_prompt_text", CHAT, False),
    *_refused("return_prompt_token_ids", TEXT, False, hint="use return_token_ids"),
    *_refused("input_ids input_embeds", TEXT, hint="use prompt on /v1/completions"),
    *_refused("suffix", ("completions",), ""),
    *_refused("prompt_embeds", ("completions",)),
)  # fmt: skip
_CHAT_REFUSED = (
    *_refused("functions", CHAT, [], hint="use tools"),
    *_refused("function_call", CHAT, "none", hint="use tool_choice"),
    *_refused("modalities", CHAT, ["text"]),
    *_refused("audio web_search_options", CHAT),
    *_refused("chat_template", (*TEMPLATE, *ENCODED)),
    *_refused("documents", TEMPLATE, []),
    *_refused("mm_processor_kwargs media_io_kwargs", (*TEMPLATE, *ENCODED), {}),
    *_refused("echo", CHAT, False),
    *_refused("stream_reasoning", CHAT, True),
    *_refused("skip_special_tokens", ("detokenize",), False),
)
_RESPONSES_REFUSED = (
    *_refused("prompt moderation", RESPONSES),
    *_refused("n", RESPONSES, 1),
    *_refused("max_tokens max_completion_tokens", RESPONSES, hint="use max_output_tokens"),
    *_refused("messages", RESPONSES, hint="use input"),
    *_refused("response_format structured_outputs", RESPONSES, hint="use text.format"),
    *_refused("stop_token_ids", RESPONSES, []),
    *_refused("skip_special_tokens spaces_between_special_tokens", RESPONSES, True),
    *_refused("include_reasoning", RESPONSES, True),
    *_refused("ignore_eos include_stop_str_in_output", RESPONSES, False),
    *_refused("enable_response_messages", RESPONSES, False),
    *_refused("previous_input_messages", RESPONSES, hint="use previous_response_id"),
    *_refused("media_io_kwargs mm_processor_kwargs", RESPONSES, {}),
)
_MESSAGES_REFUSED = (
    *_refused("mcp_servers fallbacks", MESSAGES, []),
    *_refused("container compaction", MESSAGES),
    *_refused("n", MESSAGES, 1),
    *_refused("stop", MESSAGES, hint="use stop_sequences"),
    *_refused(
        "max_completion_tokens max_output_tokens max_tokens_to_sample", MESSAGES,
        hint="use max_tokens",
    ),
    *_refused("parallel_tool_calls", MESSAGES, True, hint="use tool_choice"),
    *_refused("response_format", MESSAGES, hint="use output_config"),
    *_refused("instructions", MESSAGES, hint="use system"),
    *_refused("input prompt", MESSAGES, hint="use messages"),
)  # fmt: skip
_ONESHOT_REFUSED = (
    *_refused("adapter_id", ONESHOT, hint="one-shot models take no adapters"),
    *_refused("use_activation activation", ("classify", *PAIRS), True),
    *_refused("activation", ("embeddings", "pooling"), hint="use use_activation"),
    *_refused("softmax", ("classify", "pooling"), True),
    *_refused("normalize", ("classify", *PAIRS)),
    *_refused("normalized", ONESHOT, hint="use normalize"),
    *_refused("messages chat_template_kwargs", ENCODED, hint="use input"),
    *_refused("add_generation_prompt continue_final_message", ENCODED, False),
    *_refused("embed_dtype", ("classify", *PAIRS), "float32"),
    *_refused("encoding_format", ("classify", *PAIRS), "float"),
    *_refused("endianness", ("classify", *PAIRS), "native"),
    *_refused("dimensions", ("classify", *PAIRS)),
    *_refused("prompt_name prompt instruction instruct label_token_ids", ONESHOT),
    *_refused("task", ("embeddings", "classify", *PAIRS, "v2/embed")),
    *_refused("input_type", ENCODED),
    *_refused("late_chunking return_multivector", ONESHOT, False),
    *_refused("embedding_type output_dtype", ONESHOT, "float", hint="use encoding_format"),
    *_refused("output_dimension", ENCODED, hint="use dimensions"),
    *_refused("truncate", ENCODED, False, "NONE", hint=_CUT_HINT),
    *_refused("truncation", ENCODED, False, hint=_CUT_HINT),
    *_refused("truncation_direction", ENCODED, "Right", "right", hint="use truncation_side"),
    *_refused("auto_truncate", ENCODED, False, hint=_CUT_HINT),
    *_refused("max_tokens", ("v2/embed",), hint="use truncate"),
    *_refused("images inputs", ("v2/embed",), [], hint="use texts"),
    *_refused("max_tokens_per_query max_query_length max_chunks_per_doc", PAIRS),
    *_refused("max_doc_length", ("rerank",), hint="use max_tokens_per_doc"),
    *_refused("max_tokens_per_doc", ("score",), hint=_CUT_HINT),
    *_refused("rank_fields", ("rerank",), [], ["text"]),
    *_refused("raw_scores return_embeddings", PAIRS, False),
    *_refused("return_text", ("rerank",), True, hint="use return_documents"),
    *_refused("top_k", ("rerank",), hint="use top_n"),
    *_refused("texts", ("rerank",), hint="use documents"),
)
_ADAPTERS_REFUSED = (
    *_refused("pinned", ADAPTERS, False),
    *_refused("is_3d_lora_weight", ("load_lora_adapter",), False),
)
_IGNORED = (
    *_ignored("lora_int_id", ADAPTERS),
    *_ignored("user", (*SHOWN, "responses")),
    *_ignored(
        "service_tier safety_identifier prompt_cache_key prompt_cache_retention"
        " stream_options request_id rid",
        RESPONSES,
    ),
    *_ignored(
        "prompt_cache_options client_metadata max_tool_calls context_management image",
        RESPONSES,
    ),
    *_ignored("mm_payload return_mm_kwargs", SAMPLED),
    *_ignored("request_id rid", INFERENCE),
    *_ignored(
        "metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention"
        " guided_decoding_backend data_parallel_rank stream_interval",
        TEXT,
    ),
    *_ignored("stream_options.include_obfuscation", TEXT),
    *_ignored("prediction", CHAT),
    *_ignored(
        "metadata service_tier cache_control speed inference_geo diagnostics billing_policy"
        " output_config.task_budget",
        MESSAGES,
    ),
    *_ignored("priority additional_data", ONESHOT),
    *_ignored("cache_salt", ENCODED),
)

FIELDS: tuple[Field, ...] = (
    *_working(),
    *_TEXT_REFUSED, *_CHAT_REFUSED, *_RESPONSES_REFUSED, *_MESSAGES_REFUSED, *_ONESHOT_REFUSED,
    *_ADAPTERS_REFUSED, *_IGNORED,
)  # fmt: skip


def _by_endpoint() -> dict[tuple[Endpoint, str], Field]:
    table: dict[tuple[Endpoint, str], Field] = {}
    for field in FIELDS:
        for endpoint in field.endpoints:
            assert (endpoint, field.name) not in table, f"{field.name} twice on {endpoint}"
            table[endpoint, field.name] = field
    return table


TABLE: Mapping[tuple[Endpoint, str], Field] = _by_endpoint()


def parse(kind: type[B], data: bytes) -> B:
    """A body from its JSON.

    Raises:
        InvalidRequest: malformed, or a field is missing, of the wrong type, out of range, or asks
            for what is not there.
    """
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = param_name(first["loc"])
        message = f"{param}: {first['msg']}" if param else f"the body: {first['msg']}"
        raise InvalidRequest(message, param or None) from None
    check(kind.endpoint, {**body.__dict__, **(body.model_extra or {})})
    return body


def param_name(loc: tuple[int | str, ...]) -> str:
    """A place in a body as its sender would write it.

    >>> param_name(("messages", 0, "role"))
    'messages[0].role'
    """
    name = ""
    for part in loc:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += f".{part}" if name else part
    return name


def check(endpoint: Endpoint, given: Mapping[str, Any]) -> None:
    """Refuse what would change the answer and is not served.

    Args:
        given: fields of a body; those that are not in the table pass.

    Raises:
        InvalidRequest: names the field.
    """
    for name, value in given.items():
        field = TABLE.get((endpoint, name))
        if field is None or field.fate == "ignored" or value is None:
            continue
        if field.fate == "works" and not field.values:
            continue
        if any(is_same(value, passing) for passing in field.values):
            continue
        served = f"give one of {_written(field.values)}" if field.fate == "works" else field.hint
        raise unsupported(name, served)


def is_same(value: Any, passing: Any) -> bool:
    """Equal, and a truth value only to a truth value.

    >>> is_same(1, 1.0), is_same(1, True)
    (True, False)
    """
    return isinstance(value, bool) == isinstance(passing, bool) and bool(value == passing)


def _written(values: tuple[Any, ...]) -> str:
    return ", ".join(json.dumps(value) for value in values)
