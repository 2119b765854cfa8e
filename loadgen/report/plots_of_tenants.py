"""The plots of what is shared: tenants, cache, engines, and the client that all of them share."""

from loadgen.report import drawing as on
from loadgen.report.document import Report
from loadgen.report.drawing import FAINT, INK, SERIES, drawn, legend
from loadgen.report.run import BLOCK_S

MANY = 12


def fairness(report: Report, name: str) -> str:
    """Bars of service beside entitlement, J below."""
    tenants = sorted(report.fairness.tenants, key=lambda one: -one.service_share)[:MANY]
    if len(tenants) < 2:
        return ""
    slots = report.fairness.slots
    with drawn(name, rows=2, shared=False) as made:
        places = range(len(tenants))
        made.ax.bar(
            [at - 0.2 for at in places], [one.service_share for one in tenants], 0.38, color=SERIES[0], label="served"
        )
        made.ax.bar(
            [at + 0.2 for at in places], [one.entitled_share for one in tenants], 0.38, color=FAINT, label="by weight"
        )
        made.ax.set_xticks(list(places), [one.tenant for one in tenants])
        if len(tenants) > 5:
            made.ax.tick_params(axis="x", labelrotation=20)
        on.percents(made.ax, high=max(0.05, *(max(one.service_share, one.entitled_share) for one in tenants)) * 1.1)
        made.ax.grid(axis="x", visible=False)
        legend(made.ax)
        times = [slot.start_s + BLOCK_S / 2 for slot in slots]
        shares, needs = [slot.j_share for slot in slots], [slot.j_need for slot in slots]
        made.axes[1].plot(times, on.finite(needs), color=SERIES[1], marker=".", markersize=4, label="J need")
        if any(one is not None for one in shares):
            made.axes[1].plot(times, on.finite(shares), color=SERIES[2], marker=".", markersize=4, label="J share")
        made.axes[1].set_ylim(0, 1.04)
        on.seconds(made.axes[1])
        legend(made.axes[1])
    return made.text


def cached(report: Report, name: str) -> str:
    """Shares of each 10 s."""
    seconds = [second for second in report.timeline if second.prompt_tokens]
    if not any(second.cached_tokens or second.ideal_tokens for second in seconds):
        return ""
    size = int(BLOCK_S)
    groups = [report.timeline[first : first + size] for first in range(0, len(report.timeline), size)]
    groups = [group for group in groups if any(second.prompt_tokens for second in group)]
    with drawn(name) as made:
        times = [group[0].t_s + BLOCK_S / 2 for group in groups]
        asked = [sum(second.prompt_tokens for second in group) for group in groups]
        for field, colour, label in (("cached_tokens", SERIES[0], "found"), ("ideal_tokens", FAINT, "unlimited cache")):
            found = [sum(getattr(second, field) for second in group) for group in groups]
            shares = [one / of for one, of in zip(found, asked, strict=True)]
            made.ax.plot(times, shares, color=colour, label=label)
        on.percents(made.ax)
        on.seconds(made.ax)
        legend(made.ax)
    return made.text


def endpoints(report: Report, name: str) -> str:
    """A strip for each engine, the darker the more."""
    shown = [one for one in report.endpoints if one.timeline][:16]
    most = max((max(one.timeline) for one in shown), default=0)
    if not most:
        return ""
    with drawn(name, height_in=0.8 + 0.3 * len(shown)) as made:
        for place, one in enumerate(shown):
            for slot, count in enumerate(one.timeline):
                made.ax.barh(
                    place, BLOCK_S, left=slot * BLOCK_S, height=0.8, color=SERIES[0], alpha=count / most, linewidth=0
                )
        made.ax.set_yticks(range(len(shown)), [f"{one.name}  {one.share * 100:.0f} %" for one in shown])
        made.ax.grid(visible=False)
        made.ax.invert_yaxis()
        on.seconds(made.ax)
    return made.text


def client(report: Report, name: str) -> str:
    """Lags above, CPU below."""
    health = report.client.timeline
    if not health:
        return ""
    times = [one.t_s for one in health]
    with drawn(name, rows=2) as made:
        made.ax.plot(times, on.finite([one.lag_ms for one in health]), color=SERIES[0], label="send lag")
        made.ax.plot(times, on.finite([one.loop_lag_ms for one in health]), color=SERIES[1], label="loop lag")
        made.ax.set_ylabel("ms")
        on.counts(made.ax)
        legend(made.ax)
        made.axes[1].plot(times, on.finite([one.cpu for one in health]), color=INK, linewidth=1)
        made.axes[1].set_ylabel("CPU")
        on.percents(made.axes[1], high=1.05)
        on.seconds(made.axes[1])
    return made.text
