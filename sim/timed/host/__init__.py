"""Where experts lie on the host: the ways to hold them (`tiers`), what each decides (`plan`), a run (`live`)."""

from expert_residency.sim.timed.host.live import Host
from expert_residency.sim.timed.host.plan import DISK, PAGE_CACHE, PAGEABLE, PINNED, SOURCES, HostPlan
from expert_residency.sim.timed.host.tiers import HOST_MODES, parse_host, plan_host

__all__ = [
    "DISK",
    "HOST_MODES",
    "PAGEABLE",
    "PAGE_CACHE",
    "PINNED",
    "SOURCES",
    "Host",
    "HostPlan",
    "parse_host",
    "plan_host",
]
