"""What the tests of adapters share: random bases and adapters as folders, elements of a base, and running both."""

from dataclasses import replace

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import outputs
from cobasin.checkpoints.typed import Typed
from cobasin.symmetry.canonical import gauge_of
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from tiny_models import model

BERT, VIT, LLAMA = "bert/BertForMaskedLM", "vit/ViTForImageClassification", "llama-gqa/LlamaForCausalLM"
GPT2 = "gpt2-untied/GPT2LMHeadModel"
ALL = {"target_modules": "all-linear"}


def base(folder, case, dtype=torch.float64):
    """A random model as the folder `base`."""
    model(case, dtype=dtype).save_pretrained(folder / "base")
    return folder / "base"


def lora(base, name="lora", seed=0, dtype=torch.float64, **options):
    """A random adapter of a model as a folder beside it."""
    torch.manual_seed(seed)
    made = getattr(transformers, load(base).architecture).from_pretrained(base, dtype=dtype)
    return saved(made, base.with_name(name), **options)


def saved(model, folder, **options):
    """A random adapter of a model in memory as a folder."""
    made = get_peft_model(model, LoraConfig(**{"r": 3, "lora_alpha": 5, **options}))
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    made.save_pretrained(folder)
    return folder


def element_of(case, source, symmetry="gl"):
    """A random element from a model's gauge to that of another model, and the model typed for it."""
    typed, other = Typed.of(load(source)), Typed.of(load(model(case, seed=7)))
    if symmetry != "plain" and typed.spec.norms and typed.spec.tied:
        typed, other = typed.untied(), other.untied()
    options = {"folded": bool(typed.spec.norms), "free_biases": True, "balanced": symmetry == "gl"}
    form = form_of(typed.spec, **options if symmetry != "plain" else {})
    gauges = {"source": gauge_of(form, typed), "target": gauge_of(form, other)}
    return replace(Element.sample(form, 3), **gauges), typed


def function(base, adapter=None):
    """Float64 outputs on probe inputs, with the adapter as PEFT runs it."""
    checkpoint = load(base)
    made = getattr(transformers, checkpoint.architecture).from_pretrained(base, dtype=torch.float64)
    if adapter is not None:
        made = PeftModel.from_pretrained(made, adapter).base_model.model
    return outputs(made.eval(), probe(checkpoint.config, checkpoint.architecture))


def change(found, reference):
    return float((found - reference).abs().max() / reference.abs().max())
