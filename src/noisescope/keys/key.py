"""Randomness as a pure function of (seed, site, trial, step): no stream is shared, so no draw depends on another.

The same site gets the same draw whatever else is active, in whichever order, in a resumed run and in the
recomputation of gradient checkpointing. Refuses global generators: nothing here reads or moves torch's own.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["Key"]


@dataclass(frozen=True)
class Key:
    """One draw: who asks (`site`), in which trial and forward pass, under which seed.

    On the CPU torch seeds its Mersenne twister with 32 bits, so among a million draws some hundred pairs coincide.
    They belong to unrelated sites and bias nothing; on other devices all 64 bits count.
    """

    seed: int
    site: str
    trial: int = 0
    step: int = 0

    @cached_property
    def digest(self) -> int:
        """63 well mixed bits of the key (non-negative, so that every generator accepts it)."""
        text = f"{self.seed}\x00{self.site}\x00{self.trial}\x00{self.step}"
        return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") >> 1

    def generator(self, device: "torch.device | str" = "cpu") -> "torch.Generator":
        """A fresh generator on that device, at the start of this key's draw."""
        import torch

        return torch.Generator(device=device).manual_seed(self.digest)

    def fixed(self) -> "Key":
        """The same key for every step: for defects that stay where they are, such as stuck cells."""
        return replace(self, step=-1)

    def part(self, label: str) -> "Key":
        """An independent draw for a part of the same site, such as one of an operator's inputs."""
        return replace(self, site=f"{self.site}#{label}")
