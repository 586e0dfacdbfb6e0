"""Diagnose a model of your own, and read the report in Python.

    python examples/diagnose_your_model.py                     the small model that the tests use
    python examples/diagnose_your_model.py path/to/your/model  yours: anything transformers can open

On the command line the same is `noisescope diagnose path/to/your/model`.
"""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "llama"


def main(model_name: str = str(FIXTURE), output: str = "noisescope-out") -> None:
    # eval(): dropout would be noise that nobody asked for, and is refused
    model = AutoModelForCausalLM.from_pretrained(model_name).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_name)

    # 8 short rows, to be quick; leave both out for 50 rows of 32 tokens
    report = ns.diagnose(model, tokenizer=tokenizer, n_samples=8, max_length=12)
    print(report)

    # The map: one row for each operator of each layer. "measured" rows were injected for real.
    print("\nThe five most fragile cells of", len(report.map))
    print(report.map.top(5))

    # Everything that is shown is a plain value in `sections`, with its 95% interval.
    worst, row = next(iter(report.sections["operator_analysis"].items()))
    low, high = row["degradation_interval"]
    print(f"\n{worst} loses {row['degradation']:.1%} of the accuracy, 95% interval {low:.1%} to {high:.1%}")

    report.save(output)
    again = ns.Report.load(output)
    print(f"saved to {output}, read back with risk {again.risk}")


if __name__ == "__main__":
    main(*sys.argv[1:])
