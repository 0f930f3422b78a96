"""Architectures that users declare: in a file that they name, in a package of theirs."""

import os
import shutil
import subprocess
import sys

import pytest

import cobasin
from cobasin import architectures
from cobasin.architectures import load_file, registered
from cobasin.checkpoints.typed import Typed
from cobasin.errors import InputError
from cobasin.finding import match as api
from cobasin.proposal.checking import check_declaration
from cobasin.symmetry.element import Element
from cobasin.symmetry.form import form_of
from cobasin.symmetry.spec import Spec
from command_line import near, refused, run, stock
from own_architectures import EXAMPLE, changed, hyperclovax

pytestmark = pytest.mark.usefixtures("registry")

FAMILY = '@cobasin.declares("HyperCLOVAX", "hyperclovax", "ForCausalLM")\ndef f(request): '


@pytest.fixture
def folders(tmp_path):
    anchor = hyperclovax()
    for name, made in (("source", near(anchor)), ("anchor", anchor)):
        made.save_pretrained(tmp_path / name)
    return tmp_path / "source", tmp_path / "anchor"


@pytest.mark.usefixtures("few_rounds")
def test_match_and_merge_and_inspect_take_a_spec_file(folders, tmp_path):
    pair = list(map(str, folders))
    assert run("match", *pair, "--out", tmp_path / "matched", "--spec", EXAMPLE).code == 0
    report = run("verify", folders[0], tmp_path / "matched", "--json").json
    assert report["same"]
    assert run("merge", *reversed(pair), "--out", tmp_path / "merged", "--spec", EXAMPLE).code == 0
    assert stock(tmp_path / "merged").config.model_type == "hyperclovax"
    spaces = run("inspect", folders[0], "--spec", EXAMPLE, "--json").json["spaces"]
    assert {row["space"]: row["group"] for row in spaces}["resid"] == "O(24)"
    listed = run("inspect", "--list", "--spec", EXAMPLE, "--json").json["architectures"]
    assert next(row for row in listed if row["family"] == "HyperCLOVAX")["file"] == str(EXAMPLE)


def test_an_output_that_would_replace_the_spec_file(folders, tmp_path):
    (tmp_path / "work").mkdir()
    spec = shutil.copy(EXAMPLE, tmp_path / "work/own.py")
    how = "--out", tmp_path / "work", "--overwrite", "--spec", spec
    for verb, pair in (("match", folders), ("merge", folders), ("compare", folders)):
        assert f"{tmp_path / 'work'}: holds {spec}, which is read" in refused(tmp_path, verb, *pair, *how)


def test_without_the_spec_file_it_is_unknown(folders):
    line = refused(folders[0].parent, "inspect", folders[0])
    assert "'HyperCLOVAXForCausalLM' is not declared; cobasin inspect --list shows what is" in line
    assert "--propose" in line


@pytest.mark.parametrize(
    "options", [{}, {"tie_word_embeddings": True, "attention_bias": False}, {"use_post_norm": True, "mlp_bias": True}]
)
def test_the_example_is_exact_and_complete(options):
    load_file(EXAMPLE)
    model = hyperclovax(**options)
    assert check_declaration(model).sound
    typed = Typed.of(cobasin.load(model.double()))
    form = form_of(typed.spec, folded=not typed.spec.tied)
    report = api.match(typed.derived(Element.sample(form, 1).apply(typed)), typed.checkpoint).report
    assert report["distance_before"] > 1
    assert report["distance_after"] < 1e-6 * report["distance_before"]


