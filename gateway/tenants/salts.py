"""The salt that keeps the prefix caches of isolation domains apart inside an engine.

vllm#39082 tells another tenant's prompt by its timing. Parts are length-prefixed: ("org_1", "2345") and
("org_12345", "") must not give one salt.
"""

import base64
import hashlib
import hmac


def cache_salt(secret: bytes, partition: str, kind: str, name: str) -> str:
    """The salt of one isolation domain (tenancy.md 7). `kind`: tenant, key or group."""
    parts = (part.encode() for part in ("forebay-1", partition, kind, name))
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return base64.urlsafe_b64encode(hmac.new(secret, message, hashlib.sha256).digest()).rstrip(b"=").decode()
