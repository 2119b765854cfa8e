"""What is decoded of a whole answer of an engine. (In a module of its own: a class that is compiled keeps only the outer
type of an annotation, and the decoder needs the inner one.)"""

from typing import Annotated

import msgspec

from gateway.dialects.facts import MOST_TOKENS

Count = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class Choice(msgspec.Struct, gc=False):
    finish_reason: object = None


class Answer(msgspec.Struct, gc=False):
    """Only what is read of an answer: the texts are skipped, not decoded."""

    choices: list[Choice] = []
    usage: object = None
    stop_reason: object = None


class Details(msgspec.Struct, gc=False):
    cached_tokens: Count | None = None


class PlainUsage(msgspec.Struct, gc=False):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: Details | None = None


class PlainAnswer(msgspec.Struct, gc=False):
    """The usual shape of an OpenAI answer; whatever does not fit it is read the loose way."""

    choices: list[Choice] = []
    usage: PlainUsage | None = None
