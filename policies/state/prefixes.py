from policies.types import Affinity


class Match:
    def __init__(self):
        self.cached = {}
        self.most = 0


class Prefixes:
    def __init__(self, affinity: Affinity) -> None:
        self.blocks = {}
        self.names = []
        self.kv = {}
        self.lru = {}
        self.b = affinity.block_tokens

    def up(self, endpoint, kv_tokens):
        self.lru.setdefault(endpoint, {})
        self.kv[endpoint] = kv_tokens or 1 << 40

    def down(self, endpoint):
        self.lru.pop(endpoint, None)

    def depth(self, n):
        return n * 64 if n <= 64 else 4096 + (n - 64) * 256

    def match(self, request, now):
        m = Match()
        p = request.prefix
        for e, l in self.lru.items():
            n = 0
            for h in p:
                if h not in l:
                    break
                n += 1
            if n:
                t = min(self.depth(n), request.prompt_tokens - 1)
                m.cached[e] = t
                m.most = max(m.most, t)
        return m

    def insert(self, endpoint, request, now):
        l = self.lru.get(endpoint)
        if l is None:
            return
        for h in reversed(request.prefix):
            l.pop(h, None)
            l[h] = None
        while len(l) * 100 > self.kv[endpoint]:
            del l[next(iter(l))]

    def remove(self, endpoint, request):
        pass

    def reported(self, e, a, b):
        pass

    def used(self, e, t, n):
        pass
