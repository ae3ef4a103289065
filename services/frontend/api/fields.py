"""Every field of a body that is known here or elsewhere, and what becomes of it.

A field works, or is refused by name unless its value changes nothing, or cannot change the answer
and is ignored. Fields that are not in this table are ignored too. Known elsewhere means: to OpenAI,
Anthropic, vLLM, SGLang, Cohere, Jina, Voyage or text-embeddings-inference. ``docs/fields.md`` shows
the table.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.errors import InvalidRequest

Endpoint = Literal[
    "chat", "completions", "responses", "messages", "tokenize", "detokenize",
    "embeddings", "v2/embed", "pooling", "classify", "rerank", "score",
    "advisories", "load_lora_adapter", "unload_lora_adapter",
]  # fmt: skip
Endpoints = tuple[Endpoint, ...]
Fate = Literal["works", "refused", "ignored"]

CHAT: Endpoints = ("chat",)
TEXT: Endpoints = ("chat", "completions")
SAMPLED: Endpoints = (*TEXT, "responses", "messages")
RESPONSES: Endpoints = ("responses",)
MESSAGES: Endpoints = ("messages",)
CALLING: Endpoints = ("chat", "responses")
TEMPLATE: Endpoints = ("chat", "tokenize")
EMBED: Endpoints = ("embeddings", "pooling")
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
    """

    name: str
    endpoints: Endpoints
    fate: Fate
    values: tuple[Any, ...] = ()
    hint: str = ""


def _works(names: str, endpoints: Endpoints, *values: Any, hint: str = "") -> Iterator[Field]:
    return (Field(name, endpoints, "works", values, hint) for name in names.split())


def _refused(names: str, endpoints: Endpoints, *values: Any, hint: str = "") -> Iterator[Field]:
    return (Field(name, endpoints, "refused", values, hint) for name in names.split())


def _ignored(names: str, endpoints: Endpoints) -> Iterator[Field]:
    return (Field(name, endpoints, "ignored") for name in names.split())


