"""The processor and memory that a plan stands on: they decide the speed of every expert that no card holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GB

ANOTHER = "another: --cpu NAME, --ram 64GB@3600x2"


@dataclass(frozen=True)
class HostFacts:
    """What of the host decides.

    Parameters
    ----------
    profile, cpu
        Names of the profile and its processor.
    ram_bytes
        Memory of the machine.
    expert_gb_per_s, kind
        Rate at which the processor reads experts of one quantization family, and where the number is from.
    one_memory
        Card and processor, or a machine without a card: there is no other host to choose for it.
    """

    profile: str
    cpu: str
    ram_bytes: int
    expert_gb_per_s: float
    kind: str
    one_memory: bool

    @classmethod
    def of(
        cls, profile: HardwareProfile, family: str, ram_bytes: int | None = None, *, locked: bool = False
    ) -> HostFacts:
        """Facts of a profile.

        Parameters
        ----------
        profile
            Whose processor and memory they are.
        family
            Quantization family of the experts.
        ram_bytes
            Memory instead of the profile's.
        locked
            Whether the engine page-locks experts; llama.cpp and its like do not.

        Returns
        -------
        HostFacts
            The rate no higher than what the memory gives.
        """
        found = profile.cpu.expert_gb_per_s.rates("pinned" if locked else "pageable").of(family)
        own = profile.ram.total_bytes + (profile.gpu.vram_usable_bytes if profile.one_memory else 0)
        return cls(
            profile.name,
            profile.cpu.name,
            own if ram_bytes is None else ram_bytes,
            min(found.value, profile.dram.shared_mb_per_s / 1000),
            found.kind,
            profile.one_memory,
        )

    @property
    def text(self) -> str:
        """One line."""
        memory = f"{self.ram_bytes / GB:.0f} GB of memory"
        said = f"host: {self.cpu}, {memory}, {self.expert_gb_per_s:.0f} GB/s for experts ({self.kind})"
        return said if self.one_memory else f"{said}; {ANOTHER}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return vars(self)
