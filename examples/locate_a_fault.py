"""Would a broken operator of your device be found? Put a fault in, and see what `locate` says.

python examples/locate_a_fault.py                                    a small model that comes along
python examples/locate_a_fault.py MODEL saturation:0.2@15.linear     your own model and fault
"""

import sys
from pathlib import Path

import noisescope as ns
from noisescope.models import load

SMALL = Path(__file__).parents[1] / "tests" / "fixtures" / "llama"


def main(model: str | Path = SMALL, fault: str = "lut_exp:0.01@3.softmax") -> None:
    loaded = load(model)

    healthy = ns.locate(loaded.model, tokenizer=loaded.tokenizer, checkpoint=loaded.path)
    print(healthy, "\n")

    faulty = ns.locate(loaded.model, tokenizer=loaded.tokenizer, checkpoint=loaded.path, simulate=fault)
    print(faulty)
    for suspect in faulty.sites:
        print(f"{suspect.where}: {'; '.join(suspect.evidence)}")
    truth = faulty.sections["truth"][0]
    print("truth:", truth["site"], "inert" if truth["inert"] else f"rank {truth['rank']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
