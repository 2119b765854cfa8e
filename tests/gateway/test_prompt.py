"""What is said about a prompt without reading it: equal beginnings are equal, and little else is."""

import json
import timeit
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.describe import parts
from gateway.dialects import prompt
from gateway.dialects.call import Call, FieldRules, read
from gateway.dialects.routes import ROUTES
from policies.fingerprint import HEAD_BYTES, chain_of_ids, seed

RULES = FieldRules(parameters=frozenset({"chat_template_kwargs"}), media_hosts=frozenset(), reject_unknown=False)
BY_NAME = {route.name: route for route in ROUTES}
DOMAIN = ("acme", "s" * 43, "meta/llama")
PROSE = "The quick brown fox jumps over the lazy dog (twice), then sleeps.\n"
CODE = 'for (i = 0; i < n; i++) { rows[i] = f("x", [1, 2, 3]); }\n'
CHINESE = "敏捷的棕色狐狸跳过懒狗。"
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]


class Prompt(NamedTuple):
    exact_tokens: int
    kind: str
    shape: str
    chain: tuple[int, ...]
    head: int


def look(call: Call, block_tokens: int, domain: tuple[str, str, str]) -> Prompt:
    return Prompt(*prompt.look(call, block_tokens, domain))


def looked(name: str, domain: tuple[str, str, str] = DOMAIN, spaced: bool = False, **body: Any) -> Prompt:
    separators = None if spaced else (",", ":")
    text = json.dumps({"model": "m", **body}, separators=separators, ensure_ascii=False)
    return look(read(BY_NAME[name], text.encode(), RULES), 64, domain)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def turns(count: int, system: str = "Be brief.") -> list[dict[str, Any]]:
    """A conversation of that many turns, each of about 600 bytes."""
    made = [said("system", system)] if system else []
    for turn in range(count):
        made += [said("user", f"{turn} {PROSE * 5}"), said("assistant", f"{turn} {PROSE * 4}")]
    return made[:-1]


def is_beginning(one: Prompt, other: Prompt) -> bool:
    return 0 < len(one.chain) < len(other.chain) and other.chain[: len(one.chain)] == one.chain


# ---- chains


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_each_turn_of_a_chat_begins_with_the_one_before(spaced: bool, tools: list[Any] | None) -> None:
    more = {"tools": tools} if tools else {}
    first, second, third = (looked("chat", spaced=spaced, messages=turns(count), **more) for count in (1, 2, 3))
    assert is_beginning(first, second)
    assert is_beginning(second, third)


def test_each_turn_of_the_messages_route_begins_with_the_one_before_tool_and_thinking_blocks_too() -> None:
    blocks = [
        {"type": "thinking", "thinking": PROSE * 3, "signature": "abc"},
        {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"q": PROSE}},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": PROSE * 5}
    messages = [said("user", PROSE * 5), said("assistant", blocks), said("user", [result])]
    fixed = {"system": PROSE * 4, "tools": [{"name": "find", "input_schema": {}}], "max_tokens": 9}
    assert is_beginning(
        looked("messages", messages=messages[:1], **fixed), looked("messages", messages=messages, **fixed)
    )


def test_a_growing_text_and_a_growing_list_of_items_begin_with_what_they_were() -> None:
    assert is_beginning(looked("completions", prompt=PROSE * 8), looked("completions", prompt=PROSE * 20))
    assert is_beginning(looked("responses", input=PROSE * 8), looked("responses", input=PROSE * 20))
    assert is_beginning(looked("responses", input=turns(1)), looked("responses", input=turns(3)))


def test_pretty_printing_does_not_hide_the_next_turn() -> None:
    texts = [json.dumps({"model": "m", "messages": turns(count)}, indent=2) for count in (1, 2)]
    first, second = (look(read(BY_NAME["chat"], text.encode(), RULES), 64, DOMAIN) for text in texts)
    assert is_beginning(first, second)


