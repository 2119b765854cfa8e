"""History and ratios as JSON text and back, in the order in which they would be forgotten.

A node is an object: its key, how many answers taught it, the unit of the next one, and `state`: its three rows of
32-bit floats (ended, cut, cdf), exact, in base64 (text would be longer and slower). `p50` and `p90` are for the reader.
"""

import json
import math
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from policies.length.distribution import BUCKETS, summary
from policies.length.history import GROWTH, NODES, TENANT_NODES, UNIT_LIMIT, History, Key, Node
from policies.length.ratios import LEAST_BYTES, MOST_BYTES, RATIOS, Ratios

VERSION = 1
PIECE_NODES = 100

_UNIT_MOST = UNIT_LIMIT * GROWTH**16


def written(history: History, ratios: Ratios) -> Iterator[str]:
    """The text of both, in pieces of a millisecond or so. What is learned between two of them is in it, or not yet."""
    known = [[*key, value] for key, value in ratios.known.items()]
    head = json.dumps({"version": VERSION, "byte_order": sys.byteorder, "bytes_per_token": known})
    yield head[:-1] + ', "tenants": {'
    comma = ""
    for tenant in tuple(history.tenants):
        nodes = tuple(history.tenants.get(tenant, {}).items())
        if nodes:
            yield f"{comma}{json.dumps(tenant)}: ["
            for start in range(0, len(nodes), PIECE_NODES):
                plain = [_plain(key, node) for key, node in nodes[start : start + PIECE_NODES]]
                yield (", " if start else "") + json.dumps(plain)[1:-1]
            yield "]"
            comma = ", "
    yield "}}"


def read(text: str) -> tuple[History, Ratios]:
    """What `written` wrote; raises ValueError that says what is wrong with `text`."""
    try:
        plain = json.loads(text)
        made_as = (plain["version"], plain["byte_order"])
        if made_as != (VERSION, sys.byteorder):
            raise ValueError(f"version and byte order {made_as}, not {(VERSION, sys.byteorder)}")
        return _history(plain["tenants"]), _ratios(plain["bytes_per_token"])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"lengths are not as expected: {type(error).__name__}: {error}") from None
    except ValueError as error:
        raise ValueError(f"lengths are not as expected: {error}") from None


def _plain(key: Key, node: Node) -> dict[str, object]:
    return {
        "key": key,
        "learned": node.learned,
        "p50": round(node.shown.p50),
        "p90": round(node.shown.p90),
        "unit": node.unit,
        "state": b64encode(node.ended.tobytes() + node.cut.tobytes() + node.cdf.tobytes()).decode(),
    }


def _history(tenants: dict[str, list[dict[str, Any]]]) -> History:
    history = History()
    for tenant, plain in tenants.items():
        nodes = {_key(each["key"]): _node(each) for each in plain}
        if len(nodes) != len(plain) or not 0 < len(nodes) <= TENANT_NODES:
            raise ValueError(f"tenant {tenant!r}: {len(plain)} nodes, or two with one key")
        history.tenants[tenant] = nodes
        history.count += len(nodes)
    if history.count > 2 * NODES:
        raise ValueError(f"{history.count} nodes, more than {NODES}")
    history.trim()  # a few may have come while it was written
    return history


def _key(plain: list[str | int]) -> Key:
    kinds = tuple(type(each) for each in plain)
    if kinds not in ((str, bool), (str, str, str), (str, str, str, int)):
        raise ValueError(f"key {plain!r}")
    return tuple(plain)


def _node(plain: dict[str, Any]) -> Node:
    floats = array("f", b64decode(plain["state"], validate=True))
    cdf = floats[2 * BUCKETS :]
    learned, unit = plain["learned"], plain["unit"]
    if not (len(cdf) == BUCKETS + 1 and all(map(math.isfinite, floats)) and min(floats) >= 0.0):
        raise ValueError(f"node {plain['key']!r}: state")
    if not (type(learned) is int and learned > 0 and type(unit) is float and 1.0 <= unit <= _UNIT_MOST):
        raise ValueError(f"node {plain['key']!r}: learned {learned!r}, unit {unit!r}")
    if cdf[0] != 0.0 or cdf[-1] != 1.0 or any(after < before for before, after in pairwise(cdf)):
        raise ValueError(f"node {plain['key']!r}: cdf")
    node = Node(cdf, summary(cdf))
    node.ended, node.cut = floats[:BUCKETS], floats[BUCKETS : 2 * BUCKETS]
    node.learned, node.unit = learned, unit
    return node


def _ratios(plain: list[list[Any]]) -> Ratios:
    ratios = Ratios()
    for tenant, model, kind, value in plain:
        if not (type(tenant) is type(model) is type(kind) is str and LEAST_BYTES <= value <= MOST_BYTES):
            raise ValueError(f"bytes per token of {tenant!r}, {model!r}, {kind!r}: {value!r}")
        ratios.known[tenant, model, kind] = float(value)
    if len(ratios.known) > RATIOS:
        raise ValueError(f"{len(ratios.known)} ratios, more than {RATIOS}")
    return ratios
