"""What there is to look at in a body, by the names of its fields alone: worked out once for each list of names.

Clients send the same few fields again and again. Only lists of names that the tables know are kept, and only so many.
"""

from dataclasses import dataclass
from typing import Final

from gateway.dialects.fields import BULKY, TABLES, Group, Media, Table

MOST_PLANS: Final = 1024
_COPIES: Final = ("n", "best_of")

# Fields that may fix the form of an answer, that always do, that force a tool, and that say how long to think.
FORMATS: Final = ("response_format", "text", "output_config")
GRAMMARS: Final = (
    "structured_outputs", "json_schema", "regex", "ebnf",
    "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip
TOOLS: Final = ("tool_choice", "function_call")
EFFORTS: Final = ("reasoning_effort", "reasoning", "thinking", "chat_template_kwargs")
_SHAPES: Final = frozenset((*FORMATS, *GRAMMARS, *TOOLS, *EFFORTS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Names of the fields that are there, by what is to be done about them; in the order of the table or the client."""

    table: Table
    odd: tuple[str, ...]  # do not simply pass
    missing: tuple[str, ...]  # of these one had to be there
    opens: tuple[tuple[str, bytes], ...]
    bulky: tuple[str, ...]
    media: tuple[tuple[str, Media], ...]
    prompt: tuple[str, ...]
    rendered: tuple[str, ...]
    caps: tuple[str, ...]
    batch: tuple[str, ...]
    copies: tuple[str, ...]
    shapes: tuple[str, ...]  # may form the answer, and may have been removed


_plans: Final[dict[tuple[str, tuple[str, ...]], Plan]] = {}


def plan_of(route: str, names: tuple[str, ...]) -> Plan:
    """The plan for a body with fields of these names, in this order."""
    found = _plans.get((route, names))
    if found is not None:
        return found
    table = TABLES[route]
    plan = _work_out(table, names)
    if len(_plans) < MOST_PLANS and table.groups.keys() >= set(plan.odd):
        _plans[route, names] = plan
    return plan


def _work_out(table: Table, names: tuple[str, ...]) -> Plan:
    stays = {name for name in names if name in table.plain or table.groups.get(name) is Group.LIMITED}
    return Plan(
        table=table,
        odd=tuple(name for name in names if name not in table.plain),
        missing=next((asked for asked in table.required if stays.isdisjoint(asked)), ()),
        opens=tuple((name, opens) for name, opens in table.opens.items() if name in stays),
        bulky=tuple(name for name in names if name in BULKY and name in stays),
        media=tuple((name, kind) for name, kind in table.media.items() if name in stays),
        prompt=tuple(name for name in table.prompt if name in stays),
        rendered=tuple(name for name in table.rendered if name in stays),
        caps=tuple(name for name in table.caps if name in stays),
        batch=tuple(name for name in table.batch if name in stays),
        copies=tuple(name for name in _COPIES if name in stays),
        shapes=tuple(name for name in names if name in _SHAPES),
    )