def test_no_code_in_a_model_folder_is_run(folders):
    for name in ("spec.py", "declare.py", "modeling_hyperclovax.py", EXAMPLE.name):
        (folders[0] / name).write_text("raise SystemExit(7)")
    assert run("inspect", folders[0], "--spec", EXAMPLE).code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import cobasin\n\nundefined()", ", line 3: NameError: name 'undefined' is not defined"),
        ("import cobasin\ndef f(:", ", line 2: SyntaxError: invalid syntax"),
        ("import no_such_module", ", line 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys\nsys.exit(3)", ", line 2: SystemExit: 3"),
        ("x = 1", ": it declares nothing; decorate a function with cobasin.declares"),
        (
            'import cobasin\n@cobasin.declares("HyperCLOVAXModel", "hyperclovax")\ndef f(request): pass',
            ", line 2: declares('HyperCLOVAXModel', 'hyperclovax'): expected a family, its model_type and its heads",
        ),
        (
            'import cobasin\n\n@cobasin.declares("Llama", "llama", "ForCausalLM")\ndef f(request): pass',
            ", line 3: LlamaForCausalLM is already declared, by cobasin.architectures.",
        ),
        (
            'import cobasin\n@cobasin.declares("Nonsense", "llama", "ForCausalLM")\ndef f(request): pass',
            ": it declares NonsenseForCausalLM, which transformers ",
        ),
        (
            'import cobasin\n@cobasin.declares("HyperCLOVAX", "starcoder", "Model")\ndef f(request): pass',
            ": it declares HyperCLOVAXModel of model_type 'starcoder', which transformers does not have",
        ),
        (
            f"import cobasin\n{FAMILY}request.config.n_ctx",
            ", line 3: AttributeError: 'HyperCLOVAXConfig' object has no",
        ),
        (
            f"import cobasin\n{FAMILY}pass",
            ": the declaration of HyperCLOVAXForCausalLM is wrong: it returns NoneType, expected a Spec",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(folders, tmp_path, text, message):
    (tmp_path / "own.py").write_text(text)
    line = refused(tmp_path, "inspect", folders[0], "--spec", tmp_path / "own.py")
    assert f"{tmp_path / 'own.py'}{message}" in line


def test_a_file_that_is_edited_twice_in_a_second_is_read_twice(tmp_path, monkeypatch):
    """Python's cache of what it compiles tells files by their size and the second of their change."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "own.py"
    for text, message in (("x = 1", "it declares nothing"), ("x = a", "line 1: NameError"), ("x = (", "SyntaxError")):
        file.write_text(text)
        os.utime(file, (1e9, 1e9))
        with pytest.raises(InputError, match=message):
            load_file(file)
    assert [*tmp_path.iterdir()] == [file]


def test_a_file_that_is_none_is_refused(folders, tmp_path):
    assert f"spec file {tmp_path / 'x.py'}: no such file" in refused(
        tmp_path, "match", *folders, "--out", tmp_path / "o", "--spec", tmp_path / "x.py"
    )
    (tmp_path / "own.txt").touch()
    assert "not a Python file" in refused(tmp_path, "inspect", folders[0], "--spec", tmp_path / "own.txt")


def test_what_a_failing_file_had_declared_is_forgotten(tmp_path):
    before = registered()
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_file(changed(tmp_path, ("from cobasin.symmetry.spec", "1 / 0\nfrom cobasin.symmetry.spec")))
    (tmp_path / "late.py").write_text(EXAMPLE.read_text() + "\n1 / 0")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_file(tmp_path / "late.py")
    assert registered() == before


def test_a_file_may_be_loaded_again_but_not_declare_what_another_does(tmp_path):
    load_file(EXAMPLE)
    assert load_file(EXAMPLE) == ["HyperCLOVAXForCausalLM"]
    with pytest.raises(InputError, match=r"HyperCLOVAXForCausalLM is already declared, by spec file .*hyperclovax\.py"):
        load_file(changed(tmp_path))


def test_what_declares_is_a_function(tmp_path):
    body = "import functools, cobasin\ncobasin.declares('Olmo', 'olmo', 'ForCausalLM')(functools.partial(print))\n"
    (tmp_path / "partial.py").write_text(body)
    with pytest.raises(InputError, match="line 2: Olmo: declared by a partial; expected a function"):
        load_file(tmp_path / "partial.py")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"(kv vo)"', '"(kv qq)"'), r"v_proj\.weight: type '\(kv qq\) resid': no space 'qq'"),
        (('"(kv vo)"', '"(kv vo"'), r"v_proj\.weight: type '\(kv vo resid': '\(' without '\)'"),
        (("embed_tokens.weight", "embed.{piece}.weight"), "no space 'piece'"),
        (('Norm("norm.weight"', 'Norm("norm.gain"'), "norms: no tensor 'norm.gain'"),
        (
            ('"lm_head.weight": "embed_tokens.weight"} if config.tie_word_embeddings', '"head.weight": "x"} if True'),
            "tied: no tensor 'head.weight'",
        ),
        (('part="residual"', 'part="stream"'), "space 'resid' has a group, but its part is 'stream'; expected one of"),
        (('part="heads"', 'part="ffn"'), "space 'kv' has spaces that vary over it, so it is no FFN's neurons"),
        (("Space(2, Rotation2", "Space(3, Rotation2"), "space 'pair' has size 3, but Rotation2 acts on pairs"),
        (("Permutation(), GROUP", 'Permutation(), ("layer", "group")'), "space 'rep' varies over 'group'"),
        (
            ("Space(config.head_dim // 2)", 'Space(config.head_dim // 2, within="stack")'),
            "space 'freq' is within 'stack', which is no space",
        ),
        (("Space(config.intermediate_size", "Space(config.hidden_size / 2"), "space 'ffn' has size 12.0, expected a"),
        (('{ATTENTION}.o_proj.bias")', '{ATTENTION}.o_proj.bias", block=1)'), "has no block 1, only 1"),
        (
            ('f"{ATTENTION}.{name}_proj.weight"', 'f"{ATTENTION}.{name}_proj.bias"'),
            r"norms: .*q_proj\.bias: '\(kv rep pair freq\)' has no resid",
        ),
        (('ValueBias(f"{ATTENTION}.v_proj', 'ValueBias(f"{ATTENTION}.k_proj'), "k_proj.bias has pair, which "),
        (
            ('("lm_head.weight",)', '("lm_head.weight",), "norm.weight"'),
            "norms: lm_head.weight has no bias, and an RMSNorm's",
        ),
        (
            ("Orthogonal(scaled=True), GROUP", 'Orthogonal(scaled=True), ("layer", "rep")'),
            "varies over rep, but the tensor has",
        ),
    ],
)
def test_a_declaration_that_contradicts_itself_is_named(tmp_path, change, message):
    load_file(changed(tmp_path, change))
    with pytest.raises(InputError, match=f"declaration of HyperCLOVAXForCausalLM is wrong: .*{message}"):
        Typed.of(cobasin.load(hyperclovax()))


def test_a_declaration_in_python(registry):
    @cobasin.declares("HyperCLOVAX", "hyperclovax", "Model")
    def own(request: architectures.Request) -> Spec:
        raise AssertionError

    assert registered()["HyperCLOVAXModel"].declaration is own
    with pytest.raises(InputError, match=r"BertModel is already declared, by cobasin\.architectures\.encoder"):
        cobasin.declares("Bert", "bert", "Model")(own)


def package(folder, name, text):
    """An installed package with an entry point, as far as Python can tell."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[cobasin.architectures]\nown = {name}\n")
    (folder / f"{name}.py").write_text(text)


def test_installed_packages_declare_by_entry_point_and_a_broken_one_is_left_out(folders, tmp_path):
    package(tmp_path, "good", EXAMPLE.read_text())
    package(tmp_path, "bad", "raise ValueError('two\\nlines')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    arguments = [sys.executable, "-c", "from cobasin.cli import main; main()", "inspect", str(folders[0])]
    finished = subprocess.run(arguments, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert "HyperCLOVAXForCausalLM" in finished.stdout
    (line,) = finished.stderr.splitlines()
    assert "the architectures of package bad are left out" in line
    assert line.endswith("ValueError: two lines")


def test_a_match_by_a_wrong_declaration_is_refused(folders, tmp_path):
    """Its own verification sees it, and names the file."""
    spec = changed(tmp_path, ("ffn~", "ffn"))  # which would scale what gates
    line = refused(tmp_path, "match", *folders, "--out", tmp_path / "out", "--spec", spec, unread=False)
    assert line.startswith(
        f"error: {spec}: wrong declaration of HyperCLOVAXForCausalLM: the model, once moved, computes "
    )
    assert line.endswith("; see cobasin inspect MODEL --check")
