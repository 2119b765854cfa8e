"""What every mapping of the file has in common, and the kinds of text that several of them use."""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from gateway.config.kinds import Text

Name = Annotated[str, Text("[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name (letters, digits, '.', '_', '-'; at most 64)")]
ModelName = Annotated[str, Text(r"(?!.*\$\{)[!-~]{1,256}", "a model name (1 to 256 printable characters, no space)")]
FilePath = Annotated[str, Text(r"(?!.*\$\{)[^\x00-\x1f]{1,4096}", "a file path")]


RESTART: JsonDict = {"x-restart": True}  # of a field whose changed value only a restart can take over


class Section(BaseModel):
    """A mapping of the file. Unknown keys are errors; nothing changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


S = TypeVar("S", bound=Section)


def all_defaults(section: type[S]) -> S:
    """The field of a section that may be left out: it is there then, with all its defaults."""
    field: S = Field(default_factory=section)
    return field


def not_empty(value: object) -> object:
    """For `BeforeValidator`. Pydantic's own bound counts only the items without errors."""
    if value == () or value == {}:
        raise ValueError("must not be empty")
    return value


def several(value: object) -> object:
    """For `BeforeValidator`: two items and more."""
    if isinstance(value, tuple) and len(value) < 2:
        raise ValueError("must name two or more")
    return value
