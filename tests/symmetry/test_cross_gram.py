"""Cross-Grams against loops over entries."""

import itertools

import pytest
import torch

from cobasin.symmetry.cross_gram import cross_gram
from cobasin.symmetry.groups import Gram, Orthogonal, Permutation, Rotation2, SignedPermutation
from random_states import random_state, spec_of
from sampling import one_in

GROUPS = {
    "pair": Rotation2(scaled=True),
    "vo": Orthogonal(scaled=True),
    "ffn": Permutation(signed=True, scaled=True),
    "kv": Permutation(),
    "rep": Permutation(),
    "resid": SignedPermutation,
}


def of(state):
    """Reads the tensor of a site."""
    return lambda site: state[site.tensor]


def naive(spec, space, group, sites, source, target, pairs=(), normalise=False):
    """The same by definition: one product of two entries at a time."""
    gram = Gram()
    for site in sites:
        block = spec.entries[site.tensor].layout.blocks[site.block]
        a, b = (block.view(side[site.tensor]) for side in (source, target))
        names = [axis.space for axis in block.axes]
        batch = [over for over in spec.batch_axes(space) if over not in pairs]
        sizes = [spec.sizes[s] if s in names else 1 for s in pairs]
        shape = [n for size in sizes for n in (size, size)] + [spec.sizes[s] for s in batch]
        n = spec.sizes[space]
        cross = torch.zeros(*shape, n, n, dtype=torch.float64)
        norms = [torch.zeros_like(cross[..., 0]) for _ in range(2)]
        weight = a.norm() * b.norm() if normalise else 1
        for i in itertools.product(*map(range, a.shape)):
            free = [range(a.shape[k]) if k == site.axis or names[k] in pairs else [i[k]] for k in range(a.ndim)]
            for j in itertools.product(*free):
                at = [side[names.index(s)] if s in names else 0 for s in pairs for side in (i, j)]
                at += [i[names.index(s)] for s in batch]
                cross[(*at, i[site.axis], j[site.axis])] += a[i] * b[j] / weight
                if j[site.axis] == i[site.axis]:  # once for every pair of heads: norms do not depend on the other's
                    norms[0][(*at, i[site.axis])] += a[i] ** 2
                    norms[1][(*at, j[site.axis])] += b[j] ** 2
        charge = block.axes[site.axis].charge if group.charged else 0
        gram.add(charge, cross)
        if group.scaled:
            gram.add_norms(charge, *norms)
    return gram


@pytest.fixture(scope="module")
def models():
    spec = spec_of("llama")
    return spec, random_state(spec, 0), random_state(spec, 1)


def broadcast(found, expected):
    return {charge: found[charge].expand(expected[charge].shape) for charge in expected}


@pytest.mark.parametrize(
    ("space", "pairs"),
    [
        ("pair", ()),
        ("vo", ()),
        ("ffn", ()),
        ("kv", ()),
        ("rep", ()),
        ("resid", ()),
        ("pair", ("kv",)),
        ("vo", ("kv",)),
        ("pair", ("kv", "rep")),
        ("vo", ("kv", "rep")),
    ],
)
@pytest.mark.parametrize("part", one_in(2, [50, 1 << 22]))
def test_against_loops(models, space, pairs, part, monkeypatch):
    """However many entries are brought to the dtype of the Gram at once."""
    monkeypatch.setattr("cobasin.symmetry.cross_gram._PART", part)
    spec, source, target = models
    key = ("resid",) if space == "resid" else (space, 1)
    sites = [site for site in spec.sites[key] if "embed" not in site.tensor and ".0." not in site.tensor]
    group = GROUPS[space]
    found = cross_gram(spec, space, group, sites, of(source), of(target), pairs)
    expected = naive(spec, space, group, sites, source, target, pairs)
    assert len(sites) >= 2
    assert found.cross.keys() == expected.cross.keys()
    for charge, cross in expected.cross.items():
        torch.testing.assert_close(found.cross[charge], cross)
    assert found.source.keys() == expected.source.keys() == (found.cross.keys() if group.scaled else set())
    for side in ("source", "target"):
        torch.testing.assert_close(broadcast(getattr(found, side), getattr(expected, side)), getattr(expected, side))


def test_charges_are_told_apart(models):
    spec, source, target = models

    def charges(space, group):
        found = cross_gram(spec, space, group, spec.sites[space, 0], of(source), of(target))
        return set(found.cross)

    assert charges("ffn", GROUPS["ffn"]) == {1, 0, -1}  # up, gate, down
    assert charges("vo", GROUPS["vo"]) == charges("pair", GROUPS["pair"]) == {1, -1}
    assert charges("ffn", Permutation()) == charges("vo", Orthogonal()) == {0}  # they do not rescale


def test_a_pair_knows_its_two_heads(models):
    """Element (p, q) of the pairs is the Gram of source group p and target group q."""
    spec, source, target = models
    found = cross_gram(spec, "vo", Orthogonal(), spec.sites["vo", 0], of(source), of(target), ("kv",)).total()
    v, o = (f"layers.0.self_attn.{name}_proj.weight" for name in "vo")
    rows = [side[v].view(2, 6, 16) for side in (source, target)]
    columns = [side[o].view(16, 2, 2, 6) for side in (source, target)]
    for p in range(2):
        for q in range(2):
            expected = rows[0][p] @ rows[1][q].T
            expected = expected + sum(columns[0][:, p, r].T @ columns[1][:, q, r] for r in range(2))
            torch.testing.assert_close(found[p, q], expected)


@pytest.mark.parametrize("part", [50, 1 << 22])
def test_normalised_terms_count_alike(models, part, monkeypatch):
    monkeypatch.setattr("cobasin.symmetry.cross_gram._PART", part)
    spec, source, target = models
    source = source | {"embed_tokens.weight": 1e6 * source["embed_tokens.weight"]}
    sites = [site for site in spec.sites["resid",] if site.tensor in ("embed_tokens.weight", "lm_head.weight")]
    arguments = (spec, "resid", Orthogonal(), sites, of(source), of(target))
    terms = [source[s.tensor].T @ target[s.tensor] / source[s.tensor].norm() / target[s.tensor].norm() for s in sites]
    torch.testing.assert_close(cross_gram(*arguments, normalise=True).total(), terms[0] + terms[1])
    torch.testing.assert_close(
        cross_gram(*arguments).total(), sum(source[s.tensor].T @ target[s.tensor] for s in sites)
    )


def test_zero_tensors_are_left_out_of_normalised_grams(models):
    spec, source, target = models
    zero = source | {"embed_tokens.weight": torch.zeros(20, 16, dtype=torch.float64)}
    (site,) = [site for site in spec.sites["resid",] if site.tensor == "embed_tokens.weight"]
    gram = cross_gram(spec, "resid", Orthogonal(), [site], of(zero), of(target), normalise=True)
    assert not gram.cross


@pytest.mark.parametrize(("group", "dtype"), [(Orthogonal(), torch.float64), (Permutation(), torch.float32)])
def test_precision(models, group, dtype):
    """Isometries are solved from a float64 Gram, also of low-precision models; an assignment bears float32."""
    spec, source, target = models
    low = [{name: tensor.float() for name, tensor in side.items()} for side in (source, target)]
    gram = cross_gram(spec, "ffn", group, spec.sites["ffn", 0], *(of(side) for side in low))
    assert gram.total().dtype == dtype
