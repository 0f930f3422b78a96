"""Models whose tensors have other names on the hub than within Transformers, or in versions of it."""

import copy

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, outputs
from cobasin.finding.match import match
from cobasin.verification import CERTAINLY_DIFFERENT, computed, relative_change
from command_line import duplicate, edit_tensors, refused, run, stock, tensors_of
from sampling import one_in
from tiny_models import CASES, model

pytestmark = pytest.mark.usefixtures("few_rounds")

GEMMA = "gemma3-pictures/Gemma3ForConditionalGeneration"
QWEN = "qwen2.5-vl/Qwen2_5_VLForConditionalGeneration"
LLAVA = "llava-next/LlavaNextForConditionalGeneration"
ESM = "esm/EsmForMaskedLM"
GTE = "gte/GteForMaskedLM"
MAE = "vit-mae/ViTMAEForPreTraining"
MIXED = "qwen3.5/Qwen3_5ForCausalLM"
NEMOTRON = "nemotron-h-experts/NemotronHForCausalLM"
MISTRAL = "mistral3-ministral-biased-tied/Mistral3ForConditionalGeneration"
MLLAMA = "mllama/MllamaForConditionalGeneration"
T5GEMMA = "t5gemma2/T5Gemma2ForConditionalGeneration"
T5_EYE, T5_TEXT = "model.encoder.vision_tower.", {"model.encoder.": "model.encoder.text_model."}
# a case, and other beginnings of names in its files: those of the hub, and those within Transformers
OTHERS = [
    (GEMMA, {"vision_tower.": "vision_tower.vision_model."}),
    (GEMMA, {"language_model.model.": "model.language_model.", "": "model."}),
    (MISTRAL, {"language_model.model.": "model.language_model.", "": "model."}),
    (LLAVA, {"vision_tower.": "vision_tower.vision_model."}),
    (LLAVA, {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head.", "": "model."}),
    (MLLAMA, {"language_model.model.": "model.language_model.", "language_model.lm_head.": "lm_head.", "": "model."}),
    (ESM, {"esm.encoder.layer.*.": "esm.encoder.layer.0."}),
    (GTE, {"gte.": "new."}),
    (QWEN, {"lm_head.": "lm_head.", "visual.": "model.visual.", "model.": "model.language_model."}),
    (MIXED, {"model.": "model.language_model."}),
    (NEMOTRON, {"backbone.": "model."}),
    (MAE, {"decoder.decoder_encoder.layer.": "decoder.decoder_layers."}),
    (T5GEMMA, {T5_EYE: f"{T5_EYE}vision_model.", "model.encoder.multi": "model.encoder.multi", **T5_TEXT}),
]


def renamed(folder, case, beginnings, seed=0):
    """A model, and the same with other names in its file."""
    for name in ("own", "other"):
        model(case, seed, torch.float32).save_pretrained(folder / name)

    def change(tensors):
        for name in list(tensors):
            old = next((beginning for beginning in beginnings if name.startswith(beginning)), name)
            new = beginnings.get(old, old) + name.removeprefix(old)
            tensors[new] = tensors.pop(name)

    edit_tensors(folder / "other", change)
    assert tensors_of(folder / "own").keys() != tensors_of(folder / "other").keys()
    return folder / "own", folder / "other"


@pytest.mark.parametrize(("case", "beginnings"), one_in(3, OTHERS[::2]))
def test_either_name_is_read(tmp_path, case, beginnings):
    """As stock Transformers reads it; and what is written has the names that were read."""
    own, other = renamed(tmp_path, case, beginnings)
    assert run("verify", own, other).code == 0
    stock(other)
    model(case, 5, torch.float32).save_pretrained(tmp_path / "anchor")
    found = run("match", other, tmp_path / "anchor", "--out", tmp_path / "other-out", "--json")
    expected = match(own, tmp_path / "anchor").report["distance_after"]
    assert found.json["distance_after"] == pytest.approx(expected, rel=1e-6)
    untied = {"lm_head.weight", "language_model.lm_head.weight", "lm_head.decoder.weight"}
    assert tensors_of(tmp_path / "other-out").keys() - untied == tensors_of(other).keys() - untied
    assert run("verify", other, tmp_path / "other-out").code == 0
    stock(tmp_path / "other-out")


def test_a_head_that_is_untied_has_a_name_like_the_others(tmp_path):
    own, other = renamed(tmp_path, *OTHERS[2])
    model(MISTRAL, 5, torch.float32).save_pretrained(tmp_path / "anchor")
    for end, name in ((own, "language_model.lm_head.weight"), (other, "lm_head.weight")):
        assert run("match", end, tmp_path / "anchor", "--out", tmp_path / "out", "--overwrite").code == 0
        assert tensors_of(tmp_path / "out").keys() - tensors_of(end).keys() == {name}
        stock(tmp_path / "out")


def test_what_is_missing_is_named_as_the_file_would(tmp_path):
    own, other = renamed(tmp_path, *OTHERS[0])
    lost = "vision_tower.vision_model.post_layernorm.weight"
    edit_tensors(other, lambda tensors: tensors.pop(lost))
    assert f"missing tensor {lost} (16,)" in refused(tmp_path, "match", other, own, "--out", tmp_path / "out")


AFTER_THE_LAST = {f"model.layers.2.{name}.weight": (24, 48) for name in ("eh_proj", "other", "mlp.gate")}
MTP = {"mtp.fc.weight": (24, 48), "mtp.layers.0.mlp.experts.gate_up_proj": (4, 16, 24)}


@pytest.mark.parametrize(
    ("case", "shapes"),
    one_in(
        2,
        [
            (MIXED, MTP),
            ("qwen3.5-moe-pictures-tied/Qwen3_5MoeForConditionalGeneration", MTP),
            ("deepseek3/DeepseekV3ForCausalLM", AFTER_THE_LAST),
            ("hyv3/HYV3ForCausalLM", AFTER_THE_LAST),
            ("glm5-shared-biased-tied/GlmMoeDsaForCausalLM", AFTER_THE_LAST),
            (NEMOTRON, {"mtp.layers.0.eh_proj.weight": (24, 48)}),
            ("exaone-moe/ExaoneMoeForCausalLM", {"mtp.fc.weight": (24, 48)}),
            ("mistral-large4-pictures/MistralLarge4ForConditionalGeneration", {"mtp_dspark.norm.weight": (24,)}),
            ("ernie-moe/Ernie4_5_MoeForCausalLM", {"model.mtp_linear_proj.0.weight": (24, 48)}),
        ],
    ),
)
def test_layers_that_predict_further_tokens_stay_as_they_are(tmp_path, case, shapes):
    """They are in files of the hub, and the class does not read them."""
    further = {name: torch.randn(shape) for name, shape in shapes.items()}
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed, torch.float32).save_pretrained(tmp_path / name)
    edit_tensors(tmp_path / "source", lambda tensors: tensors.update(further))
    matched = run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out")
    assert matched.code == 0
    assert f"source: {len(further)} tensors of layers that predict further tokens" in " ".join(matched.out.split())
    assert run("verify", tmp_path / "source", tmp_path / "out").code == 0
    written = tensors_of(tmp_path / "out")
    assert all(written[name].equal(tensor) for name, tensor in further.items())


def test_experts_that_are_stored_transposed(tmp_path):
    """As on the hub: Transformers tells it by their shapes, and writes them as it has them in memory."""
    case = "qwen3-vl-moe-dense-tied/Qwen3VLMoeForConditionalGeneration"
    for seed, name in enumerate(("source", "anchor")):
        for folder in (tmp_path / name, tmp_path / f"{name}-turned"):
            model(case, seed, torch.float32).save_pretrained(folder)

        def turn(tensors):
            for expert in [name for name in tensors if ".experts." in name]:
                tensors[expert] = tensors[expert].mT.contiguous()

        edit_tensors(tmp_path / f"{name}-turned", turn)
    assert run("verify", tmp_path / "source", tmp_path / "source-turned").code == 0
    found = [
        run(
            "match",
            *(tmp_path / f"{end}{kind}" for end in ("source", "anchor")),
            "--out",
            tmp_path / f"out{kind}",
            "--json",
        )
        for kind in ("", "-turned")
    ]
    assert found[0].json["distance_after"] == pytest.approx(found[1].json["distance_after"], rel=1e-6)
    assert found[0].json["distance_after"] < 0.9 * found[0].json["distance_before"]
    assert run("verify", tmp_path / "source", tmp_path / "out-turned").code == 0
    stock(tmp_path / "out-turned")
    shapes = [
        {name: tensor.shape for name, tensor in tensors_of(tmp_path / f).items()}
        for f in ("source-turned", "out-turned")
    ]
    assert shapes[0].items() <= shapes[1].items()


@pytest.mark.parametrize("case", [GEMMA, QWEN])
def test_a_probe_has_a_picture_in_every_row(case):
    """Of as many tokens as the tower makes of it; in another picture, other logits behind it, and the same before."""
    made = load(model(case))
    inputs = probe(made.config, made.architecture)
    running = instantiate(made, torch.float64)
    other = inputs | {"pixel_values": inputs["pixel_values"].flip(0)}
    before, after = (running(**one | {"logits_to_keep": 0}).logits for one in (inputs, other))
    image = made.config.image_token_id
    assert ((inputs["input_ids"] == image).sum(1) == 4).all()
    assert torch.equal(before[:, 0], after[:, 0])
    assert not torch.isclose(before[:, 1:5], after[:, 1:5]).all(-1).any()
    text = inputs["attention_mask"] * (inputs["input_ids"] != image)  # what is compared: no logits of a picture
    assert len(outputs(running, inputs)) == int(text.sum()) * before.shape[-1]


@pytest.mark.parametrize(
    ("case", "changes", "text"),
    [
        (GEMMA, {"vision_config.model_type": "clip_vision_model"}, "vision_config.model_type 'clip_vision_model'"),
        (GEMMA, {"image_token_index": None}, "image_token_id other than a number"),
        (
            "paligemma/PaliGemmaForConditionalGeneration",
            {"text_config.model_type": "gemma3_text"},
            "text_config.model_type",
        ),
    ],
)
def test_other_parts_than_those_of_the_declaration(tmp_path, case, changes, text):
    model(case, 0, torch.float32).save_pretrained(tmp_path / "own")
    other = duplicate(tmp_path / "own", "other", **changes)
    line = refused(tmp_path, "match", other, tmp_path / "own", "--out", tmp_path / "out")
    assert f"{other}: {text}" in line
    assert "is not covered" in line


def test_a_tower_has_no_name_that_transformers_cannot_read(tmp_path):
    """Pixtral's has none but its own."""
    own, other = renamed(tmp_path, MISTRAL, {"vision_tower.": "vision_tower.vision_model."})
    line = refused(tmp_path, "merge", other, own, "--match", "none", "--out", tmp_path / "out")
    assert "missing tensor vision_tower.ln_pre.weight" in line


def test_keys_that_no_layer_reads(tmp_path):
    """Files of Google have keys and values in layers that read those of another one; saved again they have not."""
    for seed, name in enumerate("ab"):
        model("gemma4-shared/Gemma4ForCausalLM", seed, torch.float32).save_pretrained(tmp_path / name)
    shape = tensors_of(tmp_path / "a")["model.layers.2.self_attn.k_proj.weight"].shape
    unread = "model.layers.3.self_attn.k_proj.weight"
    edit_tensors(tmp_path / "a", lambda tensors: tensors.update({unread: torch.ones(shape)}))
    assert run("match", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out").code == 0
    assert tensors_of(tmp_path / "out")[unread].eq(1).all()
    assert run("verify", tmp_path / "a", tmp_path / "out").code == 0
    assert run("merge", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "merged").code == 0
    stock(tmp_path / "merged")


def assert_rows_count(made, name, rows, axis=0):
    """Another one of these rows of a table is another function; the model itself runs once for all of them."""
    given = load(made)
    inputs = probe(given.config, given.architecture)
    expected, table = computed(given, inputs), made.state_dict()[name]
    for row in rows:
        one = table.select(axis, row)
        kept = one.clone()
        one += 3 * torch.randn_like(one)
        assert relative_change(expected, computed(load(made), inputs)) > CERTAINLY_DIFFERENT, row
        one.copy_(kept)
    assert torch.equal(computed(load(made), inputs), expected)  # control


def test_every_row_of_a_table_of_positions_counts():
    """Also those between the few points at which it is read for a small picture."""
    made = model("qwen3-vl/Qwen3VLForConditionalGeneration")
    config = copy.deepcopy(made.config)
    config.vision_config.num_position_embeddings = 144
    wide = type(made)(config).double().eval()
    assert_rows_count(wide, "model.visual.pos_embed.weight", (0, 5, 30, 66, 77, 143))


@pytest.mark.parametrize(
    ("case", "name", "axis"),
    [
        ("gemma4-pictures", "model.vision_tower.patch_embedder.position_embedding_table", 1),
        ("gemma4-unified-pictures", "model.embed_vision.pos_embedding", 0),
        ("gemma4-shared", "model.embed_tokens_per_layer.weight", 0),
        ("gemma4-experts", "model.layers.0.experts.down_proj", 0),
        ("luke", "entity_embeddings.entity_embeddings.weight", 0),
    ],
)
def test_every_row_of_other_tables_counts(case, name, axis):
    """Those of positions are no embeddings, inputs of layers and entities have their own, few tokens meet an expert."""
    made = model(next(one for one in CASES if one.startswith(f"{case}/")))
    assert_rows_count(made, name, range(made.state_dict()[name].shape[axis]), axis)


@pytest.mark.parametrize(
    ("case", "within"),
    [
        ("clip-text/CLIPTextModel", "text_model."),
        ("clip-vision/CLIPVisionModel", "vision_model."),
        (LLAVA, "vision_tower.vision_model."),
    ],
)
def test_numbers_of_positions_in_modules_of_other_names(tmp_path, case, within):
    """Integers, which older versions of Transformers wrote; of no other tensor they are taken."""
    for seed, name in enumerate("ab"):
        model(case, seed, torch.float32).save_pretrained(tmp_path / name)
    ids = {f"{within}embeddings.position_ids": torch.arange(5)[None]}
    edit_tensors(tmp_path / "a", lambda tensors: tensors.update(ids))
    assert run("match", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out").code == 0
    assert all(tensors_of(tmp_path / "out")[name].equal(tensor) for name, tensor in ids.items())
    assert run("verify", tmp_path / "a", tmp_path / "out").code == 0
    assert run("merge", tmp_path / "b", tmp_path / "a", "--out", tmp_path / "merged").code == 0


@pytest.mark.parametrize(
    ("case", "constant"),
    [
        ("codegen/CodeGenForCausalLM", {"h.0.attn.causal_mask": torch.ones(1, 1, 32, 32, dtype=torch.uint8)}),
        ("gpt1/OpenAIGPTLMHeadModel", {"position_ids": torch.arange(32), "h.0.attn.bias": torch.ones(1, 1, 32, 32)}),
    ],
)
def test_masks_and_numbers_of_positions_in_files_of_decoders(tmp_path, case, constant):
    """As in codegen-350M-mono, and in what older versions of Transformers wrote."""
    for seed, name in enumerate("ab"):
        model(case, seed, torch.float32).save_pretrained(tmp_path / name)
    constant = {f"transformer.{name}": tensor for name, tensor in constant.items()}
    edit_tensors(tmp_path / "a", lambda tensors: tensors.update(constant))
    assert run("match", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out").code == 0
    assert all(tensors_of(tmp_path / "out")[name].equal(tensor) for name, tensor in constant.items())
    assert run("verify", tmp_path / "a", tmp_path / "out").code == 0
    other = "transformer.h.0.attn.mask"
    edit_tensors(tmp_path / "b", lambda tensors: tensors.update({other: torch.ones(2)}))
    line = refused(tmp_path, "match", tmp_path / "b", tmp_path / "a", "--out", tmp_path / "late")
    assert f"unexpected tensor {other}" in line  # control


def test_a_file_without_what_only_training_reads(tmp_path):
    """As that of wav2vec2-base-960h."""
    for seed, name in enumerate("ab"):
        model("wav2vec2/Wav2Vec2ForCTC", seed, torch.float32).save_pretrained(tmp_path / name)
    edit_tensors(tmp_path / "a", lambda tensors: tensors.pop("wav2vec2.masked_spec_embed"))
    for source, anchor in ("ab", "ba"):
        out = tmp_path / f"{source}-out"
        assert run("match", tmp_path / source, tmp_path / anchor, "--out", out).code == 0
        assert run("verify", tmp_path / source, out).code == 0
    edit_tensors(tmp_path / "b", lambda tensors: tensors.pop("lm_head.bias"))
    assert "needs tensors that the checkpoint lacks: lm_head.bias" in run("verify", tmp_path / "b", tmp_path / "a").err
