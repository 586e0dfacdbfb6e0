"""What a trace says about itself and its sites, as frozen values: the JSON of the file."""

from dataclasses import dataclass

from ..specs import Layer

__all__ = ["FORMAT", "QUANTILES", "WIDTHS", "Environment", "FloorHead", "InputHead", "SiteHead", "TraceHead"]

FORMAT = 1
WIDTHS = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
"""bytes of a number"""
QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True)
class SiteHead:
    """One site of one stage of one run; its sketch and sample are the rows of the same number."""

    name: str
    layer: Layer | None
    operator: str
    module: str
    call: int
    phase: str
    part: int
    stage: str
    """`prefill`, `decode` or, of a model's own code, `run`"""
    run: str
    """`free`, or `fed` where each block was given the reference's input"""
    dtype: str
    shape: tuple[int, ...]
    """of the first call"""
    sizes: tuple[int, ...]
    """elements of each call"""
    count: int
    non_finite: int
    mean: float
    std: float
    min: float
    max: float
    norm: float
    bits: str
    width: int
    top_channels: tuple[tuple[int, float], ...]
    quantiles: tuple[float, ...]
    """of the sample, at the levels of the trace's head"""
    positions: int
    """which list of positions its sample was taken at"""
    floors: tuple[float, ...]
    """relative error with noise of one unit in the last place everywhere, for each unit of the trace's floor; the
    largest of several draws"""
    tolerances: tuple[float, ...]
    """the largest relative error that a healthy device of that unit may show"""
    own_tolerances: tuple[float, ...]
    """the same where the block is given the reference's input, if these were kept"""

    @property
    def whole_bytes(self) -> int:
        """What its values take, all of them."""
        return self.count * WIDTHS.get(self.dtype, 4)


@dataclass(frozen=True)
class Environment:
    """Where a trace was made: what a comparison is about."""

    device: str
    accelerator: str | None
    """what the card calls itself"""
    dtype: str
    """of most parameters"""
    attention: str | None
    emulated: tuple[str, ...]
    """devices and faults that were played"""
    threads: int
    matmul_precision: str
    """of float32 products: `highest` unless TF32 or less was allowed"""
    deterministic: bool
    """whether torch was told to use deterministic algorithms"""
    flushes_denormals: bool
    """of the host"""
    machine: str
    system: str
    torch: str
    transformers: str | None
    python: str
    numpy: str
    noisescope: str


@dataclass(frozen=True)
class InputHead:
    """Numbers that the model was called with and that are not whole, such as images: a device may round them."""

    call: int
    """of the model"""
    dtype: str
    shape: tuple[int, ...]
    bits: str


@dataclass(frozen=True)
class FloorHead:
    """How the noise floor was measured."""

    tokens: int
    units: tuple[float, ...]
    """eps of the dtypes that it was measured for, the finest first"""
    factor: float
    """how many times the floor is tolerated"""


@dataclass(frozen=True)
class TraceHead:
    """Everything but the numbers."""

    format: int
    model: str
    layers: int
    structure: str
    """digest of module paths and the shapes of parameters"""
    checkpoint: str | None
    """digest of the weights' file before any cast"""
    weights: str | None
    """digest of the weights in memory"""
    configuration: str
    tokenizer: str | None
    data: str
    """its name"""
    tokens: str
    """digest of the token ids and masks of every pass"""
    passes: tuple[tuple[int, ...], ...]
    """rows x tokens of each"""
    inputs: tuple[InputHead, ...]
    """what else the passes were given, in the order of the arguments"""
    decode: int
    backward: bool
    outputs_only: bool
    sites_pattern: str | None
    inputs_from: str | None
    """digest of the trace that the blocks' inputs were taken from"""
    environment: Environment
    seed: int
    buckets: int
    slots: int
    quantile_levels: tuple[float, ...]
    floor: FloorHead | None
    sites: tuple[SiteHead, ...]
