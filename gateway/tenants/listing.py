"""Every key of a configuration as an operator sees it: whose it is, whether it opens anything, when it last did."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.config import Config
from gateway.tenants.identify import Tenants


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """`state`: active, blocked, expired or disabled (its tenant is). `blocked_by`: file or operator, where the file says
    nothing of it. Times are Unix times; `last_use_s`: when the last
    request with it came, None where none has since the start."""

    id: str
    tenant: str
    name: str
    state: str
    blocked_by: str | None
    expires_s: float | None
    last_use_s: float | None


def listing(config: Config, tenants: Tenants) -> Iterator[KeyView]:
    """In the order of the files."""
    now_s, ahead_s, blocked = time.time(), time.time() - time.monotonic(), tenants.blocked()
    for tenant in (config.tenants or {}).values():
        for key in tenant.keys:
            expires_s = key.expires.timestamp() if key.expires is not None else None
            used_s = tenants.used_s.get(key.id)
            by = "file" if key.state == "blocked" else "operator" if key.id in blocked else None
            state = "blocked" if by else "active"
            if tenant.state == "disabled":
                state = "disabled"
            elif state == "active" and expires_s is not None and expires_s <= now_s:
                state = "expired"
            yield KeyView(
                id=key.id,
                tenant=tenant.id,
                name=key.name,
                state=state,
                blocked_by=by,
                expires_s=expires_s,
                last_use_s=used_s + ahead_s if used_s is not None else None,
            )
