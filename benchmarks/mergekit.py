"""The same recipes in cobasin and in mergekit 0.1.5, tensor by tensor.

    python3 -m venv mergekit-env && mergekit-env/bin/pip install torch==2.13.0 mergekit==0.1.5
    python benchmarks/mergekit.py --mergekit mergekit-env/bin/mergekit-yaml

Runs the recipes of examples/recipes on random tiny Llamas, and one recipe a method on a pair of BERTs. Methods with
randomness (DARE, DELLA) draw other numbers in each tool: where they drop entries a row only shows that both run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.writer import save
from cobasin.fusion.registry import find
from cobasin.merging.merge import merge_recipe
from common.results import made, write
from common.showing import Table

RECIPES = Path(__file__).parents[1] / "examples" / "recipes"
NOISE = 0.05
PAIRED = {"weight": 0.4}, {"weight": 0.6}
ON_BERT = {
    "linear": {"models": PAIRED},
    "slerp": {"models": ({}, {}), "base": 0, "parameters": {"t": 0.3}},
    "task_arithmetic": {"models": PAIRED, "base": 2},
    "ties": {"models": PAIRED, "base": 2, "parameters": {"density": 0.5}},
    "breadcrumbs": {"models": PAIRED, "base": 2, "parameters": {"density": 0.5, "gamma": 0.1}},
    "breadcrumbs_ties": {"models": PAIRED, "base": 2, "parameters": {"density": 0.5, "gamma": 0.1}},
    "dare_linear": {"models": PAIRED, "base": 2, "parameters": {"density": 1.0}},
    "dare_ties": {"models": PAIRED, "base": 2, "parameters": {"density": 1.0}},
    "della": {"models": PAIRED, "base": 2, "parameters": {"density": 1.0}},
    "della_linear": {"models": PAIRED, "base": 2, "parameters": {"density": 1.0}},
    "sce": {"models": ({}, {}), "base": 2, "parameters": {"select_topk": 0.5}},
    "nuslerp": {"models": PAIRED, "base": 2, "parameters": {"nuslerp_flatten": False}},
    "multislerp": {"models": PAIRED},
    "nearswap": {"models": ({}, {}), "base": 0, "parameters": {"t": 0.02}},
    "ram": {"models": ({}, {}), "base": 2, "parameters": {"epsilon": 0.05}},
    "ramplus_tl": {"models": ({}, {}), "base": 2, "parameters": {"epsilon": 0.05}},
    "arcee_fusion": {"models": ({}, {}), "base": 0},
    "passthrough": {"models": ({"scale": [0.5, 2.0]}, {}), "layers": ([0, 2], [1, 2])},
}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
            max_position_embeddings=64,
        )
    )


def bert() -> PreTrainedModel:
    return BertForSequenceClassification(
        BertConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=64)
    )


def make_models(folder: Path) -> None:
    """A base and three models near it, of each kind: every entry of each differs; and one that knows one token more."""
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(64)}, unk_token="w0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0")
    for kind, make in {"tiny": llama, "bert": bert}.items():
        torch.manual_seed(0)
        base = make()
        with torch.no_grad():
            for parameter in base.parameters():
                parameter.add_(torch.randn_like(parameter) * NOISE)
        base.save_pretrained(folder / f"{kind}-base")
        tokenizer.save_pretrained(folder / f"{kind}-base")
        for name in "abc":
            model = make()
            model.load_state_dict(base.state_dict())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * NOISE)
            model.save_pretrained(folder / f"{kind}-{name}")
            tokenizer.save_pretrained(folder / f"{kind}-{name}")
    chat = LlamaForCausalLM.from_pretrained(folder / "tiny-c")
    chat.resize_token_embeddings(len(tokenizer) + 1)
    chat.save_pretrained(folder / "tiny-chat")
    tokenizer.add_tokens("<chat>")
    tokenizer.save_pretrained(folder / "tiny-chat")


def write_bert_recipes(folder: Path) -> list[Path]:
    found = []
    for method, given in ON_BERT.items():
        models = [
            {"model": f"./models/bert-{name}", "parameters": parameters}
            for name, parameters in zip("ab", given["models"], strict=True)
        ]
        recipe = {"merge_method": method, "models": models, "parameters": given.get("parameters", {})}
        if "layers" in given:
            sources = [model | {"layer_range": layers} for model, layers in zip(models, given["layers"], strict=True)]
            recipe["slices"] = [{"sources": [source]} for source in sources]
            del recipe["models"]
        if "base" in given:
            recipe["base_model"] = f"./models/bert-{('a', 'b', 'base')[given['base']]}"
        found.append(folder / f"bert-{method}.yaml")
        found[-1].write_text(yaml.safe_dump(recipe | {"dtype": "float32"}))
    return found


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


def compare(recipe: Path, folder: Path, mergekit: str) -> dict:
    """Run both tools in ``folder``, where the models are."""
    theirs, ours = folder / f"{recipe.stem}-mergekit", folder / f"{recipe.stem}-cobasin"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [mergekit, str(recipe), str(theirs)]
    peer = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    asked = yaml.safe_load(recipe.read_text())
    row: dict = {"recipe": recipe.name, "method": asked["merge_method"]}
    row["drawn"] = "generator" in find(row["method"]).inputs and asked.get("parameters", {}).get("density") != 1
    if peer.returncode:
        return row | {"mergekit": peer.stderr.strip().splitlines()[-1]}
    os.chdir(folder)
    save(merge_recipe(recipe).checkpoint, ours)
    a, b = tensors_of(theirs), tensors_of(ours)
    row |= {"tensors": len(a), "only_in_one": sorted(a.keys() ^ b.keys())}
    shared = a.keys() & b.keys()
    parent = load(folder / "models" / ("bert-a" if "bert" in recipe.name else "tiny-a"))
    row["difference"] = max(float((a[name] - b[name]).abs().max()) for name in shared)
    alike = [name for name in shared & parent.keys() if a[name].shape == parent[name].shape]
    row["control"] = max(float((a[name] - parent[name]).abs().max()) for name in alike)
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """How far the two tools' tensors are apart, next to how far they are from a parent."""
    body = []
    for row in rows:
        if "mergekit" in row:  # it refused the recipe
            figures = [f"mergekit: {row['mergekit']}", ""]
        else:
            figures = ["random" if row["drawn"] else f"{row['difference']:.1e}", f"{row['control']:.1e}"]
        if alone := row.get("only_in_one"):
            figures[0] += f"; only one tool has {', '.join(alone)}"
        body.append([row["recipe"].removesuffix(".yaml"), f"`{row['method']}`", *figures])
    columns = ["method", "largest difference", "control"]
    return Table("recipe", columns, body, "The control is the distance of the result from one parent.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mergekit", required=True, type=Path, help="mergekit-yaml in an environment of its own")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/mergekit.json"))
    options = parser.parse_args()
    mergekit, out = str(options.mergekit.absolute()), options.out.absolute()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_models(folder / "models")
        recipes = [*sorted(RECIPES.glob("*.yaml")), *write_bert_recipes(folder)]
        rows = [compare(recipe.absolute(), folder, mergekit) for recipe in recipes]
        os.chdir(out.anchor)
    table(rows).show()
    write(out, {"rows": rows, **made()})


if __name__ == "__main__":
    main()