def test_fields_beside_the_prompt_and_the_order_of_all_do_not_matter() -> None:
    plain = looked("chat", tools=TOOLS, messages=turns(2))
    assert looked("chat", messages=turns(2), temperature=0.3, tools=TOOLS, stream=True) == plain


def test_what_comes_first_for_the_engine_comes_first_in_the_chain() -> None:
    one, other = (looked("chat", messages=turns(2), tools=TOOLS * count) for count in (9, 10))
    assert one.chain[0] == other.chain[0] != looked("chat", messages=turns(2)).chain[0]


def test_roles_tenants_salts_and_models_keep_equal_texts_apart() -> None:
    same = [said("user", PROSE * 20)]
    mine = looked("chat", messages=same)
    assert looked("chat", messages=same) == mine
    assert looked("chat", messages=[said("assistant", PROSE * 20)]).chain[0] != mine.chain[0]
    for domain in (("acme", "t" * 43, "meta/llama"), ("acme", "s" * 43, "meta/other")):
        assert set(looked("chat", domain, messages=same).chain).isdisjoint(mine.chain)


@pytest.mark.parametrize("name", ["embeddings", "tokenize", "count_tokens", "rerank", "score"])
def test_where_nothing_is_generated_nothing_follows(name: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "embeddings": {"input": PROSE * 9},
        "tokenize": {"prompt": PROSE * 9},
        "count_tokens": {"messages": turns(3)},
        "rerank": {"query": "q", "documents": [PROSE] * 9},
        "score": {"text_1": "a", "text_2": PROSE * 9},
    }
    found = looked(name, **bodies[name])
    assert (found.chain, found.head) == ((), 0)


@given(st.lists(st.text(max_size=300), min_size=1, max_size=6), st.text(max_size=400))
def test_any_conversation_is_the_beginning_of_itself_with_one_message_more(texts: list[str], more: str) -> None:
    messages = [said("user", text) for text in texts]
    before, after = looked("chat", messages=messages), looked("chat", messages=[*messages, said("user", more)])
    assert after.chain[: len(before.chain)] == before.chain


# ---- token ids


def test_token_ids_are_counted_exactly_and_their_blocks_are_of_ids() -> None:
    ids = list(range(1000, 1300))
    found = looked("completions", prompt=ids)
    assert (found.exact_tokens, found.kind, found.head) == (300, "text", 0)
    assert found.chain == chain_of_ids(ids, 64, seed(DOMAIN[1], DOMAIN[2]))
    assert looked("completions", spaced=True, prompt=ids) == found
    assert is_beginning(found, looked("completions", prompt=[*ids, *ids]))


def test_a_thousand_id_prompts_of_equal_length_are_all_different() -> None:
    chains = [looked("completions", prompt=[at, *range(1, 256)]).chain for at in range(1000)]
    assert len(set(chains)) == len({chain[0] for chain in chains}) == 1000
    texts = [looked("completions", prompt=[f"{at} {PROSE * 5}", "b"]).chain for at in range(1000)]
    assert len({chain[0] for chain in texts}) == 1000


def test_of_several_lists_of_ids_all_count_and_the_first_is_compared() -> None:
    first = list(range(200))
    found = looked("completions", prompt=[first, [7, 8]])
    assert (found.exact_tokens, found.chain) == (202, looked("completions", prompt=first).chain)
    assert looked("embeddings", input=[[1, 2], [3]]).exact_tokens == 3
    assert looked("embeddings", input=["1", "2"]).exact_tokens == 0


def test_a_list_of_ids_without_end_is_compared_as_far_as_is_cheap() -> None:
    found = looked("completions", prompt=list(range(100_000, 150_000)))
    assert found.exact_tokens == 50_000
    assert 30 < len(found.chain) < 60


@pytest.mark.parametrize("ids", [[-1, 2], [2**32], [1.5] * 80, [1, "a"], [1, None]])
def test_numbers_that_are_no_ids_are_the_engines_business(ids: list[Any]) -> None:
    assert looked("completions", prompt=ids).chain == ()


