"""Bases, and models of other classes with their layers: fine-tunes with heads of their own."""

import torch

from tiny_models import model

BASES = {
    "roberta/RobertaForSequenceClassification": "roberta/RobertaForMaskedLM",
    "bert/BertForSequenceClassification": "bert/BertForMaskedLM",  # without the pooler that the classifier reads
    "vit/ViTForImageClassification": "vit/ViTModel",
    "gpt2/GPT2ForTokenClassification": "gpt2/GPT2LMHeadModel",
    "mixtral/MixtralForSequenceClassification": "mixtral-fused/MixtralForCausalLM",  # experts in one tensor
    "wav2vec2-pre-training/Wav2Vec2ForCTC": "wav2vec2-pre-training/Wav2Vec2ForPreTraining",  # without books
    "t5/T5ForSequenceClassification": "t5/T5ForConditionalGeneration",
    "t5/T5ForTokenClassification": "t5/T5ForConditionalGeneration",  # an encoder alone
}


def fine_tunes(base, case, count=2):
    """Models of another class, with a base's layers and a little noise, and heads of their own."""
    found, there = [], shared(base)
    for seed in range(1, count + 1):
        made = model(case, seed)
        with torch.no_grad():
            for name, tensor in shared(made).items():
                if name in there:
                    tensor.copy_(there[name] + 0.05 * torch.randn_like(tensor))
        found.append(made)
    return found


def shared(model):
    """The parameters of the base model by their names there, the others by their own."""
    prefix = f"{model.base_model_prefix}."
    return {name.removeprefix(prefix): tensor for name, tensor in model.named_parameters()}
