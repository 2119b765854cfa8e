"""Tells a running gateway through its admin listener, for commands."""

import http.client
import ipaddress
import json

ANSWER_S = 10.0
LOOK_S = 2.0  # for what is only nice to know


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


def seen_there(admin: tuple[str, int], token: str) -> dict[str, tuple[str | None, bool]] | None:
    """When each key was last used, and whether an operator has blocked it, by its id, as a running gateway tells; None where
    none does."""
    host, port = admin
    connection = http.client.HTTPConnection(_reachable(host), port, timeout=LOOK_S)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request("GET", "/admin/v1/keys", headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            return None
        keys = json.loads(answer.read())["keys"]
        return {each["id"]: (each["last_use"], each.get("blocked_by") == "operator") for each in keys}
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None  # something else may have the port
    finally:
        connection.close()


def _reachable(host: str) -> str:
    """Where a listener on this address can be reached from this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "::1" if address.version == 6 else "127.0.0.1"