# ---- heads


def test_a_head_ends_with_the_system_prompt() -> None:
    heads = {looked("chat", messages=turns(count)).head for count in (1, 2, 5)}
    assert len(heads) == 1
    assert heads != {looked("chat", messages=turns(2, system="Be long.")).head}
    assert looked("chat", messages=turns(2, system="")).head == 0


def test_a_head_is_the_same_after_a_restart_with_another_salt_and_differs_by_tenant() -> None:
    mine = looked("chat", messages=turns(2)).head
    assert looked("chat", ("acme", "t" * 43, "meta/llama"), messages=turns(2)).head == mine
    assert looked("chat", ("other", "s" * 43, "meta/llama"), messages=turns(2)).head != mine


@pytest.mark.parametrize("spelled", [b'[{"role":"%b"', b'[{"role": "%b"', b'[ {"role" : "%b"'])
def test_messages_that_begin_with_a_user_have_no_head_however_they_are_spelled(spelled: bytes) -> None:
    rest = b',"content":"x"},{"role":"system","content":"y"}]'
    heads = {}
    for who in (b"user", b"system", b"users", b"developer"):
        body = b'{"model":"m","messages":' + spelled % who + rest + b"}"
        heads[who] = look(read(BY_NAME["chat"], body, RULES), 64, DOMAIN).head
    assert [who for who, head in heads.items() if head] == [b"system", b"developer"]


def test_the_order_of_keys_in_a_message_does_not_pull_the_user_into_the_head() -> None:
    messages = [dict(reversed(message.items())) for message in turns(1)]
    others = [dict(reversed(message.items())) for message in turns(2)]
    others[1]["content"] = CODE
    assert looked("chat", messages=messages).head == looked("chat", messages=others).head != 0


def test_several_system_messages_and_developers_are_one_head() -> None:
    system = [said("system", "a"), said("developer", 'say "role": "user"')]
    one, other = (looked("chat", messages=[*system, said("user", text)]) for text in ("x", "y"))
    fewer = looked("chat", messages=[system[0], said("user", "x")])
    assert one.head == other.head != fewer.head


def test_tools_are_in_the_head_and_a_long_one_is_cut() -> None:
    plain = looked("chat", messages=turns(1))
    assert looked("chat", messages=turns(1), tools=TOOLS).head not in (0, plain.head)
    assert looked("chat", messages=turns(1, system=""), tools=TOOLS).head != 0
    long = PROSE * (HEAD_BYTES // len(PROSE) + 1)
    one, other = (looked("chat", messages=[said("system", long + text), said("user", text)]) for text in ("x", "y"))
    assert one.head == other.head != 0


def test_heads_of_the_other_routes() -> None:
    fixed = {"system": "Be brief.", "max_tokens": 9}
    one, other = (looked("messages", messages=[said("user", text)], **fixed) for text in ("x", "y"))
    assert one.head == other.head != 0
    assert looked("messages", messages=[said("user", "x")], max_tokens=9).head == 0
    one, other = (looked("responses", instructions="Be brief.", input=text) for text in ("x", "y"))
    assert one.head == other.head != 0
    assert looked("responses", input=turns(1)).head == looked("responses", input=turns(2)).head != 0
    assert looked("completions", prompt="short").head == 0
    template = PROSE * (HEAD_BYTES // len(PROSE) + 1)
    one, other = (looked("completions", prompt=template + text) for text in ("x", "y"))
    assert one.head == other.head != 0


# ---- kind and shape


@pytest.mark.parametrize(
    ("text", "kind"), [(PROSE, "text"), (CODE, "code"), (CHINESE, "cjk"), ("Привет, мир. ", "text")]
)
def test_kinds_of_text(text: str, kind: str) -> None:
    assert looked("chat", messages=[said("user", text * 50)]).kind == kind
    assert looked("embeddings", input=text * 50).kind == kind


def test_escaped_characters_are_what_they_stand_for() -> None:
    body = json.dumps({"model": "m", "messages": [said("user", CHINESE * 50)]})
    assert look(read(BY_NAME["chat"], body.encode(), RULES), 64, DOMAIN).kind == "cjk"


FORCED = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}},
    {"guided_regex": "a+"},
    {"structured_outputs": {"choice": ["a", "b"]}},
    {"tool_choice": "required"},
    {"tool_choice": {"type": "function", "function": {"name": "find"}}},
]
FREE = [
    {},
    {"response_format": {"type": "text"}},
    {"response_format": None},
    {"tool_choice": "auto"},
    {"tool_choice": "none"},
]


