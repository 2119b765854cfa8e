"""What was seen of answers, per tenant: a tree from the tenant's model down to the head of the prompt.

- A node counts answers by bucket, ended ones and cut ones apart. Recent ones count more: the unit that an answer adds
  grows so that it doubles in 500 answers.
- What a node shows is a blend: its parent's distribution counts as 20 answers beside its own. A root's parent is a
  prior.
- A cut answer says only that it would have been longer. It counts among those that were still going at its bucket and
  then leaves (the estimate of Kaplan and Meier), which hands its unit to the buckets above as the rest of the blend has
  them. Otherwise impatient clients would teach that answers are short.
- What is shown is renewed with each of a node's answers up to the 16th, then every 16, and from 256 on, when so many are
  one in eleven of what counts, every 64. The first changes nothing: it would weigh a twentieth, and heads that never come
  again are many.
- Bounds: the node that a tenant used least recently goes first; above the bound of all tenants together that of the
  tenant that has been silent for longest.
"""

from array import array
from typing import Final

from policies.length.distribution import BUCKETS, capped, lognormal, summary
from policies.types import Prediction

HALF_LIFE_ANSWERS: Final = 500
GROWTH: Final = 2 ** (1 / HALF_LIFE_ANSWERS)
UNIT_LIMIT: Final = 1e6
RENEW_ANSWERS: Final = 16
RENEW_OFTEN_BELOW: Final = 256
RENEW_LATER_ANSWERS: Final = 64
PARENT_ANSWERS: Final = 20
TENANT_NODES: Final = 512
NODES: Final = 10_000  # at up to 1.6 KiB each within the 16 MiB of scheduling.md 3

# (model, is forced) -> (model, route, shape) -> (model, route, shape, head)
Key = tuple[str | int, ...]


class Node:
    """Answers of one key. `cdf` and `shown` are of the last renewal, `unit` is what the next answer adds."""

    __slots__ = ("_limit_tokens", "_within", "cdf", "cut", "ended", "learned", "shown", "unit")

    def __init__(self, cdf: "array[float]", shown: Prediction) -> None:
        self.ended = array("f", bytes(4 * BUCKETS))
        self.cut = array("f", bytes(4 * BUCKETS))
        self.learned = 0
        self.unit = 1.0
        self.cdf = cdf
        self.shown = shown
        self._limit_tokens = 0  # of the last question, 0: since the renewal there was none
        self._within = shown  # the answer to it

    def within(self, limit_tokens: int) -> Prediction:
        """What is shown, of answers that are cut at `limit_tokens`; one service asks with the same limit each time.

        Where the p99 is below the limit, the mean is that of uncut answers.
        """
        if limit_tokens != self._limit_tokens:
            shown = self.shown
            fits = shown.p99 <= limit_tokens and shown.mean <= limit_tokens
            self._within = shown if fits else capped(self.cdf, shown, limit_tokens)
            self._limit_tokens = limit_tokens
        return self._within

    def learn(self, bucket: int, natural: bool, parent: "Node") -> None:
        """Count one answer that ended (or was cut: not `natural`) in `bucket`."""
        unit = self.unit
        (self.ended if natural else self.cut)[bucket] += unit
        self.unit = unit * GROWTH
        self.learned = learned = self.learned + 1
        if learned % (RENEW_ANSWERS if learned < RENEW_OFTEN_BELOW else RENEW_LATER_ANSWERS) and (
            learned >= RENEW_ANSWERS or learned == 1
        ):
            return
        self._renew(parent.cdf)

    def _renew(self, parent: "array[float]") -> None:
        if self.unit > UNIT_LIMIT:
            self._rescale()
        self.cdf = array("f", self._blend(parent))
        self.shown = summary(self.cdf)
        self._limit_tokens = 0

    def _rescale(self) -> None:
        scale = 1 / self.unit
        self.ended = array("f", [count * scale for count in self.ended])
        self.cut = array("f", [count * scale for count in self.cut])
        self.unit = 1.0

    def _blend(self, parent: "array[float]") -> list[float]:
        """The CDF of own answers and of 20 that are distributed as the parent's."""
        weight = PARENT_ANSWERS * self.unit
        going = sum(self.ended, weight) + sum(self.cut, 0.0)
        passed = before = 0.0
        blend = [0.0]
        for ended, cut, share in zip(self.ended, self.cut, parent[1:-1], strict=False):
            ended += weight * (share - before)
            before = share
            passed += (1.0 - passed) * ended / going if ended < going else 1.0 - passed
            going -= ended + cut
            blend.append(passed)
        blend.append(1.0)
        return blend


def _prior(median_tokens: float) -> Node:
    cdf = array("f", lognormal(median_tokens, 1.1))
    return Node(cdf, summary(cdf))


# what is believed of an answer before any was seen: of free text, and of one that a schema or a forced tool shapes
FREE: Final = _prior(150.0)
FORCED: Final = _prior(40.0)


class History:
    """The trees of all tenants; nothing that one tenant's answers taught is read for another."""

    __slots__ = ("count", "tenants")

    def __init__(self) -> None:
        self.tenants: dict[str, dict[Key, Node]] = {}  # least recently used first, both
        self.count = 0

    def find(self, tenant: str, keys: tuple[Key, ...], root: Node) -> Node:
        """The node of the last of `keys` that has one, or `root`."""
        nodes = self.tenants.get(tenant)
        if nodes is not None:
            for key in reversed(keys):
                node = nodes.get(key)
                if node is not None:
                    return node
        return root

    def learn(self, tenant: str, keys: tuple[Key, ...], root: Node, answer: tuple[int, bool]) -> None:
        """Count one answer (bucket, whether it ended by itself) at each of `keys`, general to specific."""
        nodes = self.tenants.pop(tenant, None)
        if nodes is None:
            nodes = {}
        self.tenants[tenant] = nodes
        bucket, natural = answer
        parent = root
        for key in keys:
            node = nodes.pop(key, None)
            if node is None:
                node = Node(parent.cdf, parent.shown)
                self.count += 1
            nodes[key] = node
            node.learn(bucket, natural, parent)
            parent = node
        while len(nodes) > TENANT_NODES:
            self._forget(tenant)
        if self.count > NODES:
            self.trim()

    def trim(self) -> None:
        """No more than may be."""
        while self.count > NODES:
            self._forget(next(iter(self.tenants)))

    def _forget(self, tenant: str) -> None:
        nodes = self.tenants[tenant]
        del nodes[next(iter(nodes))]
        self.count -= 1
        if not nodes:
            del self.tenants[tenant]
