"""The order in which couplings flow, found by running models of every family."""

import pytest
import torch

import tiny_models
from cobasin.checkpoints.probes import probe
from cobasin.checkpoints.running import instantiate
from cobasin.checkpoints.typed import Typed
from cobasin.coupling.flow import flow_of
from cobasin.coupling.uses import uses_of
from cobasin.errors import InputError
from sampling import one_in

# what is written there: by fused attention, by weights whose layer is not called, behind gains all share; as biases of
# all layers, before a head is; with all of a head its basis, and sinks have none; what no layer writes at all
NOT_FOLLOWED = {
    **dict.fromkeys(("siglip", "siglip2"), "vision_pool_head x vision_pool_qk"),
    "xlnet": "head.0",
    "dinov2-swiglu": "ffn.0",
    "dinov2-registers-swiglu": "ffn.0",
    "wav2vec2-pre-training": "piece",
    "wavlm": "qk.0",
    "wavlm-stable": "qk.0",
    "wavlm-weighted": "qk.0",
    "gemma4-sounds": "audio_qk.0",
    "gemma4-sounds-clipped": "audio_qk.0",
    "embeddinggemma2-pictures": "audio_qk.0",
    **dict.fromkeys(("wav2vec2-bert-relative", "wav2vec2-conformer"), "head.0"),
    "dbrx": "expert.0 x ffn.0",
    **dict.fromkeys(("diffllama", "diffllama-biased-tied"), "factor_1.0"),
    **dict.fromkeys(("mistral-large4-biased", "mistral-large4-pictures"), "kv.1"),
    "phi-qk-norm": "nope.0",
    "stablelm-12b": "nope.0",
    "persimmon": "nope.0",
    **dict.fromkeys(("layoutlmv3", "layoutlmv3-words"), "head"),
    **dict.fromkeys(("granite-swa", "granite-moe-swa", "granite-moe-swa-shared"), "kv.1"),
    **dict.fromkeys(("nomic-bert", "nomic-bert-untied", "nomic-bert-wide"), "head.0"),
    **dict.fromkeys(("jina-v3", "jina-v3-untied-relu", "gte", "gte-without-types-untied"), "head.0"),
}
EXPERTS = r"(expert|(expert_)?ffn)\.[01]"  # of any mixture
FAMILIES = {case.split("/")[0]: case for case in reversed(tiny_models.CASES)}


def typed(case: str) -> Typed:
    return Typed.of(tiny_models.checkpoint(case))


@pytest.mark.parametrize("family", one_in(6, [*FAMILIES]))
def test_every_family_is_followed_or_refused(family):
    model = typed(FAMILIES[family])
    refused = NOT_FOLLOWED.get(family, EXPERTS if "expert" in model.spec.spaces else None)
    if refused is not None:
        with pytest.raises(InputError, match=f"no linear layer is seen to write {refused}, which "):
            flow_of(model)
        return
    flow = flow_of(model)
    done: set[int] = set()
    for stage in flow.order:  # nothing is needed before it is there
        writers = [name for name, _ in flow.stages[stage].writers]
        needed = {one.stage for name in writers for one in flow.acting[name] if not one.writes}
        assert needed | {flow.stages[stage].before} - {None} <= done
        done.add(stage)
    assert done == set(range(len(flow.stages)))
    for name, entry in model.spec.entries.items():
        assert len(flow.acting.get(name, ())) == len(uses_of(model.spec, entry))


def text_of(flow, name: str) -> dict[str, tuple]:
    """What acts on a tensor: the basis on each side, with the number of its stage."""
    return {
        "writes" if one.writes else "reads": (".".join(key[0] for key in one.use.basis), one.stage)
        for one in flow.acting[name]
    }


def test_a_pre_norm_model():
    flow = flow_of(typed("vit/ViTForImageClassification"))
    layer, patches = "encoder.layer.0", text_of(flow, "embeddings.patch_embeddings.projection.weight")
    start = patches["writes"]
    assert text_of(flow, "embeddings.cls_token")["writes"] == start
    assert text_of(flow, "embeddings.position_embeddings")["writes"] == start
    query, key = (text_of(flow, f"{layer}.attention.attention.{name}.weight") for name in ("query", "key"))
    assert query == key  # one coupling for both
    assert query["reads"] == text_of(flow, f"{layer}.layernorm_before.weight")["reads"] == start
    value, output = (text_of(flow, f"{layer}.attention.{name}.weight") for name in ("attention.value", "output.dense"))
    assert value["writes"] == output["reads"]
    assert value["writes"][0] == "head.vo"  # across heads
    assert output["writes"] == text_of(flow, f"{layer}.attention.output.dense.bias")["writes"]
    up = text_of(flow, f"{layer}.intermediate.dense.weight")
    assert up["reads"] == output["writes"] != start
    assert flow.stages[output["writes"][1]].before == start[1]
    assert text_of(flow, "classifier.weight") == {"reads": text_of(flow, "encoder.layer.1.output.dense.bias")["writes"]}
    assert "classifier.bias" not in flow.acting


