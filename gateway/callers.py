"""Who asks, once a credential is known: what this caller may use and how urgent its requests may be.

A Caller never changes. It belongs to one configuration; a request keeps the one it began with.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.dialects.call import Call, FieldRules
from gateway.errors import GatewayError
from policies.decisions import Reason
from policies.types import Band


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model as this gateway serves it, to one tenant. `most_asked`: for more tokens of answer nobody may ask."""

    name: str
    served_as: str
    routes: frozenset[str]
    context_tokens: int
    most_prompt_bytes: int  # of a prompt that may fit
    max_output_tokens: int
    block_tokens: int  # of the chain by which its prompts are compared
    most_asked: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A key of a tenant, or everybody where no key is asked for (`key` empty).

    `partition`: whose endpoints it uses, and no others. `salt`: of its prefix caches, 43 characters of unpadded base64url. `models`: by every name it may use for them.
    `band`: its class where it asks for none; `ceiling`: the most urgent one it gets. `expires_s`: Unix time.
    """

    tenant: str
    key: str
    partition: str
    salt: str
    rules: FieldRules
    routes: frozenset[str]
    models: Mapping[str, ServedModel]
    band: str
    ceiling: str
    expires_s: float | None = None

    def model(self, call: Call) -> ServedModel:
        """The model a call names. Raises GatewayError; unknown, not granted and not for this route look the same. More
        tokens than may be asked for are refused too."""
        model = self.models.get(call.model)
        if model is None or call.route.name not in model.routes:
            raise GatewayError(Reason.MODEL_UNKNOWN, param="model")
        if model.most_asked is not None:
            _check_wish(call, model.most_asked)
        return model


def _check_wish(call: Call, most_tokens: int) -> None:
    asked = call.max_output_tokens
    if asked is not None and asked > most_tokens:
        message = f"At most {most_tokens} output tokens may be asked for."
        raise GatewayError(Reason.MAX_TOKENS_ABOVE_LIMIT, message, param=call.plan.caps[0])


@dataclass(frozen=True, slots=True)
class Urgency:
    """The class a request gets. `clamped`: from what it asked for to what it got; `unknown`: it asked for none of ours."""

    band: str
    clamped: tuple[str, str] | None = None
    unknown: bool = False


def urgency(asked: bytes | None, caller: Caller, bands: Mapping[str, Band]) -> Urgency:
    """The less urgent of what was asked for and what the caller may have (tenancy.md 5)."""
    if asked is None:
        return Urgency(caller.band)
    name = asked.decode("ascii").strip().lower()
    if name not in bands:
        return Urgency(caller.band, unknown=True)
    if bands[name].rank < bands[caller.ceiling].rank:
        return Urgency(caller.ceiling, clamped=(name, caller.ceiling))
    return Urgency(name)
