"""XLNet: what it reads only where it is told what to predict, and its parameters in float64."""

import pytest
import torch

from cobasin.checkpoints.checkpoint import load
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from command_line import edit_json
from tiny_models import checkpoint, model

CASE = "xlnet/XLNetLMHeadModel"


def fine(case):
    """A model whose parameters no float32 has."""
    made = model(case)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1 + 1e-10)
    return made


def predicted(one):
    """What a checkpoint says of the third token, which no token sees, and of the fifth."""
    ids = torch.arange(5, 17).reshape(2, 6)
    hidden = torch.zeros(2, 6, 6, dtype=torch.float64)
    hidden[:, :, 2] = 1
    asked = torch.zeros(2, 2, 6, dtype=torch.float64)
    asked[:, 0, 2] = asked[:, 1, 4] = 1
    with torch.no_grad():
        return instantiate(one, torch.float64)(ids, perm_mask=hidden, target_mapping=asked).logits


@pytest.mark.usefixtures("float64_throughout")  # Transformers has the positions in float32
def test_what_it_is_told_to_predict():
    typed = Typed.of(checkpoint(CASE))
    moved = dict(Element.sample(form_of(typed.spec), 1).apply(typed))
    reference = predicted(typed.checkpoint)
    torch.testing.assert_close(predicted(typed.derived(moved)), reference, rtol=1e-9, atol=1e-9)
    still = typed.derived(moved | {"mask_emb": typed["mask_emb"]})
    assert (predicted(still) - reference).abs().max() > 1e-3


@pytest.mark.parametrize("case", [CASE, "xlnet/XLNetModel"])
def test_no_parameter_is_rounded(case):
    """Transformers makes those of attention in float32, whatever it is asked for."""
    own = fine(case)
    found = instantiate(load(own), torch.float64)
    assert all(torch.equal(found.state_dict()[name], x) for name, x in own.state_dict().items())


def test_nor_where_a_file_has_the_names_of_a_head(tmp_path):
    """Which the bare model reads without them."""
    own = fine(CASE)
    own.save_pretrained(tmp_path)
    edit_json(tmp_path / "config.json", lambda config: config.update(architectures=["XLNetModel"]))
    bare = load(tmp_path)
    assert "transformer.mask_emb" in bare
    inputs = probe(bare.config, bare.architecture)
    with torch.no_grad():
        found, expected = (
            one(**inputs).last_hidden_state for one in (instantiate(bare, torch.float64), own.transformer)
        )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("case", ["xlnet/XLNet", "xlm/XLM", "flaubert/Flaubert"])
def test_a_summary_that_transformers_only_announces(case):
    made = checkpoint(f"{case}ForSequenceClassification")
    made.config.summary_type = "attn"
    with pytest.raises(InputError, match="summary_type = attn is not covered"):
        Typed.of(made)