_TEMPLATE_HINT = "give it in chat_template_kwargs"
_CUT_HINT = "use truncate_prompt_tokens"
_TEXT_WORKS = (
    *_works(
        "stream temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty"
        " logit_bias seed priority cache_salt session_id kv_expiry_s agent workflow_id",
        SAMPLED,
    ),
    *_works(
        "n stream_options stream_options.include_usage stream_options.continuous_usage_stats"
        " max_tokens allowed_token_ids stop_token_ids ignore_eos min_tokens"
        " include_stop_str_in_output skip_special_tokens logprobs return_token_ids"
        " return_tokens_as_token_ids return_cached_tokens_details",
        TEXT,
    ),
    *_works("stop", (*TEXT, "responses")),
    *_works("adapter_id", SAMPLED, hint="an adapter of the model; or name it as the model"),
    *_works("prompt_logprobs", TEXT, hint="not in a stream"),
    *_works("tenant", TEXT, hint="over NATS only"),
    *_works("best_of", TEXT, hint="only as many as n"),
    *_works("messages", (*TEMPLATE, "messages")),
    *_works("add_generation_prompt continue_final_message", TEMPLATE),
    *_works("chat_template_kwargs", (*TEMPLATE, "responses", "messages")),
    *_works("max_completion_tokens", CHAT),
    *_works("top_logprobs", (*CHAT, *RESPONSES)),
    *_works("tools", (*TEMPLATE, "responses"), hint="functions"),
    *_works("tool_choice", CALLING, hint="auto, none, required, or a function by its name"),
    *_works("parallel_tool_calls", CALLING),
    *_works("reasoning_effort", CHAT, hint="as far as the model's template reads it"),
    *_works("reasoning", RESPONSES, hint="its effort, as far as the model's template reads it"),
    *_works("include_reasoning separate_reasoning", CHAT),
    *_works("input instructions max_output_tokens metadata store", RESPONSES),
    *_works("background", RESPONSES, hint="stored, and not in a stream"),
    *_works("previous_response_id", RESPONSES, hint="of a response that was stored"),
    *_works("text", RESPONSES, hint="its format: text, json_object or json_schema"),
    *_works("truncation", RESPONSES, "disabled", "auto"),
    *_works("include", RESPONSES, hint="message.output_text.logprobs"),
    *_works("system max_tokens stop_sequences", MESSAGES),
    *_works("tools", MESSAGES, hint="one's own, of the type custom"),
    *_works("tool_choice", MESSAGES, hint="its type: auto, any, none, or tool with a name"),
    *_works("thinking", MESSAGES, hint="as far as the model's template reads enable_thinking"),
    *_works("output_config", MESSAGES, hint="its format: json_schema"),
    *_works("output_format", MESSAGES, hint="the same as output_config.format"),
    *_works("prompt", ("completions", "tokenize")),
    *_works("echo", ("completions",)),
    *_works("return_token_strs", ("tokenize",)),
    *_works("tokens", ("detokenize",)),
    *_works("lora_name", ADAPTERS),
    *_works("tenant shared", ADAPTERS, hint="by administrators; else it is one's own"),
    *_works("lora_path load_inplace base_model_name", ("load_lora_adapter",)),
    *_works(
        "session_id model_id expected_arrival ordered priority agent workflow_id ttl_ms",
        ("advisories",),
    ),
    *_works("response_format", TEXT, hint="text, json_object or json_schema"),
    *_works("guided_json json_schema", TEXT, hint="a JSON schema, or its text"),
    *_works("guided_regex regex guided_choice guided_whitespace_pattern", TEXT),
    *_works("guided_grammar grammar ebnf", TEXT, hint="rules in Lark's or llama.cpp's words"),
    *_works(
        "structured_outputs",
        TEXT,
        hint="json, regex, choice, grammar, json_object, whitespace_pattern and"
        " disable_any_whitespace",
    ),
    *_works("kv_hints", SAMPLED, hint="fetch, retain, demote and release; the rest is ignored"),
)
_SHARED_WORKS = (
    *_works("model", (*SHOWN, "responses", "messages", "advisories")),
    *_works("add_special_tokens", (*TEXT, "tokenize", *ENCODED)),
    *_works(
        "truncate_prompt_tokens", (*TEXT, *ENCODED),
        hint="text: the end is kept; one-shot models: the start; truncation_side says otherwise",
    ),
    *_works("truncation_side", (*TEXT, *ENCODED), "left", "right"),
    *_works("slo_ms", ONESHOT),
)  # fmt: skip
_ONESHOT_WORKS = (
    *_works("input", LISTED),
    *_works("encoding_format", EMBED, "float", "base64"),
    *_works("embed_dtype", EMBED, "float32", "float16", "bfloat16", hint="of base64"),
    *_works("endianness", EMBED, "native", "little", "big", hint="of base64"),
    *_works("dimensions", EMBED),
    *_works("normalize use_activation", EMBED, True, hint="scales to length 1"),
    *_works("task", ("pooling",), "embed", "classify", hint="the model's own"),
    *_works("query top_n return_documents max_tokens_per_doc", ("rerank",)),
    *_works("documents", PAIRS),
    *_works("text_1 text_2 queries items data_1 data_2", ("score",)),
    *_works("texts output_dimension", ("v2/embed",)),
    *_works("embedding_types", ("v2/embed",), hint="float and base64"),
    *_works("truncate", ("v2/embed",), "NONE", "START", "END"),
    *_works(
        "input_type", ("v2/embed",),
        "search_document", "search_query", "classification", "clustering",
        hint="all the same: nothing is put before a text",
    ),
)  # fmt: skip
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
    *_refused("audio prediction web_search_options", CHAT),
    *_refused("chat_template", (*TEMPLATE, *ENCODED)),
    *_refused("documents", TEMPLATE, []),
    *_refused("mm_processor_kwargs media_io_kwargs", (*TEMPLATE, *ENCODED), {}),
    *_refused("echo", CHAT, False),
    *_refused("verbosity", CHAT, "medium", hint=_TEMPLATE_HINT),
    *_refused("reasoning enable_thinking thinking", CHAT, hint=_TEMPLATE_HINT),
    *_refused("stream_reasoning", CHAT, True),
    *_refused("skip_special_tokens", ("detokenize",), False),
)
_RESPONSES_REFUSED = (
    *_refused("conversation", RESPONSES, hint="use previous_response_id"),
    *_refused("prompt", RESPONSES),
    *_refused("max_tool_calls", RESPONSES),
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
    *_refused("output_config.effort", MESSAGES, "high", hint=_TEMPLATE_HINT),
    *_refused("context_management", MESSAGES, {}, {"edits": []}),
    *_refused("mcp_servers fallbacks", MESSAGES, []),
    *_refused("container compaction thread", MESSAGES),
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
    *_ignored("prompt_cache_options", RESPONSES),
    *_ignored("mm_payload return_mm_kwargs", SAMPLED),
    *_ignored("request_id rid", INFERENCE),
    *_ignored(
        "metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention"
        " guided_decoding_backend data_parallel_rank stream_interval",
        TEXT,
    ),
    *_ignored("stream_options.include_obfuscation", TEXT),
    *_ignored(
        "metadata service_tier cache_control speed inference_geo diagnostics billing_policy",
        MESSAGES,
    ),
    *_ignored("priority additional_data", ONESHOT),
    *_ignored("cache_salt", ENCODED),
)

FIELDS: tuple[Field, ...] = (
    *_TEXT_WORKS, *_SHARED_WORKS, *_ONESHOT_WORKS,
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


def check(endpoint: Endpoint, given: Mapping[str, Any]) -> None:
    """Say no to what would change the answer and is not there.

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


def unsupported(name: str, hint: str = "") -> InvalidRequest:
    """The error of a value that is known and not served."""
    message = f"{name}: this value is not supported" + (f"; {hint}" if hint else "")
    return InvalidRequest(message, name, code="unsupported_value")
