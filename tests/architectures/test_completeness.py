"""The groups are as large as they can be: nothing else that moves the weights of a layer keeps the function.

What moves them and keeps it is the kernel of the Jacobian of the outputs. Declared are the directions that change
nothing in canonical form, and those in which the groups move that. Only if no continuous symmetry is missing is the
rank on both sides the same. Singular values that should be zero are 1e-15 of the largest, the others 1e-9.
"""

import pytest
import torch
import transformers

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.matching.moves import Moves
from cobasin.matching.state import identity
from cobasin.proposal.checking import forms, generic
from cobasin.symmetry.action import act
from cobasin.symmetry.canonical import Folded
from cobasin.symmetry.keys import layer_of
from cobasin.symmetry.state import Lazy
from sampling import one_in
from tiny_models import config

SMALL = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 5}
LATENT = {"q_lora_rank": 4, "kv_lora_rank": 5, "qk_rope_head_dim": 2, "qk_nope_head_dim": 3, "v_head_dim": 2}
CASES = {
    "gpt2-untied/GPT2LMHeadModel": {"n_embd": 8, "n_head": 2, "n_inner": 5},
    "mpt/MptForCausalLM": {"d_model": 8, "n_heads": 2},
    "falcon-7b/FalconForCausalLM": {"hidden_size": 8, "num_attention_heads": 2},
    "esm/EsmForMaskedLM": {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 5},
    "starcoder2/Starcoder2ForCausalLM": SMALL,
    "stablelm/StableLmForCausalLM": SMALL,
    "llama-gqa/LlamaForCausalLM": SMALL,
    "phi3/Phi3ForCausalLM": SMALL,
    "qwen2/Qwen2ForCausalLM": SMALL,
    "qwen3/Qwen3ForCausalLM": SMALL,
    "gemma2/Gemma2ForCausalLM": SMALL,
    "olmo2/Olmo2ForCausalLM": SMALL,
    "cohere2/Cohere2ForCausalLM": SMALL,
    "mixtral/MixtralForCausalLM": SMALL | {"num_local_experts": 3},
    "youtu/YoutuForCausalLM": SMALL | LATENT | {"num_key_value_heads": 2, "head_dim": 2},
    "falcon-mamba/FalconMambaForCausalLM": {"hidden_size": 8, "intermediate_size": 6, "time_step_rank": 3},
    "qwen3-next/Qwen3NextForCausalLM": SMALL | {"moe_intermediate_size": 3, "num_experts": 3},
}
NOTHING = 1e-12
ROWS = 100  # of the Jacobian, by inputs of one seed


def rank(matrix):
    values = torch.linalg.svdvals(matrix)
    return int((values > NOTHING * values[0]).sum())


def jacobian(outputs, inputs):
    """``[outputs, entries]``; zero where an output does not depend on an input."""
    rows = torch.eye(len(outputs), dtype=outputs.dtype)
    found = torch.autograd.grad(
        outputs, inputs, rows, is_grads_batched=True, allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return torch.cat([one.flatten(1) for one in found], 1)


def equally_long(matrix):
    """Its rows and columns of one length, those of rounding zero: a rank does not depend on sizes, its digits do."""
    for axis in (1, 0):
        sizes = matrix.norm(dim=axis, keepdim=True)
        matrix = torch.where(sizes > NOTHING * sizes.max(), matrix / sizes, 0)
    return matrix


def of_function(typed, names):
    """How outputs on many inputs depend on the entries of some tensors, wherever these are in the model."""
    state = {name: typed[name] for name in typed.spec.entries}
    model, other = (
        instantiate(typed.derived(one), torch.float64)
        for one in (state, state | {name: state[name] + 1 for name in names})
    )
    changed = dict(other.named_parameters())
    moved = {name: (p != changed[name]).flatten() for name, p in model.named_parameters()}
    parameters = [p for name, p in model.named_parameters() if moved[name].any()]
    entries = torch.cat([moved[name] for name in moved if moved[name].any()])
    rows, seed = [], 0
    while sum(map(len, rows)) < 1.2 * entries.sum() + 50:
        inputs = probe(model.config, typed.spec.architecture, seed)
        mask = inputs["attention_mask"].bool()
        logits = model(**inputs).logits[mask].flatten()
        mixed = torch.randn(ROWS, len(logits), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        rows.append(jacobian(mixed @ logits, parameters)[:, entries])
        seed += 1
    return torch.cat(rows)


def of_canonical_form(typed, form, names):
    """The same of the canonical form, and how that depends on the groups whose elements move nothing else."""
    spec = form.spec
    given = {name: typed[name].clone().requires_grad_(name in names) for name in spec.entries if name not in spec.tied}
    folded = Folded(form, Lazy(given, given.__getitem__))
    read = [name for name in given if folded[name].requires_grad]
    canonical = torch.cat([folded[name].flatten() for name in read])
    own = {*names, *read}
    keys = [key for key, sites in spec.sites.items() if own.issuperset(site.tensor for site in sites)]
    groups = {key: form.group(key) for key in keys}
    moves = Moves(form, groups, identity(form, groups))
    moves.parameters = [parameter.detach().double().requires_grad_() for parameter in moves.parameters]
    values = moves.values()
    still = {name: folded[name].detach() for name in read}
    turned = torch.cat([act(spec, values, form.group, name, still[name]).flatten() for name in read])
    return jacobian(canonical, [given[name] for name in names]), jacobian(turned, moves.parameters)


@pytest.mark.usefixtures("float64_throughout")
@pytest.mark.parametrize("case", one_in(2, CASES))
def test_nothing_else_keeps_the_function(case):
    model = getattr(transformers, case.split("/")[1])(config(case, **CASES[case]))
    typed, form = forms(generic(Typed.of(load(model)), 1))[-1]
    entries = form.spec.entries
    last = max(layer for entry in entries.values() if (layer := layer_of(entry.index)) is not None)
    names = [name for name, entry in entries.items() if layer_of(entry.index) == last]
    canonical, turned = of_canonical_form(typed, form, names)
    basis = torch.linalg.svd(turned, full_matrices=False)[0][:, : rank(turned)]
    free = rank(equally_long(canonical - basis @ (basis.T @ canonical)))
    assert rank(equally_long(of_function(typed, names))) == free
    # the control: a direction less in the groups would be missed
    fewer = basis[:, 1:]
    assert rank(equally_long(canonical - fewer @ (fewer.T @ canonical))) == free + 1
