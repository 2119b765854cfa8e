"""One recipe, four APIs: what the engine counts is what was planned, and what is said again is said in the same bytes."""

import json
from typing import Any, get_args

import pytest

from loadgen.engine_server import ask, tokens
from loadgen.workload.bodies import Api, Terms, answer_tokens, body
from loadgen.workload.chain import chain, rendered
from loadgen.workload.dialog import Control, marker, messages
from loadgen.workload.planned import Planned
from loadgen.workload.prompts import Block, Prose, Role, prompt_tokens
from loadgen.workload.results import WAYS, document

PROSE = Prose("salt")
SIMULATED = ("chat", "completions", "messages")


def block(role: Role, size: int, number: int = 0, noise: str = "") -> Block:
    namespace = {"tool": "result/t", "call": "call/t"}.get(role, f"t/{role}")
    return Block(namespace=namespace, id=number, tokens=size, role=role, noise=noise)


def planned(*blocks: Block, **changes: Any) -> Planned:
    values = {"id": 0, "t": 0.0, "tenant": "chat", "priority": "batch", "cls": "all", "measured": True}
    return Planned(**{**values, "input_tokens": prompt_tokens(blocks), "output_tokens": 7, "blocks": blocks, **changes})


RECIPES = {
    "a question": [block("user", 40)],
    "a short one": [block("user", 6)],
    "many parts": [block("system", 300), block("user", 5, 1), block("user", 4099, 2)],
    "a conversation": [
        block("system", 31),
        block("user", 50, 1),
        block("assistant", 33),
        block("user", 20, 2),
        block("assistant", 1, 5),
        block("user", 17, 3),
    ],
    "a tool loop": [
        block("tools", 100),
        block("system", 64),
        block("user", 8),
        block("call", 8),
        block("tool", 120, 7),
        block("assistant", 12),
        block("call", 8),
        block("tool", 3, 8),
        block("user", 90, 9),
    ],
    "a tool result last": [block("tools", 60), block("user", 30), block("call", 40), block("tool", 500)],
}


@pytest.mark.parametrize("api", SIMULATED)
@pytest.mark.parametrize("name", RECIPES)
def test_the_engine_counts_what_was_planned_and_obeys_the_last_marker(api: Api, name: str) -> None:
    recipe = RECIPES[name]
    if api == "completions":
        recipe = [one for one in recipe if one.role != "tools"]
    one = planned(*recipe, output_tokens=137, reasoning_tokens=40)
    asked = ask.read(api, body(Terms(model="m", api=api), one, PROSE), True)
    assert tokens.count(asked.prompts[0]) == one.input_tokens
    assert (asked.marker.output, asked.marker.think) == (137, 40)
    assert asked.stream and (asked.include_usage or api == "messages")


@pytest.mark.parametrize("control", [one for one in get_args(Control) if one != "marker"])
@pytest.mark.parametrize("api", SIMULATED)
def test_without_markers_the_prompt_is_as_long(api: Api, control: Control) -> None:
    one = planned(*RECIPES["a conversation"], max_tokens=2048)
    asked = ask.read(api, body(Terms(model="m", api=api, control=control), one, PROSE), False)
    assert tokens.count(asked.prompts[0]) == one.input_tokens
    assert asked.max_tokens == (2048 if control == "none" else 7)
    assert (asked.ignore_eos, asked.min_tokens) == (control == "ignore_eos", 7 if control == "min_tokens" else 0)
    assert b"[[fb" not in asked.prompts[0]


@pytest.mark.parametrize(
    ("control", "planned_cap", "most", "least"),
    [
        ("marker", 5, 5, 0),
        ("none", 5, 5, 0),
        ("ignore_eos", 5, 5, 0),
        ("min_tokens", 5, 5, 5),
        ("ignore_eos", 9, 7, 0),
        ("min_tokens", 9, 7, 7),
        ("ignore_eos", None, 7, 0),
        ("min_tokens", None, 7, 7),
    ],
)
def test_no_control_of_lengths_asks_for_more_than_the_cap(
    control: Control, planned_cap: int | None, most: int, least: int
) -> None:
    """An answer of 7 tokens is planned."""
    one = planned(*RECIPES["a conversation"], max_tokens=planned_cap)
    asked = ask.read("chat", body(Terms(model="m", control=control), one, PROSE), False)
    assert (asked.max_tokens, asked.min_tokens) == (most, least)


def test_nothing_is_sent_as_the_most_tokens_where_the_scenario_says_nothing() -> None:
    one = planned(block("user", 30), stream=False)
    chat = json.loads(body(Terms(model="m"), one, PROSE))
    assert chat.keys() == {"model", "messages"}
    assert json.loads(body(Terms(model="m", api="messages"), one, PROSE))["max_tokens"] == 4096  # it has to be there


@pytest.mark.parametrize(
    ("api", "control", "max_tokens", "expected"),
    [
        ("messages", "marker", None, 4096),
        ("messages", "none", None, 4096),
        ("messages", "ignore_eos", None, 5000),
        ("messages", "min_tokens", None, 5000),
        ("messages", "marker", 4500, 4500),
        ("messages", "marker", 64, 64),
        ("chat", "marker", None, 5000),
        ("chat", "marker", 64, 64),
    ],
)
def test_an_answer_is_expected_as_long_as_the_cap_that_is_sent_lets_it_be(
    api: Api, control: Control, max_tokens: int | None, expected: int
) -> None:
    one = planned(block("user", 30), max_tokens=max_tokens, output_tokens=5000)
    terms = Terms(model="m", api=api, control=control)
    assert answer_tokens(terms, one) == expected
    assert json.loads(body(terms, one, PROSE)).get("max_tokens", 5000) == expected


