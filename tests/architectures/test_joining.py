"""Types under other names."""

import pytest

from cobasin.architectures import declare
from cobasin.architectures.joining import relabelled
from tiny_models import config


@pytest.mark.parametrize(
    "case",
    ["stablelm-12b/StableLmForCausalLM", "smollm3/SmolLM3ForCausalLM"],
    ids=["a product in a name", "layers of kinds"],
)
def test_spaces_under_other_names_act_where_they_did(case):
    spec = declare(config(case), case.split("/")[1])
    found = relabelled(spec, space="other_{}".format)
    assert {name: entry.layout.shape for name, entry in found.entries.items()} == {
        name: entry.layout.shape for name, entry in spec.entries.items()
    }
    assert found.sites == {(f"other_{space}", *index): sites for (space, *index), sites in spec.sites.items()}
