"""Models made of two others: what is particular to them, besides what the generic suite runs over them."""

import numpy as np
import pytest
import torch
import transformers
import yaml
from PIL import Image

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate, model_class
from cobasin.finding.applying import transform
from cobasin.finding.match import match
from cobasin.verification import FLOAT32_PARTS, change, verify
from command_line import duplicate, edit_tensors, near, refused, run, tensors_of
from merge_cases import recipe
from tiny_models import config, model

BERTS, TROCR = "bert2bert/EncoderDecoderModel", "trocr/VisionEncoderDecoderModel"
VIT_GPT2, TOWERS = "vit2gpt2/VisionEncoderDecoderModel", "clip-roberta/VisionTextDualEncoderModel"
pytestmark = pytest.mark.usefixtures("one_round")


def logits(folder, inputs):
    """What Transformers computes with a folder in float64."""
    made = model_class(load(folder).architecture).from_pretrained(folder, dtype=torch.float64)
    with torch.no_grad():
        found = made.eval()(**{name: x.double() if x.is_floating_point() else x for name, x in inputs.items()})
    return found["logits_per_image" if "logits_per_image" in found else "logits"]


@pytest.mark.parametrize("case", [BERTS, TROCR, VIT_GPT2, TOWERS])
def test_what_is_written_is_loaded_and_computes_the_same(tmp_path, case):
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed).save_pretrained(tmp_path / name)
    assert run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    inputs = probe(config(case), case.split("/")[1], 5)
    if "decoder_input_ids" in inputs:
        inputs["decoder_input_ids"] = inputs["decoder_input_ids"][:, :7]
    found, wanted = logits(tmp_path / "out", inputs), logits(tmp_path / "source", inputs)
    assert torch.allclose(found, wanted, atol=1e-10 * wanted.abs().max())
    assert not torch.allclose(found, logits(tmp_path / "anchor", inputs), atol=1e-2)


def test_the_encoder_alone_has_the_pooler_that_it_had(tmp_path):
    """Nothing in the whole reads it, and it reads a norm that is folded."""
    source, anchor = (model(TROCR, seed) for seed in range(2))
    moved = instantiate(transform(match(source, anchor), source), torch.float64)
    pixels = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        found, wanted = (one.encoder(pixels).pooler_output for one in (moved, source))
    assert torch.allclose(found, wanted)


@pytest.mark.parametrize("case", [BERTS, TROCR])
def test_files_may_lack_the_pooler_of_the_encoder(tmp_path, case):
    """As those of TrOCR on the hub do."""
    for seed, name in enumerate(("source", "anchor")):
        model(case, seed).save_pretrained(tmp_path / name)
        edit_tensors(tmp_path / name, lambda tensors: [tensors.pop(one) for one in [*tensors] if ".pooler." in one])
        assert not any("pooler" in one for one in tensors_of(tmp_path / name))
    assert run("match", tmp_path / "source", tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    assert verify(tmp_path / "source", tmp_path / "out").same


def test_older_files_name_a_tower_of_clip_twice(tmp_path):
    for seed, name in enumerate(("source", "anchor")):
        model(TOWERS, seed).save_pretrained(tmp_path / name)
    older = duplicate(tmp_path / "source", "older")
    tower = "vision_model."
    edit_tensors(
        older, lambda tensors: tensors.update({tower + x: tensors.pop(x) for x in [*tensors] if x.startswith(tower)})
    )
    assert run("match", older, tmp_path / "anchor", "--out", tmp_path / "out").code == 0
    assert all(name.startswith(2 * tower) for name in tensors_of(tmp_path / "out") if name.startswith(tower))
    assert verify(tmp_path / "source", tmp_path / "out").same


@pytest.mark.parametrize("first", [0, 1])
def test_tied_against_untied_heads(first):
    tied = model(VIT_GPT2)
    untied = near(tied)
    untied.config.decoder.tie_word_embeddings = False
    untied = near(untied)
    assert untied.decoder.lm_head.weight is not untied.decoder.transformer.wte.weight
    source, anchor = (load(one) for one in (tied, untied)[:: 1 - 2 * first])
    assert change(source, transform(match(source, anchor), source)) < FLOAT32_PARTS


def test_positions_that_no_file_has_are_computed():
    """Transformers leaves them without values as it reads a file, and TrOCR would not run."""
    source, anchor = (load(model("trocr-sines-untied/VisionEncoderDecoderModel", seed)) for seed in range(2))
    assert change(source, transform(match(source, anchor), source)) < FLOAT32_PARTS


@pytest.mark.parametrize(
    ("case", "part", "kind"),
    [
        (BERTS, "encoder", "albert"),
        (TROCR, "encoder", "swinv2"),
        (VIT_GPT2, "decoder", "opt"),
        (TOWERS, "vision_config", "dinov2"),
        (TOWERS, "text_config", "albert"),
    ],
)
def test_a_part_that_is_not_declared_is_named(tmp_path, case, part, kind):
    model(case).save_pretrained(tmp_path / "model")
    other = transformers.AutoConfig.for_model(kind).to_dict()
    folder = duplicate(tmp_path / "model", "other", **{part: other})
    line = refused(tmp_path, "inspect", folder)
    assert f"{part}.model_type {kind!r} is not covered" in line


def test_pictures_and_their_texts_are_data(tmp_path):
    rows = tmp_path / "rows.jsonl"
    for place in range(6):
        pixels = np.random.default_rng(place).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{place}.png")
    rows.write_text("".join(f'{{"image": "{place}.png", "label": [5, 6, {place + 7}]}}\n' for place in range(6)))
    for seed in range(2):
        model(TROCR, seed, torch.float32).save_pretrained(tmp_path / f"{seed}")
    parents, data = [tmp_path / "0", tmp_path / "1"], {"path": str(rows), "mean": [0.5], "std": [0.5]}
    for method in ("regmean", "fisher"):
        told = recipe(tmp_path / "recipe.yaml", method, parents, statistics={"data": data, "samples": 6}, match="full")
        assert run("merge", told, "--out", tmp_path / method).code == 0
        assert load(tmp_path / method).architecture == "VisionEncoderDecoderModel"
    (tmp_path / "data.yaml").write_text(yaml.safe_dump(data))
    drawn = ("--data", tmp_path / "data.yaml", "--points", 3, "--match", "paper", "--out", tmp_path / "line")
    assert run("path", *parents, *drawn).code == 0


def test_probes_tell_the_segments_of_what_the_encoder_reads():
    """The whole hands them on, though it does not name them among its inputs."""
    made = model(BERTS)
    inputs = probe(made.config, type(made).__name__)
    with torch.no_grad():
        told = made(**inputs).logits
        assert not torch.allclose(made(**inputs | {"token_type_ids": 0 * inputs["token_type_ids"]}).logits, told)
