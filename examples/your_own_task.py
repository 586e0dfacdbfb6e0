"""Diagnose on labelled data of your own: rows in Python, or a JSONL file.

    python examples/your_own_task.py                      the questions below, on the small model that the tests use
    python examples/your_own_task.py your/model my.jsonl  yours; a line of the file is a row as below

The fields of a row say how it is scored: `query, choices, gold` is multiple choice by log-likelihood per character,
`question, answer` with a number is exact match by generation, `text` is the next token.
"""

import sys
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import noisescope as ns

FIXTURE = Path(__file__).parents[1] / "tests" / "fixtures" / "llama"

QUESTIONS = [
    {"query": query, "choices": choices, "gold": gold}
    for query, choices, gold in (
        ("The yield", [" statement", " exception", " attribute"], 0),
        ("A class", [" of", " definition", " than"], 1),
        ("The import", [" are", " any", " statement"], 2),
        ("The value of the", [" expression", " because", " were"], 0),
        ("is equivalent", [" for", " to", " by"], 1),
        ("raises a TypeError", [" exception", " is", " its"], 0),
        ("an integer", [" or", " an", " be"], 0),
        ("The built-in", [" of", " it", " function"], 2),
        ("in the current", [" namespace", " have", " then"], 0),
        ("are evaluated from left", [" of", " to right", " in"], 1),
    )
]


def main(model_name: str = str(FIXTURE), data: object = QUESTIONS) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_name).eval()
    tokenizer = AutoTokenizer.from_pretrained(model_name)

    # Only operators, at a stress scale: ten questions cannot resolve a small loss.
    spec = ns.DiagnosisSpec(level="operator", noise_scale=0.2)
    report = ns.diagnose(model, data, tokenizer=tokenizer, spec=spec)

    # How well the clean model does comes first: near chance there is nothing to lose, and the report says so.
    task, clean = report.sections["config"]["data"]["task"], report.sections["metrics"]["clean"]
    print(f"{task}: clean accuracy {clean['accuracy']['value']:.0%}, chance {clean['chance']:.0%}\n")
    print(report)


if __name__ == "__main__":
    main(*sys.argv[1:])
