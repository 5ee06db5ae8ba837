"""A lease: the time that one replica held its part of a device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One replica on one device, from its start to its end, or from and to a change of its cores."""

    accelerator: str
    used_gb: float
    start_s: float
    end_s: float
    function: str = ""
    unit: int = 0
    """Index of the device within its kind."""
    share: int = 100
    """Percent of the device; below 100 others may hold the rest."""
    cores: int = 0
    """CPU cores of the replica; 0 on other kinds."""
