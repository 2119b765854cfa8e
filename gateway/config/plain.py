"""Looking into plain values of any shape: what is of the wrong type is passed over, for its own field says so."""

from collections.abc import Iterator

from gateway.config.document import Plain

Mapping = dict[str, Plain]


def mapping(value: Plain) -> Mapping:
    """A mapping; of anything else, nothing."""
    return value if isinstance(value, dict) else {}


def items(value: Plain) -> Iterator[tuple[int, Mapping]]:
    """The mappings in a list, with their places."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                yield index, item


def texts(value: Plain) -> list[str]:
    """The texts in a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, tuple) else []
