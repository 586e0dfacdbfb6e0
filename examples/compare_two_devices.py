"""Where does another device differ, and which layer is to blame? The other device is played here.

python examples/compare_two_devices.py                          a small model that comes along
python examples/compare_two_devices.py MODEL tf32@9.linear      your own model, and another device or fault
"""

import sys
from pathlib import Path

import noisescope as ns
from noisescope.models import load

SMALL = Path(__file__).parents[1] / "tests" / "fixtures" / "llama"


def main(model: str | Path = SMALL, *devices: str) -> None:
    devices = devices or ("tf32@2.linear", "gain:0.05@5.linear")
    loaded = load(model)
    print(f"device: {', '.join(devices)}\n")

    # on the device that you trust; `inputs` keeps what a suspect is to be fed with
    reference = ns.trace(loaded.model, tokenizer=loaded.tokenizer, n_samples=2, max_length=32, inputs=True)
    print(reference, "\n")

    # on the other one, on the same tokens
    suspect = ns.trace(loaded.model, inputs_from=reference, emulate=devices)
    found = ns.compare(reference, suspect)
    print(found, "\n")
    print(f"sources: {found.sources}, they carry it on: {found.amplifiers}")
    print(f"page: {found.save('noisescope-compare')}\n")

    # the gate of a pipeline
    print(ns.validate_migration(reference, suspect, layers="0-5", limits={"mape": 0.01}))


if __name__ == "__main__":
    main(*sys.argv[1:])