def test_a_responses_body_has_items_for_messages_calls_and_results() -> None:
    one = planned(*RECIPES["a tool loop"], max_tokens=64)
    made = json.loads(body(Terms(model="m", api="responses"), one, PROSE))
    assert (made["store"], made["stream"], made["max_output_tokens"]) == (False, True, 64)
    kinds = [item.get("type", item.get("role")) for item in made["input"]]
    assert kinds == [
        *("system", "user", "function_call", "function_call_output"),
        *("assistant", "function_call", "function_call_output", "user"),
    ]
    for call, result in zip(made["input"], made["input"][1:], strict=False):
        if call.get("type") == "function_call":
            assert result["call_id"] == call["call_id"]
    assert made["tools"][0].keys() == {"type", "name", "description", "parameters"}
    assert len(json.dumps(made["tools"], separators=(",", ":"))) == 400


def test_a_call_belongs_to_the_message_of_its_assistant() -> None:
    made = json.loads(body(Terms(model="m"), planned(*RECIPES["a tool loop"]), PROSE))["messages"]
    assert [one["role"] for one in made] == ["system", "user", "assistant", "tool", "assistant", "tool", "user"]
    first, second = made[2], made[4]
    assert first["content"] is None and len(second["content"]) == 48
    assert made[3]["tool_call_id"] == first["tool_calls"][0]["id"] != second["tool_calls"][0]["id"]
    assert made[5]["tool_call_id"] == second["tool_calls"][0]["id"]
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]).keys() == {"q"}


@pytest.mark.parametrize("api", SIMULATED)
def test_a_later_turn_begins_with_the_bytes_of_the_one_before_and_its_answer(api: Api) -> None:
    recipe = RECIPES["a conversation"]
    first, second = planned(*recipe[:2], output_tokens=33), planned(*recipe[:4], output_tokens=1)
    before, after = (
        ask.read(api, body(Terms(model="m", api=api), one, PROSE), True).prompts[0] for one in (first, second)
    )
    assert after.startswith(before)


def test_answers_come_again_as_they_were_received() -> None:
    said = [
        Block(namespace="answer/chat/0/1", id=turn // 2, tokens=9, role="assistant")
        if turn % 2
        else block("user", 20, turn)
        for turn in range(5)
    ]
    texts = [one.text for one in messages(PROSE, planned(*said), "none", {0: "received"})]
    assert texts[1] == "received"
    assert len(texts[3]) == 36  # this one failed: planned words
    others = [block("assistant", 9)]
    assert messages(PROSE, planned(*others), "none", {0: "received"})[0].text != "received"


def test_markers_change_no_other_byte() -> None:
    one = planned(
        block("user", 20), block("call", 8), block("tool", 90), block("call", 8), block("tool", 70), block("user", 30)
    )
    marked, plain = (messages(PROSE, one, control) for control in ("marker", "none"))
    assert marked[:-1] == plain[:-1]
    assert marked[-1].text == plain[-1].text[: -len(marker(7))] + marker(7)
    for text in (one.text for one in marked if one.role == "tool"):
        assert json.loads(text)


# ---- words per token


@pytest.mark.parametrize("scale", [0.5, 0.75, 1.3, 2])
def test_a_block_has_as_many_words_as_the_tokenizer_takes(scale: float) -> None:
    prose = Prose("salt", words_per_token=scale)
    for size in (1, 40, 4001):
        assert len(prose.text(block("user", size))) == 4 * max(1, round(size * scale))
    long, short = (prose.text(block("user", size)) for size in (512, 300))
    assert long.startswith(short)
    total = sum(len(one.text) for one in messages(prose, planned(*RECIPES["a conversation"]), "none"))
    words = sum(one.tokens for one in RECIPES["a conversation"]) * scale
    assert total / 4 == pytest.approx(words, abs=4)


# ---- results of tools


def canonical(text: str) -> str:
    fields = json.loads(text)
    return json.dumps({name: fields[name] for name in ("result", "text")}, sort_keys=True)


@pytest.mark.parametrize("kind", WAYS)
def test_noise_changes_the_bytes_within_an_engine_block_and_not_the_meaning(kind: str) -> None:
    ways = [f"{kind}/{number}" for number in range(1, min(WAYS[kind], 200))]
    texts = [PROSE.text(block("tool", 80, noise=noise)) for noise in ("", *ways)]
    assert {len(text) for text in texts} == {320}
    assert len({canonical(text) for text in texts}) == 1
    assert len({text[:64] for text in texts}) == len(texts)
    chains = [chain(rendered([block("tool", 80, noise=noise)]), 16) for noise in ("", *ways)]
    assert len({hashes[0] for hashes in chains}) == len(texts)


@pytest.mark.parametrize("size", [4, 60, 120, 131, 132, 400, 40_000])
def test_a_result_has_its_size_and_is_json_where_there_is_room(size: int) -> None:
    text = document("0123456789abcde", "the and for " * 4000, size, "")
    assert len(text) == size
    assert size < 132 or json.loads(text)["result"] == "0123456789abcde"
