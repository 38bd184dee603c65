"""The machine that was measured: what can be asked of it without timing anything."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Machine:
    """One device of a machine as a rank of a training run has it, and how many ranks there are.

    Attributes
    ----------
    name, title, vendor, architecture
        ``name`` is short and lower case, ``title`` what the vendor calls it.
    kind
        ``gpu`` or ``cpu``; of a CPU a device is one rank with its threads.
    memory_bytes
        Of one device; of a CPU the rank's share of the host's.
    host_memory_bytes
        Of one host.
    context_bytes
        Taken by driver and runtime before the first tensor.
    communicator_bytes
        Taken by the first collective.
    num_cores
        Multiprocessors of a GPU, threads of a CPU's rank.
    dtypes
        That it multiplies in, the first one that of streams.
    inside, across
        Ranks on each host, and hosts.
    backend
        Of the collectives.
    """

    name: str
    title: str
    vendor: str
    kind: str
    architecture: str
    memory_bytes: float
    host_memory_bytes: float
    context_bytes: float
    communicator_bytes: float
    num_cores: int
    dtypes: tuple[str, ...]
    inside: int
    across: int
    backend: str
    software: str

    @property
    def waits_for_host(self) -> bool:
        """Whether what the host does and what the device does cannot overlap: a CPU is both."""
        return self.kind == "cpu"
