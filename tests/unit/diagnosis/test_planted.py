"""A fragile layer is planted, and found first by the map, by windows and by its critical threshold.

The plant leaves the function as it is: one unit of the layer's MLP is made a copy of another, and the output projection
takes the two with large weights of opposite sign. Clean, they cancel; noise does not.
"""

import pytest
import torch
from torch import nn

from noisescope.diagnosis import Diagnosis
from noisescope.measure.opening import open_data
from noisescope.specs import DiagnosisSpec
from trained import NAMES, fixture

pytestmark = pytest.mark.usefixtures("one_thread")
LAYERS = 8


def plant(model: nn.Module, name: str, layer: int, size: float) -> None:
    """Two units of the layer's MLP that cancel."""
    if name == "llama":
        mlp = model.model.layers[layer].mlp
        into, out = [mlp.gate_proj.weight.data, mlp.up_proj.weight.data], mlp.down_proj.weight.data.T
    else:
        mlp = model.transformer.h[layer].mlp
        into, out = [mlp.c_fc.weight.data.T, mlp.c_fc.bias.data[:, None]], mlp.c_proj.weight.data
    kept, given_up = (int(at) for at in out.norm(dim=1).sort().indices[[-1, 0]])
    direction = nn.functional.normalize(
        torch.randn(out.shape[1], generator=torch.Generator().manual_seed(layer)), dim=0
    )
    for weight in into:
        weight[given_up] = weight[kept]
    out[kept] += size * direction
    out[given_up] = -size * direction


PLACES = [
    pytest.param(name, layer, marks=pytest.mark.slow if layer % 2 != own else ())
    for own, name in enumerate(NAMES)
    for layer in range(LAYERS)
]
"""all layers of both; by default every position in one of them"""


@pytest.mark.parametrize(("name", "layer"), PLACES)
def test_found_first_at_every_position(name: str, layer: int) -> None:
    model, tokenizer = fixture(name)
    data = open_data(None, tokenizer, n_samples=12, batch_size=12, max_length=16)
    before = Diagnosis(model, data, DiagnosisSpec()).bench.clean.accuracy.value
    plant(model, name, layer, size=1500.0)
    run = Diagnosis(model, data, DiagnosisSpec(level="layer", noise_scale=0.05))
    assert run.bench.clean.accuracy.value == pytest.approx(before, abs=0.08), "the plant should not be seen clean"

    by_map = {at: run.layer_kl(at).value for at in range(LAYERS)}
    assert max(by_map, key=by_map.get) == layer
    worst = max(run.windows.items(), key=lambda item: item[1].rank)[0]
    assert layer in worst.layers
    lowest = min(run.thresholds.values(), key=lambda threshold: threshold.value)
    assert lowest.name == f"L{layer}"
    assert lowest.measured is not None
