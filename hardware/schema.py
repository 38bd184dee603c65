"""The shape of the data files, as pydantic models: units in the keys, limits on every number.

The models only describe and check the text; :mod:`meshwright.hardware.build` turns them into the SI
objects of :mod:`meshwright.hardware.spec`. Imported lazily: pydantic is not needed to list names.
"""

from datetime import date
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from meshwright.hardware.spec import LinkTopology, SourceKind, TierKind

Dtype = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"]
Parallelism = Literal["dp", "tp", "pp", "cp", "ep", "zero"]
MAX_DEVICES = 1_000_000

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
Text = Annotated[str, Field(min_length=1, max_length=2000)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e12, allow_inf_nan=False)]
Fraction = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
Microseconds = Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_DEVICES)]
DateText = Annotated[
    str, BeforeValidator(lambda v: v.isoformat() if isinstance(v, date) else v), Field(pattern=r"\d{4}")
]


class DataModel(BaseModel):
    """Base of all models: unknown keys are errors, objects are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceData(DataModel):
    """One text (or recollection) and the fields that it backs."""

    fields: list[Text]
    title: Text
    reference: Text
    kind: SourceKind


class LinkData(DataModel):
    """A link of one device; GB/s are one way."""

    name: Text
    bandwidth_gb_per_s: Positive
    latency_us: Microseconds
    efficiency: Fraction = 1.0
    topology: LinkTopology = "switch"
    pair_bandwidth_gb_per_s: Positive | None = None
    max_devices: Count | None = None

    @model_validator(mode="after")
    def _mesh_has_pairs(self) -> Self:
        if self.topology == "mesh" and self.pair_bandwidth_gb_per_s is None:
            raise ValueError("a mesh needs pair_bandwidth_gb_per_s, the one-way rate of one pair")
        return self


class PriceData(DataModel):
    """A dated price, for one device or for one host with all its devices."""

    usd_per_device_hour: Positive | None = None
    usd_per_node_hour: Positive | None = None
    provider: Text
    instance: str = ""
    kind: Text
    date: DateText

    @model_validator(mode="after")
    def _one_price(self) -> Self:
        if (self.usd_per_device_hour is None) == (self.usd_per_node_hour is None):
            raise ValueError("give one of usd_per_device_hour and usd_per_node_hour")
        return self


class SupportData(DataModel):
    """What the accelerator can be used for."""

    training: bool
    inference: bool
    parallelisms: list[Parallelism]
    dtypes: list[Dtype]
    targets: list[Name]


class AttentionData(DataModel):
    """Shares of the dense peak that an attention kernel reaches on long sequences; where half of them."""

    forward: Fraction
    backward: Fraction
    half_length: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)]
    narrow: Annotated[float, Field(strict=True, gt=0, le=10, allow_inf_nan=False)] = 1.0


class AchievedData(DataModel):
    """Sustained fractions of the nominal rates, and fixed costs."""

    gemm_fraction: Fraction
    low_gemm_fractions: dict[Dtype, Fraction] = {}
    memory_fraction: Fraction
    kernel_launch_us: Microseconds
    context_gib: Annotated[float, Field(strict=True, ge=0, le=1024, allow_inf_nan=False)]
    gemm_fill_k: Annotated[float, Field(strict=True, ge=0, le=1e6, allow_inf_nan=False)] | None = None
    attention_shares: dict[Name, AttentionData] = {}


class AcceleratorData(DataModel):
    """One accelerator file."""

    name: Name
    title: Text
    aliases: list[Name] = []
    vendor: Text
    kind: Literal["gpu", "tpu", "npu", "wafer", "cpu"]
    device: Text = "device"
    year: Annotated[int, Field(strict=True, ge=2000, le=2100)]
    architecture: str = ""
    memory_gb: Positive | None = None
    memory_gib: Positive | None = None
    usable_memory_mib: Positive | None = None
    usable_memory_is_nominal: bool = False
    driver_reserved_mib: Annotated[float, Field(strict=True, ge=0, le=1e5, allow_inf_nan=False)] = 0.0
    bandwidth_gb_per_s: Positive
    peak_dense_tflops: Annotated[dict[Dtype, Positive], Field(min_length=1)]
    num_cores: Count
    on_package_link: LinkData | None = None
    host_link: LinkData | None = None
    power_w: Positive | None = None
    list_price_usd: Positive | None = None
    prices: list[PriceData] = []
    support: SupportData
    achieved: AchievedData
    notes: list[Text] = []
    sources: list[SourceData] = []

    @model_validator(mode="after")
    def _some_memory(self) -> Self:
        if self.memory_gb is None and self.memory_gib is None and self.usable_memory_mib is None:
            raise ValueError("give memory_gib, memory_gb or usable_memory_mib")
        return self


class TierData(DataModel):
    """One tier: numbers of its own, or those of the accelerator's link named by ``link``."""

    name: Name
    kind: TierKind | None = None
    fan_out: Count | None = None
    link: Literal["on_package", "host"] | None = None
    bandwidth_gb_per_s: Positive | None = None
    pair_bandwidth_gb_per_s: Positive | None = None
    latency_us: Microseconds | None = None
    efficiency: Fraction | None = None
    oversubscription: Annotated[float, Field(strict=True, ge=1, le=1000, allow_inf_nan=False)] = 1.0
    devices_per_nic: Positive = 1.0
    congestion_per_doubling: Annotated[float, Field(strict=True, ge=0, le=10, allow_inf_nan=False)] | None = (
        None
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = ("kind", "bandwidth_gb_per_s", "latency_us")
        missing = [key for key in needed if getattr(self, key) is None]
        if self.link is None and missing:
            raise ValueError(f"give {', '.join(missing)}, or link: on_package or host")
        if self.link is None and self.kind == "mesh" and self.pair_bandwidth_gb_per_s is None:
            raise ValueError("a mesh needs pair_bandwidth_gb_per_s, the one-way rate of one pair")
        return self


class ClusterData(DataModel):
    """One node or cluster file.

    ``tiers`` are inside the counted unit (a node, a rack, a pod), innermost first; ``scale_out`` joins
    units. All scale-out tiers but the last state their ``fan_out``; the last takes what the count leaves.
    """

    name: Name
    title: Text = ""
    aliases: list[Name] = []
    accelerator: Text | dict[str, Any]
    unit: Literal["node", "rack", "pod"] = "node"
    count: Count = 1
    devices_per_host: Count
    host_memory_gib: Positive | None = None
    nvme_gb_per_s: Positive | None = None
    nvme_tb: Positive | None = None
    tiers: Annotated[list[TierData], Field(min_length=1, max_length=6)]
    scale_out: Annotated[list[TierData], Field(max_length=4)] = []
    wrap_multiple: Count | None = None
    wrap_all_axes: bool = False
    prices: list[PriceData] = []
    notes: list[Text] = []
    sources: list[SourceData] = []

    @model_validator(mode="after")
    def _fan_outs(self) -> Self:
        for tier in [*self.tiers, *self.scale_out[:-1]]:
            if tier.fan_out is None:
                raise ValueError(f"tier {tier.name} needs fan_out (only the last scale_out tier is open)")
        return self