@pytest.mark.parametrize("fields", FORCED, ids=str)
def test_a_fixed_form_is_named_first_and_by_what_fixes_it(fields: dict[str, Any]) -> None:
    shape = looked("chat", messages=turns(1), reasoning_effort="high", **fields).shape
    assert shape.startswith(("schema:", "tool:"))
    assert shape == looked("chat", messages=turns(2), reasoning_effort="high", **fields).shape
    assert len(shape) < 80


@pytest.mark.parametrize("fields", FREE, ids=str)
def test_a_form_that_is_free_has_no_name(fields: dict[str, Any]) -> None:
    assert looked("chat", messages=turns(1), **fields).shape == ""


def test_shapes_differ_by_schema_tool_and_effort() -> None:
    named = [looked("chat", messages=turns(1), **fields).shape for fields in FORCED]
    named += [looked("chat", messages=turns(1), reasoning_effort=effort).shape for effort in ("low", "high")]
    named.append(looked("messages", messages=turns(1, ""), max_tokens=9, tool_choice={"type": "any"}).shape)
    named.append(looked("responses", input="x", text={"format": {"type": "json_schema", "schema": {}}}).shape)
    assert len(set(named)) == len(named)
    assert looked("messages", messages=turns(1, ""), max_tokens=9, tool_choice={"type": "auto"}).shape == ""


# ---- cost


@pytest.mark.parametrize(("size", "most_us"), [(2048, 30), (131_072, 400)])
def test_a_look_costs_microseconds(size: int, most_us: int) -> None:
    """The budget is 4 and 60 µs (tests/bench/dialects_bench.py); here only an order of magnitude is held."""
    content = (PROSE * (size // len(PROSE) + 1))[:size]
    body = json.dumps({"model": "m", "messages": [said("system", "Be brief."), said("user", content)]})
    call = read(BY_NAME["chat"], body.encode(), RULES)
    took = min(timeit.repeat(lambda: look(call, 64, DOMAIN), number=20, repeat=10)) / 20
    assert took * 1e6 < most_us


@pytest.mark.parametrize(
    ("messages", "counted"),
    [
        ([said("user", "Say hi.")], (1, 0)),
        ([said("system", "Be {brief}."), said("user", 'Say "hi" to {"role": "user"}.')], (2, 0)),
        ([said("user", "a"), said("assistant", "b"), said("user", "c")], (3, 0)),
        (
            [said("user", [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}])],
            (1, 1),
        ),
        ([{"content": "a", "role": "user"}], (1, 0)),
        ([said("user", "role, " + '"' * 100 + "type")], (1, 0)),
    ],
)
def test_messages_and_media_are_counted_however_they_are_written(messages: Any, counted: tuple[int, int]) -> None:
    for separators in (None, (",", ":")):
        text = json.dumps({"model": "m", "messages": messages}, separators=separators)
        assert parts(read(BY_NAME["chat"], text.encode(), RULES)) == counted


@pytest.mark.parametrize("given_", ["Say hi.", "role", 'a "role" {of "type"'])
def test_a_prompt_that_is_text_has_no_messages(given_: str) -> None:
    text = json.dumps({"model": "m", "prompt": given_})
    assert parts(read(BY_NAME["completions"], text.encode(), RULES)) == (0, 0)
