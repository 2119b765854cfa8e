"""The field tables: what may stand in a request body, per route, and what happens to it (http.md 4.1).

Every name a route knows is in exactly one group; a name in none is unknown (stripped or refused, as configured).

| group | what happens |
|---|---|
| plain | passes as received; the few that are read (model, stream, caps, prompts) are read in call.py |
| limited | passes if within the limit, else 400 |
| granted | passes if the tenant was granted the name, else 400 |
| forbidden | 400: names hosts, runs code, or reads other tenants' cache. null is removed instead |
| stateful | 400 unless null or false: the state would live in one engine |
| removed | dropped: ids, priority, salts are the gateway's to set |

Sources: openai 3.57.0 and anthropic 2.14.0 request types; vLLM 0.32, SGLang and TensorRT-LLM protocols (engines.md 3).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec


class Group(Enum):
    """What happens to a field that does not simply pass."""

    LIMITED = "limited"
    GRANTED = "granted"
    FORBIDDEN = "forbidden"
    STATEFUL = "stateful"
    REMOVED = "removed"


class Media(Enum):
    """Where in a field a part with a URL may stand."""

    MESSAGES = "messages"  # in the content of messages, in a list of parts
    ITEMS = "items"  # anywhere an object stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One route's fields.

    `plain`: names that pass as they are; `limited`: names that pass within a limit. `required`: of each tuple one must be there. `prompt`:
    fields that hold text for the model. `rendered`: those by which prompts are compared, in the order in which engines render
    them; the last one there grows from turn to turn. `caps`: fields that cap the output, the one that wins first and the one every
    engine knows last. `media`: fields in whose parts a URL may stand. `batch`:
    fields whose list holds prompts of their own.
    The rest follows from these: `groups` of names that are not plain, the bytes a value may begin with (`opens`), and a
    decoder of the big fields alone (`large`).
    """

    plain: frozenset[str]
    limited: frozenset[str] = frozenset()
    required: tuple[tuple[str, ...], ...] = ()
    prompt: tuple[str, ...] = ()
    rendered: tuple[str, ...] = ()
    caps: tuple[str, ...] = ()
    media: Mapping[str, Media] = field(default_factory=dict)
    batch: tuple[str, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    opens: Mapping[str, bytes] = field(default_factory=dict)
    large: msgspec.json.Decoder[Any] = field(default_factory=msgspec.json.Decoder)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Together at most 256 KiB: schemas and grammars are compiled by the engine.
BULKY = _names(
    """
    tools functions response_format structured_outputs text output_config
    guided_json guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern
    json_schema regex ebnf
    """
)

_GRANTED = _names(
    """
    chat_template_kwargs prompt_logprobs echo use_beam_search allowed_token_ids bad_words return_token_ids
    mm_processor_kwargs media_io_kwargs
    """
)
_FORBIDDEN = _names(
    """
    kv_transfer_params ec_transfer_params bootstrap_host bootstrap_port bootstrap_room disaggregated_params vllm_xargs
    data_parallel_rank routed_dp_rank disagg_prefill_dp_rank prompt_embeds input_embeds chat_template documents
    lora_path lora_request custom_logit_processor custom_params custom_labels return_hidden_states mm_payload
    return_mm_kwargs prompt_token_ids prompt_token_ids_b64 conversation_params agent_hierarchy
    """
)
_STATEFUL = _names("background previous_response_id conversation")
_REMOVED = _names("cache_salt priority request_id rid session_id session_params extra_key")

_ALWAYS = _names("model user")
_SAMPLING = _names(
    """
    temperature top_p top_k min_p frequency_penalty presence_penalty repetition_penalty length_penalty seed
    min_tokens ignore_eos stop_token_ids no_stop_trim skip_special_tokens spaces_between_special_tokens
    include_stop_str_in_output truncate_prompt_tokens truncation_side logprob_token_ids return_tokens_as_token_ids
    return_token_offsets return_prompt_text routed_experts_prompt_start repetition_detection thinking_token_budget
    stream_interval watermarking add_special_tokens
    """
)
_ACCOUNT = _names(
    "metadata service_tier store safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options"
)
_CHAT = _names(
    """
    messages stream stream_options max_tokens max_completion_tokens tool_choice parallel_tool_calls function_call
    modalities audio prediction reasoning reasoning_effort include_reasoning separate_reasoning stream_reasoning
    verbosity web_search_options moderation thinking add_generation_prompt continue_final_message
    """
)
_COMPLETIONS = _names("prompt suffix stream stream_options max_tokens")
_RESPONSES = _names(
    """
    input instructions stream stream_options max_output_tokens max_tool_calls parallel_tool_calls prompt include
    reasoning truncation tool_choice moderation context_management access_programs
    previous_response previous_input_messages enable_response_messages
    """
)
_MESSAGES = _names(
    """
    messages system stream max_tokens metadata temperature top_p top_k thinking tool_choice cache_control container
    service_tier speed inference_geo context_management diagnostics user_profile_id workspace_id betas
    """
)
_POOLING = _names(
    """
    truncate_prompt_tokens truncation_side padding use_activation activation add_special_tokens encoding_format
    embed_dtype endianness
    """
)
_EMBEDDINGS = _POOLING | _names("input messages dimensions add_generation_prompt continue_final_message")
_RERANK = _POOLING | _names("query documents top_n return_documents max_tokens_per_doc")
_SCORE = _POOLING | _names("text_1 text_2 data_1 data_2 queries documents items apply_softmax label_token_ids")
_TOKENIZE = _names(
    "prompt messages add_special_tokens add_generation_prompt continue_final_message return_token_strs tools"
)
_COUNT = _names("messages system tools tool_choice thinking output_config cache_control speed")


_GROUPS = {
    Group.GRANTED: _GRANTED,
    Group.FORBIDDEN: _FORBIDDEN,
    Group.STATEFUL: _STATEFUL,
    Group.REMOVED: _REMOVED,
}
_OPENS = {"messages": b"[", "prompt": b'["', "input": b'["', "stream_options": b"{n"}

_SCORED = ("text_1", "text_2", "data_1", "data_2", "queries", "documents", "items")

_WRITTEN: Mapping[str, Table] = {
    "chat": Table(
        plain=_CHAT | _SAMPLING | _ACCOUNT | BULKY,
        limited=_names("n best_of logprobs top_logprobs stop logit_bias"),
        required=(("messages",),),
        prompt=("messages", "tools", "functions"),
        rendered=("tools", "functions", "messages"),
        caps=("max_completion_tokens", "max_tokens"),
        media={"messages": Media.MESSAGES},
    ),
    "completions": Table(
        plain=_COMPLETIONS | _SAMPLING | _ACCOUNT | (BULKY - _names("tools functions text output_config")),
        limited=_names("n best_of logprobs stop logit_bias"),
        required=(("prompt",),),
        prompt=("prompt", "suffix"),
        rendered=("prompt",),
        caps=("max_tokens",),
        batch=("prompt",),
    ),
    "responses": Table(
        plain=_RESPONSES | _SAMPLING | _ACCOUNT | _names("tools text structured_outputs"),
        limited=_names("top_logprobs stop logit_bias"),
        required=(("input",),),
        prompt=("input", "instructions", "tools", "previous_response", "previous_input_messages"),
        rendered=("tools", "instructions", "input"),
        caps=("max_output_tokens",),
        media=dict.fromkeys(("input", "tools", "previous_response", "previous_input_messages"), Media.ITEMS),
    ),
    "messages": Table(
        plain=_MESSAGES | _names("tools output_config"),
        limited=_names("stop_sequences"),
        required=(("messages",), ("max_tokens",)),
        prompt=("system", "messages", "tools"),
        rendered=("tools", "system", "messages"),
        caps=("max_tokens",),
        media={"messages": Media.MESSAGES, "system": Media.ITEMS},
    ),
    "embeddings": Table(
        plain=_EMBEDDINGS,
        required=(("input", "messages"),),
        prompt=("input", "messages"),
        rendered=("messages", "input"),
        media={"messages": Media.MESSAGES, "input": Media.ITEMS},
        batch=("input",),
    ),
    "rerank": Table(
        plain=_RERANK,
        required=(("query",), ("documents",)),
        prompt=("query", "documents"),
        rendered=("query", "documents"),
        media={"query": Media.ITEMS, "documents": Media.ITEMS},
        batch=("documents",),
    ),
    "score": Table(
        plain=_SCORE,
        prompt=_SCORED,
        rendered=("queries", "text_1", "data_1", "items", "documents", "text_2", "data_2"),
        media=dict.fromkeys(_SCORED, Media.ITEMS),
        batch=_SCORED,
    ),
    "tokenize": Table(
        plain=_TOKENIZE,
        required=(("prompt", "messages"),),
        prompt=("prompt", "messages", "tools"),
        media={"messages": Media.MESSAGES},
    ),
    "detokenize": Table(plain=_names("tokens"), required=(("tokens",),), prompt=("tokens",)),
    "count_tokens": Table(
        plain=_COUNT,
        required=(("messages",),),
        prompt=("system", "messages", "tools"),
        media={"messages": Media.MESSAGES, "system": Media.ITEMS},
    ),
}


def _complete(table: Table) -> Table:
    plain = table.plain | _ALWAYS
    groups = {name: group for group, names in _GROUPS.items() for name in names - plain}
    asked = {name for names in table.required for name in names} | {"stream_options"}
    large = sorted((BULKY | set(table.prompt)) & plain)
    return replace(
        table,
        plain=plain,
        groups=groups | dict.fromkeys(table.limited, Group.LIMITED),
        opens={name: opens for name, opens in _OPENS.items() if name in plain & asked},
        large=msgspec.json.Decoder(msgspec.defstruct("Large", [(name, msgspec.Raw, msgspec.Raw()) for name in large])),
    )


TABLES: Mapping[str, Table] = {name: _complete(table) for name, table in _WRITTEN.items()}  # by route name
