"""Tells a running gateway through its admin listener, for commands."""

import http.client
import ipaddress

ANSWER_S = 10.0


def tell_to_block(admin: tuple[str, int], key: str, token: str) -> str:
    """Have it block a key at once. What went wrong; empty: nothing did."""
    host, port = admin
    connection = http.client.HTTPConnection(_reachable(host), port, timeout=ANSWER_S)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("POST", f"/admin/v1/keys/{key}/block", headers=headers)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port}: {error}"
    finally:
        connection.close()
    if status == 401 and not token:
        return "it asks for a token: set FOREBAY_ADMIN_TOKEN"
    return "" if status == 204 else f"it answered {status}"


def _reachable(host: str) -> str:
    """Where a listener on this address can be reached from this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "::1" if address.version == 6 else "127.0.0.1"
