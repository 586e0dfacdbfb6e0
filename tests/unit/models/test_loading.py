"""Every way a model can be named opens; every way it can be broken is one line with its exit code."""

import json
import logging
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from tiny_models import TINY, write_gguf

from noisescope import models
from noisescope.errors import InputError, ModelError
from noisescope.models import checkpoint, opening


def refusal(capfd, expected, *args, **options):
    """The one line that load() refuses with, having printed nothing."""
    with pytest.raises(expected) as caught:
        models.load(*args, **options)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 500
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")
    return line


def edit_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_import_is_light():
    code = (
        "import sys, noisescope.models, noisescope.cli.models; "
        "print([m for m in ('torch', 'transformers', 'huggingface_hub') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


class TestOpens:
    def test_directory(self, llama, capfd):
        import torch

        loaded = models.load(llama)
        assert (loaded.name, loaded.source, loaded.path) == ("tiny-llama", "directory", llama)
        assert not loaded.model.training
        assert loaded.model.dtype == torch.bfloat16  # the checkpoint's own
        assert loaded.tokenizer is None
        assert loaded.unused_weights == ()
        assert loaded.trust_remote_code is False
        assert capfd.readouterr() == ("", "")

    def test_digest_is_of_the_file_and_not_of_the_cast(self, llama):
        import hashlib

        expected = hashlib.sha256((llama / "model.safetensors").read_bytes()).hexdigest()
        assert models.load(llama).digest == expected
        assert models.load(llama, dtype="float32").digest == expected

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_dtype(self, llama_directory, dtype):
        import torch

        assert models.load(llama_directory, dtype=dtype).model.dtype == getattr(torch, dtype)

    def test_attention(self, llama_directory):
        for attn in ("eager", "sdpa"):
            assert models.load(llama_directory, attn=attn).model.config._attn_implementation == attn

    def test_shards(self, llama, tmp_path):
        whole = models.load(llama)
        whole.model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
        sharded = models.load(tmp_path / "sharded")
        assert len(sharded.weights) > 1
        assert sharded.digest == sharded.digest != whole.digest
        for one, other in zip(whole.model.parameters(), sharded.model.parameters(), strict=True):
            assert one.equal(other)

    @pytest.mark.parametrize(
        ("family", "expected"),
        [
            ("gpt2", "GPT2LMHeadModel"),
            ("llama bare", "LlamaModel"),
            ("bert", "BertForMaskedLM"),
            ("bert bare", "BertModel"),
            ("t5", "T5ForConditionalGeneration"),
        ],
    )
    def test_family_opens_as_the_class_that_was_saved(self, family, expected, tmp_path):
        import transformers

        small = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 64}
        config = {
            "gpt2": transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, vocab_size=64),
            "llama bare": transformers.LlamaConfig(**TINY),
            "bert": transformers.BertConfig(**TINY),
            "bert bare": transformers.BertConfig(**TINY),
            "t5": transformers.T5Config(**small),
        }[family]
        saved = getattr(transformers, expected)(config)
        saved.save_pretrained(tmp_path / "m")
        loaded = models.load(tmp_path / "m").model
        assert type(loaded).__name__ == expected
        for one, other in zip(saved.parameters(), loaded.parameters(), strict=True):
            assert one.equal(other)

    @pytest.mark.parametrize(("kind", "expected"), [("bert", "BertForMaskedLM"), ("llama", "LlamaForCausalLM")])
    def test_unnamed_architecture_gives_a_language_model(self, kind, expected, tmp_path):
        import transformers

        getattr(transformers, expected)(transformers.AutoConfig.for_model(kind, **TINY)).save_pretrained(tmp_path)
        edit_json(tmp_path / "config.json", architectures=None)
        assert type(models.load(tmp_path).model).__name__ == expected

    def test_gguf(self, gguf_file, capfd, monkeypatch):
        monkeypatch.chdir(gguf_file.parent)  # a relative name, which transformers would look up elsewhere
        loaded = models.load("tiny.gguf")
        assert (loaded.name, loaded.source) == ("tiny", "gguf")
        assert loaded.tokenizer("ab").input_ids == [256]
        assert loaded.tokenizer.chat_template
        assert capfd.readouterr() == ("", "")

    def test_gguf_of_the_same_name_in_the_working_directory_is_not_taken(self, gguf_file, tmp_path, monkeypatch):
        write_gguf(tmp_path / "tiny.gguf", skip=("blk.0.ffn_up.weight",))
        monkeypatch.chdir(tmp_path)
        assert models.load(gguf_file).name == "tiny"

    def test_tokenizer_from_elsewhere(self, llama, gguf_file, tmp_path):
        models.load(gguf_file).tokenizer.save_pretrained(tmp_path / "words")
        assert models.load(llama, tokenizer=tmp_path / "words").tokenizer("ab").input_ids == [256]

    def test_weights_without_a_place_are_named(self, llama):
        edit_json(llama / "config.json", num_hidden_layers=1)
        assert all("layers.1." in name for name in models.load(llama).unused_weights)
        assert models.load(llama).unused_weights

    def test_code_of_a_known_architecture_stays_unused(self, llama, monkeypatch):
        edit_json(llama / "config.json", auto_map=REMOTE["auto_map"])
        (llama / "evil.py").write_text("raise SystemExit(99)")
        monkeypatch.setattr(sys, "stdin", NoStdin())
        assert type(models.load(llama).model).__module__.startswith("transformers.")

    def test_remote_code_runs_only_when_asked_for(self, llama, tmp_path, monkeypatch):
        from transformers import dynamic_module_utils

        monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
        monkeypatch.setattr(sys, "path", [*sys.path])
        edit_json(llama / "config.json", **REMOTE)
        (llama / "evil.py").write_text(
            "from transformers import LlamaConfig, LlamaForCausalLM\n"
            "class Config(LlamaConfig):\n    model_type = 'evil'\n"
            "class Model(LlamaForCausalLM):\n    config_class = Config\n"
        )
        loaded = models.load(llama, trust_remote_code=True)
        assert type(loaded.model).__name__ == "Model"
        assert loaded.trust_remote_code is True

    def test_random_state_is_left_alone(self, llama):
        import torch

        before = torch.get_rng_state()
        models.load(llama)
        assert torch.get_rng_state().equal(before)

    def test_hub_model_in_the_cache_opens_without_network(self, llama, tmp_path, monkeypatch):
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        repository = tmp_path / "hub" / "models--some--model"
        shutil.copytree(llama, repository / "snapshots" / ("a" * 40))
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text("a" * 40)
        loaded = models.load("some/model")
        assert (loaded.name, loaded.source) == ("some/model", "hub")
        listed = [(model.name, model.source) for model in models.cached_models()]
        assert listed == [(models.DEFAULT.name, "default"), ("some/model", "hub")]

    def test_logging_warnings_and_bars_are_as_before(self, llama):
        from huggingface_hub.utils import are_progress_bars_disabled
        from transformers.utils import logging as transformers_logging

        def state():
            levels = [logging.getLogger(name).level for name in ("transformers", "huggingface_hub", "accelerate")]
            bars = transformers_logging.is_progress_bar_enabled(), are_progress_bars_disabled()
            return levels, bars, list(warnings.filters), sys.stderr

        transformers_logging.set_verbosity_info()
        try:
            before = state()
            models.load(llama)
            (llama / "config.json").unlink()
            with pytest.raises(ModelError):
                models.load(llama)
            assert state() == before
        finally:
            transformers_logging.set_verbosity_warning()


