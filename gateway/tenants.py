"""Who is asking. Until keys exist there is one tenant, `default`, and a presented key is ignored and never forwarded.

The salt keeps the prefix caches of isolation domains apart inside an engine (vllm#39082 tells another tenant's prompt
by its timing). Parts are length-prefixed: ("org_1", "2345") and ("org_12345", "") must not give one salt.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass

from gateway.dialects.call import FieldRules
from gateway.errors import GatewayError
from gateway.http.head import Head
from policies.decisions import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant: what it may use, and the salt of its prefix cache (43 characters of unpadded base64url)."""

    id: str
    salt: str
    rules: FieldRules
    routes: frozenset[str]


class Tenants:
    """Finds the tenant of a request by its credential."""

    def __init__(self, tenant: Tenant) -> None:
        self._default = tenant

    def identify(self, head: Head) -> Tenant:
        """The tenant of a head. Raises GatewayError (401) for two credentials that contradict each other."""
        bearer, key = head.fields.get(b"authorization"), head.fields.get(b"x-api-key")
        if bearer is not None and key is not None and bearer.partition(b" ")[2].strip() != key:
            raise GatewayError(Reason.BAD_KEY, "Invalid API key.")
        return self._default


def cache_salt(secret: bytes, partition: str, kind: str, name: str) -> str:
    """The salt of one isolation domain (tenancy.md 7)."""
    parts = (part.encode() for part in ("forebay-1", partition, kind, name))
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return base64.urlsafe_b64encode(hmac.new(secret, message, hashlib.sha256).digest()).rstrip(b"=").decode()
