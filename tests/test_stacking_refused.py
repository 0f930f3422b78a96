"""What `passthrough` refuses: recipes that stack nothing, and layers that would be others in their places."""

import pytest
import torch

from cobasin.checkpoints.checkpoint import Checkpoint, load
from cobasin.errors import InputError
from cobasin.merging.merge import merge, merge_recipe
from cobasin.merging.plan import plan
from cobasin.recipe import Recipe
from stack_cases import LLAMA, recipe, slice_of, three_layers
from tiny_models import checkpoint, model


def refusal(content: dict, models: dict | None = None) -> str:
    for check in (plan, lambda recipe, models: merge_recipe(recipe, models)):
        with pytest.raises(InputError) as refused:
            check(Recipe.of(content), models or {})
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"merge_method": "passthrough", "models": [{"model": "a"}, {"model": "b"}]},
            "models: passthrough stacks layers of models and fuses none, got 2; say under slices: which layers are",
        ),
        (
            recipe({"sources": [slice_of(name, 0, 2)["sources"][0] for name in "ab"]}),
            "slices[0] has 2 models: passthrough fuses none; give it one",
        ),
        (recipe(slice_of("a", 2, 2)), "slices[0].layer_range [2, 2] holds no layer"),
        (recipe(slice_of("a", 0, 2), head="keep"), "head: keep: passthrough makes one model, which has one head"),
        (
            recipe(slice_of("a", 0, 2), repair=True),
            "repair and heal: passthrough stacks layers, so its result lies not",
        ),
        (recipe(slice_of("a", 0, 2), heal=10), "repair and heal: passthrough stacks layers, so its result lies not"),
        (
            recipe(slice_of("a", 0, 2), base_model="b"),
            "base_model 'b' is none of the models, and passthrough has no base; take layers of it, or leave it out",
        ),
        (recipe(slice_of("a", 0, 2, parameters={"weight": 1})), "weight of a: passthrough has no such parameter"),
    ],
)
def test_recipes_that_stack_nothing_are_refused(content, message):
    assert refusal(content).removeprefix("recipe: ").startswith(message)


def test_layers_that_a_model_has_not_are_refused():
    a = checkpoint(LLAMA)
    assert refusal(recipe(slice_of("a", 1, 3)), {"a": a}).startswith(
        "recipe: slices[0].layer_range [1, 3]: a has 2 layers; the second number is exclusive"
    )


@pytest.mark.parametrize(
    ("case", "layers", "message"),
    [
        ("t5/T5ForConditionalGeneration", [0, 1, 1], "has several (decoder_layer, layer)"),
        ("llava/LlavaForConditionalGeneration", [0, 1, 1], "has several (layer, vision_layer)"),
        ("albert/AlbertForMaskedLM", [0, 0], "AlbertForMaskedLM has one whose length is not num_hidden_layers of"),
        (
            "deepseek3/DeepseekV3ForCausalLM",
            [1, 0],
            "first_k_dense_replace: a dense layer would come after one with exp",
        ),
        (
            "jamba/JambaForCausalLM",
            [0, 0, 1],
            "(expert_layer_period, expert_layer_offset, attn_layer_period, attn_layer_off",
        ),
        (
            "qwen3moe-dense/Qwen3MoeForCausalLM",
            [1, 0],
            "its config tells kinds of layers by their places (decoder_sparse_step)",
        ),
        (
            "modernbert/ModernBertForMaskedLM",
            [1, 0],
            "in these places they would be others (missing tensor model.layers.1.attn",
        ),
        ("esm/EsmForMaskedLM", [0, 1, 1], "esm.contact_head.regression.weight has shape (1, 8)"),
        (
            "gemma4-shared/Gemma4ForCausalLM",
            [0, 1],
            "num_kv_shared_layers: some layers take from the layers before them",
        ),
        (
            "glm5-shared-biased-tied/GlmMoeDsaForCausalLM",
            [1, 1],
            "indexer_types: some layers take from the layers before",
        ),
        ("zamba2/Zamba2ForCausalLM", [0, 1, 2], "num_mem_blocks: some layers share a block, which the file has in"),
        ("wavlm/WavLMForCTC", [1, 0], "layer 1 would be another one as layer 0: its attention.rel_attn_embed is"),
    ],
)
def test_layers_that_cannot_be_in_their_places_are_refused(case, layers, message):
    content = recipe(*(slice_of("a", layer, layer + 1) for layer in layers))
    assert message in refusal(content, {"a": checkpoint(case)})


def test_what_only_the_code_makes_of_a_place_is_refused():
    made = model("gpt2/GPT2LMHeadModel")
    made.config.scale_attn_by_inverse_layer_idx = True
    message = refusal(recipe(slice_of("a", 0, 2), slice_of("a", 1, 2)), {"a": load(made)})
    assert "layer 1 would be another one as layer 2: its attn.scaling is" in message
    assert message.endswith("its config tells kinds of layers by their places (scale_attn_by_inverse_layer_idx)")


def test_a_config_that_says_too_little_of_its_layers_is_refused():
    made = model("hunyuan-moe/HunYuanMoEV1ForCausalLM")
    made.config.moe_topk = [1]
    message = refusal(recipe(slice_of("a", 0, 2), slice_of("a", 0, 2)), {"a": load(made)})
    assert message.endswith("they cannot be built by transformers: list index out of range")


def named(model: Checkpoint) -> dict:
    return model.config.to_dict() | {"architectures": [model.architecture]}


def test_layers_that_predict_further_tokens_are_refused():
    a = checkpoint("exaone-moe/ExaoneMoeForCausalLM")
    tensors = dict(a) | {"mtp.norm.weight": torch.ones(2, dtype=torch.float64)}
    assert "predict further tokens" in refusal(recipe(slice_of("a", 0, 1)), {"a": load(tensors, named(a))})


def test_models_have_to_go_together():
    a, b = checkpoint(LLAMA), three_layers()
    message = refusal(recipe(slice_of("a", 0, 1), slice_of("b", 2, 3)), {"a": a, "b": b})
    assert "layer has size 3 in b and 2 in a" in message


def test_in_python_layers_are_stacked_by_a_recipe():
    with pytest.raises(InputError, match="passthrough stacks layers of models and fuses none"):
        merge([checkpoint(LLAMA), checkpoint(LLAMA, 1)], "passthrough")