def only_pickle(name):
    def damage(path):
        (path / "model.safetensors").unlink()
        with (path / name).open("wb") as file:
            pickle.dump(Canary(path / "canary"), file)

    return damage


class Canary:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def truncate(name, size):
    return lambda path: os.truncate(path / name, size)


def overwrite(name, data, at=0):
    def damage(path):
        content = bytearray((path / name).read_bytes())
        content[at : at + len(data)] = data
        (path / name).write_bytes(content)

    return damage


def write(name, text):
    return lambda path: (path / name).write_text(text)


def remove(name):
    return lambda path: (path / name).unlink()


def config(**changes):
    return lambda path: edit_json(path / "config.json", **changes)


def without_tensor(name):
    def damage(path):
        from safetensors.torch import load_file, save_file

        tensors = load_file(path / "model.safetensors")
        del tensors[name]
        save_file(tensors, path / "model.safetensors", {"format": "pt"})

    return damage


def index(*shards):
    def damage(path):
        (path / "model.safetensors").rename(path / "part.safetensors")
        names = {f"tensor{number}": name for number, name in enumerate(shards)}
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))

    return damage


REMOTE = {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}, "model_type": "evil"}

BROKEN_DIRECTORIES = {
    "pickle bin": (only_pickle("pytorch_model.bin"), "pytorch_model.bin is a pickle and is never loaded"),
    "pickle pt": (only_pickle("model.pt"), "save_pretrained(NEW_DIR)"),
    "pickle ckpt": (only_pickle("last.ckpt"), "last.ckpt is a pickle"),
    "no weights": (remove("model.safetensors"), "no model.safetensors"),
    "gguf inside": (lambda path: (path / "model.safetensors").rename(path / "m.gguf"), "pass the file itself"),
    "no config": (remove("config.json"), "no config.json"),
    "config not json": (write("config.json", '{"model_type": "llama",'), "line 1 column"),
    "config not utf-8": (overwrite("config.json", b"\xff\xfe\xff"), "not valid JSON"),
    "config a list": (write("config.json", "[]"), "expected an object"),
    "config nested too deep": (write("config.json", "[" * 100_000), "not valid JSON"),
    "model_type unknown": (config(model_type="lama"), 'got "lama", unknown to transformers; did you mean "llama"?'),
    "model_type missing": (config(model_type=None), "model_type: got null"),
    "model_type a list": (config(model_type=["llama"]), "model_type"),
    "remote code": (config(**REMOTE), "--trust-remote-code"),
    "hidden_size a word": (config(hidden_size="many"), "config.json: "),
    "hidden_size zero": (config(hidden_size=0), "tiny-llama: "),
    "hidden_size negative": (config(hidden_size=-32), "tiny-llama: "),
    "hidden_size huge": (config(hidden_size=1 << 20), "the configuration needs"),
    "vocab_size huge": (config(vocab_size=1 << 40), "the configuration needs"),
    "layers by the billion": (config(num_hidden_layers=10**9), "num_hidden_layers: got 1000000000"),
    "dtype unknown": (config(dtype="float99"), "float99"),
    "heads zero": (config(num_attention_heads=0), "config.json: "),
    "quantiser not installed": (config(quantization_config={"quant_method": "gptq", "bits": 4}), "optimum"),
    "attention from a repository": (config(attn_implementation="some/kernel"), "attn_implementation"),
    "weights elsewhere": (config(transformers_weights="../other.safetensors"), "only model.safetensors is opened"),
    "weights a pipe": (
        lambda path: (remove("model.safetensors")(path), os.mkfifo(path / "model.safetensors")),
        "no model",
    ),
    "config a pipe": (lambda path: (remove("config.json")(path), os.mkfifo(path / "config.json")), "no config.json"),
    "adapter": (write("adapter_config.json", "{}"), "merge it first"),
    "distributed": (write("shard-00000-model-00001-of-00001.safetensors", ""), "distributed checkpoint"),
    "layer missing": (config(num_hidden_layers=3), "model.layers.2."),
    "tensor missing": (without_tensor("lm_head.weight"), "first lm_head.weight"),
    "shape mismatch": (config(intermediate_size=48), "got shape [32, 64], the configuration needs [32, 48]"),
    "safetensors empty": (truncate("model.safetensors", 0), "model.safetensors: damaged or truncated"),
    "safetensors cut in its header": (truncate("model.safetensors", 100), "damaged or truncated"),
    "safetensors cut in its data": (truncate("model.safetensors", 9_000), "damaged or truncated"),
    "safetensors header length": (overwrite("model.safetensors", struct.pack("<Q", 1 << 60)), "damaged or truncated"),
    "safetensors header bytes": (overwrite("model.safetensors", b"\0" * 64, 8), "damaged or truncated"),
    "safetensors is text": (write("model.safetensors", "version https://git-lfs"), "damaged or truncated"),
    "index not json": (lambda path: (index("x")(path), write("model.safetensors.index.json", "{")(path)), "index.json"),
    "index empty": (index(), "weight_map"),
    "index leaves the directory": (index("../../etc/x.safetensors"), "expected a .safetensors file beside the index"),
    "index absolute": (index("/etc/x.safetensors"), "expected a .safetensors file beside the index"),
    "index names a pickle": (index("pytorch_model.bin"), "expected a .safetensors file beside the index"),
    "index names a number": (index(7), "got 7"),
    "index names an absent file": (index("part.safetensors", "gone.safetensors"), "gone.safetensors is missing"),
    "tokenizer damaged": (write("tokenizer.json", "{"), "tokenizer: "),
    "tokenizer remote code": (
        write("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["evil.Tokenizer", null]}}'),
        "--trust-remote-code",
    ),
}


class NoStdin:
    def __getattr__(self, name):
        raise AssertionError("stdin was touched")


class TestRefuses:
    @pytest.mark.parametrize("name", BROKEN_DIRECTORIES)
    def test_broken_directory(self, name, llama, capfd, monkeypatch):
        damage, expected = BROKEN_DIRECTORIES[name]
        damage(llama)
        (llama / "evil.py").write_text(f"import os; os.mkdir({str(llama / 'canary')!r})")
        monkeypatch.setattr(sys, "stdin", NoStdin())
        before = sorted(llama.iterdir())
        line = refusal(capfd, ModelError, llama)
        assert ModelError.exit_code == 4
        assert expected in line
        assert "tiny-llama" in line
        assert sorted(llama.iterdir()) == before  # no canary, nothing created

    def test_every_truncation_of_the_weights(self, llama, capfd):
        whole = (llama / "model.safetensors").read_bytes()
        for size in range(0, len(whole), len(whole) // 25):
            (llama / "model.safetensors").write_bytes(whole[:size])
            assert "fetch it again" in refusal(capfd, ModelError, llama)

    def test_every_truncation_of_a_gguf(self, gguf_file, tmp_path, capfd):
        whole, cut = gguf_file.read_bytes(), tmp_path / "cut.gguf"
        for size in [*range(0, len(whole), len(whole) // 40), len(whole) - 1]:
            cut.write_bytes(whole[:size])
            assert "not a whole GGUF file" in refusal(capfd, ModelError, cut)

    def test_damaged_gguf_headers_open_or_are_refused(self, gguf_file, tmp_path):
        whole, damaged = gguf_file.read_bytes(), tmp_path / "damaged.gguf"
        draws = random.Random(0)
        refused = []
        for _ in range(40):
            content = bytearray(whole)
            content[draws.randrange(1200)] ^= 1 << draws.randrange(8)
            damaged.write_bytes(content)
            try:
                models.load(damaged)
            except ModelError as error:
                refused.append(str(error))
        assert 5 < len(refused) < 40
        assert not any("\n" in line for line in refused)

    def test_gguf_that_promises_too_much(self, gguf_file, tmp_path, capfd):
        bomb = tmp_path / "bomb.gguf"
        write_gguf(bomb, blocks=2)
        assert "model.layers.1." in refusal(capfd, ModelError, bomb)
        write_gguf(bomb, blocks=1 << 30)
        assert "block_count: got 1073741824" in refusal(capfd, ModelError, bomb)

    def test_gguf_without_a_tensor(self, tmp_path, capfd):
        write_gguf(tmp_path / "m.gguf", skip=("blk.0.ffn_up.weight",))
        assert "first model.layers.0.mlp.up_proj.weight" in refusal(capfd, ModelError, tmp_path / "m.gguf")

    def test_gguf_list_longer_than_the_file(self, tmp_path, capfd):
        key = b"general.x"
        header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(key)) + key
        (tmp_path / "m.gguf").write_bytes(header + struct.pack("<IIQ", 9, 4, 1 << 60) + b"\0" * 64)
        assert "ends inside its header" in refusal(capfd, ModelError, tmp_path / "m.gguf")

    @pytest.mark.parametrize("name", ["./absent", "/absent/model", "../a/b/c", "absent/", "absent.gguf", "~/absent-x"])
    def test_absent_path(self, name, capfd, no_hub):
        assert refusal(capfd, ModelError, name).endswith("no such file or directory")

    def test_absent_path_object(self, capfd, no_hub):
        assert refusal(capfd, ModelError, Path("absent")) == "absent: no such file or directory"

    @pytest.mark.parametrize("name", ["some/model", "gpt2"])
    def test_unreachable_hub(self, name, capfd, no_hub):
        line = refusal(capfd, ModelError, name)
        assert "the hub cannot be reached" in line
        assert f"hf download {name}" in line

    @pytest.mark.parametrize("name", ["a b", "x\ny", "a--b/..c", "a" * 5000, "nul\0"])
    def test_impossible_name(self, name, capfd, no_hub):
        assert "neither a directory here nor a hub id" in refusal(capfd, ModelError, name)

    def test_empty_name(self, capfd):
        assert "omit it for the default" in refusal(capfd, InputError, "")
        assert InputError.exit_code == 2

    @pytest.mark.parametrize(
        ("name", "expected"),
        [("m.bin", "is a pickle"), ("m.safetensors", "pass the directory"), ("m.txt", "neither a directory nor")],
    )
    def test_other_file(self, name, expected, tmp_path, capfd):
        (tmp_path / name).write_bytes(b"?")
        assert expected in refusal(capfd, ModelError, tmp_path / name)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"dtype": "float3"}, 'unknown dtype "float3", did you mean "float32"? (auto float32 bfloat16 float16)'),
            ({"dtype": "int8"}, 'unknown dtype "int8"'),
            ({"attn": "sdp"}, 'unknown attention implementation "sdp", did you mean "sdpa"?'),
            ({"attn": "kernels-community/flash-attn"}, "unknown attention implementation"),
            ({"device": "cuda:99"}, 'device "cuda:99" cannot be used here'),
            ({"device": "toaster"}, 'device "toaster" cannot be used here'),
            ({"device": "meta"}, 'device "meta" cannot be used here'),
        ],
    )
    def test_option(self, options, expected, llama_directory, capfd):
        assert expected in refusal(capfd, InputError, llama_directory, **options)

    def test_tokenizer_that_is_none(self, llama_directory, tmp_path, capfd):
        assert "no tokenizer.json" in refusal(capfd, ModelError, llama_directory, tokenizer=tmp_path)


def test_missing_weights_would_be_random_without_the_check(llama, monkeypatch):
    """The check is what stops it: transformers itself loads the incomplete checkpoint."""
    without_tensor("lm_head.weight")(llama)
    monkeypatch.setattr(opening, "_check_complete", lambda label, info: None)
    assert models.load(llama).model.lm_head.weight.isfinite().all()


def test_pickle_suffixes_cover_what_torch_saves():
    assert {".bin", ".pt", ".pth", ".ckpt"} <= set(checkpoint.PICKLES)


@pytest.fixture
def no_hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