def test_parallel_branches_read_and_write_one_stage():
    flow = flow_of(typed("gptj/GPTJForCausalLM"))
    query, up = text_of(flow, "h.0.attn.q_proj.weight"), text_of(flow, "h.0.mlp.fc_in.weight")
    assert query["reads"] == up["reads"]
    output, down = text_of(flow, "h.0.attn.out_proj.weight"), text_of(flow, "h.0.mlp.fc_out.weight")
    assert output["writes"] == down["writes"]
    in_turn = flow_of(typed("gptneox-sequential-tied/GPTNeoXForCausalLM"))
    output, up = (text_of(in_turn, f"layers.0.{name}.weight") for name in ("attention.dense", "mlp.dense_h_to_4h"))
    assert output["writes"] == up["reads"]


def test_cross_attention_reads_the_stream_of_the_encoder():
    flow = flow_of(typed("bart/BartForConditionalGeneration"))
    last = text_of(flow, "encoder.layers.1.final_layer_norm.weight")["reads"]
    keys = [text_of(flow, f"decoder.layers.{i}.encoder_attn.k_proj.weight")["reads"] for i in (0, 1)]
    assert keys == [last, last]
    assert text_of(flow, "decoder.layers.1.encoder_attn.q_proj.weight")["reads"] != last


def test_rotary_coordinates_and_query_heads_keep_their_places():
    flow = flow_of(typed("llama-gqa/LlamaForCausalLM"))
    own = "layers.0.self_attn"
    query, key = text_of(flow, f"{own}.q_proj.weight"), text_of(flow, f"{own}.k_proj.weight")
    assert query["writes"] == key["writes"]
    assert query["writes"][0] == "kv"
    value, output = text_of(flow, f"{own}.v_proj.weight"), text_of(flow, f"{own}.o_proj.weight")
    assert value["writes"] == output["reads"]
    assert value["writes"][0] == "kv.vo"


def test_a_tied_head_is_coupled_as_its_embedding():
    flow = flow_of(typed("gpt2/GPT2LMHeadModel"))
    assert flow.acting["lm_head.weight"] == flow.acting["wte.weight"]
    untied = flow_of(typed("gpt2-untied/GPT2LMHeadModel"))
    assert text_of(untied, "lm_head.weight")["reads"] != text_of(untied, "wte.weight")["writes"]


@pytest.mark.parametrize(
    ("case", "skip", "branch", "writer"),
    [
        ("gpt2/GPT2LMHeadModel", "in h.1.ln_1", "out h.1.attn.c_proj", "h.1.attn.c_proj.weight"),
        (
            "bert/BertForMaskedLM",
            "out encoder.layer.0.output.LayerNorm",
            "out encoder.layer.1.attention.output.dense",
            "encoder.layer.1.attention.output.dense.weight",
        ),
        (
            "gemma2/Gemma2ForCausalLM",
            "in layers.1.input_layernorm",
            "out layers.1.post_attention_layernorm",
            "layers.1.self_attn.o_proj.weight",
        ),
    ],
)
def test_sizes_on_a_residual_stream(case, skip, branch, writer):
    model = typed(case)
    flow, running, seen = flow_of(model), instantiate(model.checkpoint, torch.float32), {}

    def keep(name):
        def hook(_, arguments, output):
            seen[f"in {name}"], seen[f"out {name}"] = arguments[0], output

        return hook

    for place in (skip, branch):
        name = place.split()[1]
        running.base_model.get_submodule(name).register_forward_hook(keep(name))
    with torch.no_grad():
        running(**probe(model.checkpoint.config, model.checkpoint.architecture))
    stage = flow.stages[text_of(flow, writer)["writes"][1]]
    for place, found in ((skip, stage.skip), (branch, stage.branch)):
        assert torch.allclose(seen[place].abs().mean((0, 1)), found, rtol=1e-4)
    assert not torch.allclose(stage.skip, stage.branch, rtol=0.01)


def test_a_scaled_branch_is_measured_behind_its_scale():
    flow = flow_of(typed("dinov2/Dinov2ForImageClassification"))
    stages = [stage for stage in flow.stages if stage.before is not None]
    assert all(stage.branch is not None for stage in stages)
