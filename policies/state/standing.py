"""How far the limits of a caller are used, as it is told with each answer.

Two or three of these are made for an answer and each field is read once or twice, so they are plain classes: compiled, that costs a
tenth of what the field of a Struct does (docs/adr/0013-compiled-policies.md).
"""


class Level:
    """How far a limit is used: `left` of `limit`, in requests or cost units, all of it after `reset_s`."""

    __slots__ = ("left", "limit", "reset_s", "scope")

    def __init__(self, scope: str, limit: int, left: int, reset_s: float) -> None:
        self.scope = scope
        self.limit = limit
        self.left = left
        self.reset_s = reset_s


class Standing:
    """The tightest limit of each metric, and the budgets of which so much is used that the client is told.

    `lasting`: nothing is in use, and whoever is told that again is given this very object again.
    """

    __slots__ = ("budgets", "lasting", "levels")

    def __init__(self, levels: dict[str, Level], budgets: tuple[str, ...] = (), *, lasting: bool = False) -> None:
        self.levels = levels
        self.budgets = budgets
        self.lasting = lasting
