"""Options, names of models and output folders that cannot be used, and damaged element files."""

import json

import pytest

from cobasin.errors import InputError
from cobasin.symmetry.element import Element
from command_line import WEIGHTS, pair, refused, run


@pytest.fixture
def folders(tmp_path):
    """A source and an anchor that match."""
    return pair(tmp_path, "bert/BertForMaskedLM")


@pytest.mark.parametrize(
    ("verb", "option", "value", "text"),
    [
        (
            "match",
            "--symmetry",
            "rotation",
            "'rotation' is unknown; expected full, gl, paper, or a list out of ffn, experts, heads",
        ),
        ("match", "--symmetry", "ffn,", "'' is unknown"),
        ("match", "--symmetry", "none", "'none' is unknown"),
        ("merge", "--match", "ffn,paper", "'paper' cannot be in a list"),
        ("match", "--steps", "1400", "method weights learns nothing; steps, loss, "),
        (
            "match",
            "--samples",
            "8",
            "method weights runs no model, and nothing in it is random; samples and seed go with",
        ),
        ("match", "--seed", "3", "samples and seed go with method activations or learned"),
        ("match", "--spec", "~no-such-user/spec.py", "~no-such-user/spec.py: no such user"),
        ("match", "--layers", "x", "layers 'x': 'x' is not a number or a range; write them like 0-4,7"),
        ("match", "--layers", "1-0", "'1-0' is not a number or a range"),
        ("match", "--layers", "0,-1", "'-1' is not a number or a range"),
        ("match", "--layers", "", "'' is not a number or a range"),
        ("match", "--layers", "0,2", "layer 2 does not exist: the model has layers 0 to 1"),
        ("merge", "--weights", "1", "1 weights for 2 models; give one for each"),
        ("merge", "--weights", "1,2,3", "3 weights for 2 models; give one for each"),
        ("merge", "--weights", "a,b", "weights 'a,b': expected numbers like 0.7,0.3"),
        ("merge", "--weights", "0.5,", "weights '0.5,': expected numbers"),
        ("merge", "--weights", "-1,0.5", "the weights -1, 0.5 sum to -0.5; expected a positive sum"),
        ("merge", "--weights", "0,0", "the weights 0, 0 sum to 0; expected a positive sum"),
        ("merge", "--weights", "nan,1", "weights [nan, 1.0]: expected finite numbers"),
        ("merge", "--weights", "1,inf", "weights [1.0, inf]: expected finite numbers"),
        ("merge", "--head-from", "elsewhere", "--head-from elsewhere: expected one of the models to merge: "),
        ("verify", "--tolerance", "nan", "tolerance nan: expected a finite number that is not negative"),
        ("verify", "--tolerance", "-1", "tolerance -1.0: expected a finite number"),
    ],
)
def test_options(folders, verb, option, value, text):
    out = () if verb == "verify" else ("--out", folders[0].with_name("out"))
    assert text in refused(folders[0].parent, verb, *folders, *out, option, value)


def test_one_model_is_no_merge(folders):
    assert "a merge needs two models or more, got 1" in refused(
        folders[0].parent, "merge", folders[0], "--out", folders[0].with_name("out")
    )


@pytest.mark.parametrize("name", ["no-such-folder", "some-organisation/no-such-model", "a/b/c", "config.json"])
def test_models_that_do_not_exist(folders, name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(folders[0])
    text = f"{name}: is a file" if name == "config.json" else f"{name}: no such folder"
    out = folders[0].with_name("out")
    for arguments in (("match", name, folders[1]), ("match", folders[0], name), ("merge", folders[0], name)):
        assert text in refused(out.parent, *arguments, "--out", out)
    for arguments in (("verify", folders[0], name), ("inspect", name)):
        assert text in refused(out.parent, *arguments)


def test_inspect_takes_a_model_or_the_list(folders):
    for arguments in ((), (folders[0], "--list")):
        assert "name a model, or ask for the known architectures with --list" in refused(
            folders[0].parent, "inspect", *arguments
        )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), ("'nonsense'", "see cobasin --help")),
        (("match", "a", "b"), ("'--out'", "see cobasin match --help")),
        (("match", "a", "--out", "o"), ("'ANCHOR'", "see cobasin match --help")),
        (("inspect", "--nonsense"), ("--nonsense", "see cobasin inspect --help")),
        (("merge", "--out", "o"), ("MODEL", "see cobasin merge --help")),
        (("path", "a", "b", "--points", "many"), ("'--points'", "see cobasin path --help")),
    ],
    ids=str,
)
def test_usage(tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    line = refused(tmp_path, *arguments)
    assert all(text in line for text in says)


def test_without_arguments_the_help_comes():
    finished = run()
    text = finished.out + finished.err
    assert "Usage: cobasin" in text
    assert "match" in text
    assert "error:" not in text


def test_a_line_break_in_a_path_stays_out_of_the_message(folders):
    folder = folders[0].with_name("two\nlines")
    assert "two lines: no such folder" in refused(folders[0].parent, "inspect", folder)


def test_damaged_element_files(folders):
    out = folders[0].with_name("out")
    assert run("match", *folders, "--out", out).code == 0
    path = out / "cobasin.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + length])

    def with_metadata(**changes):
        metadata = {key: value for key, value in (head["__metadata__"] | changes).items() if value is not None}
        text = json.dumps(head | {"__metadata__": metadata}).encode()
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    damaged = [
        (b"", "not a readable element file"),
        (data[:100], "not a readable element file"),
        (data[:-1], "not a readable element file"),
        ((folders[0] / WEIGHTS).read_bytes(), "not an element of cobasin's format 1"),
        (with_metadata(cobasin="2"), "not an element of cobasin's format 1"),
        (with_metadata(form=None), "a damaged element file"),
        (with_metadata(form="{}"), "a damaged element file"),
        (with_metadata(form='{"__class__": "Spec"}'), "a damaged element file"),
        (with_metadata(form='{"__class__": "Popen", "args": "touch executed"}'), "a damaged element file"),
        (with_metadata(form='{"__class__": "Form", "spec": {}}'), "a damaged element file"),
        (with_metadata(report="{"), "a damaged element file"),
        (data.replace(b'"value/ffn.0/perm"', b'"value/ffn.x/perm"'), "a damaged element file"),
        (data.replace(b'"value/ffn.0/perm"', b'"wrong/ffn.0/perm"'), "a damaged element file"),
    ]
    Element.load(path)
    for content, text in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError) as refusal:
            Element.load(path)
        assert text in str(refusal.value)
        assert str(path) in str(refusal.value)
    for missing in (out / "nothing", out.parent):  # in a folder it is looked for
        with pytest.raises(InputError, match="is not there; expected a folder that cobasin match has written"):
            Element.load(missing)
    for number in (1, 2):  # a merge's
        (out.parent / f"cobasin-{number}.safetensors").write_bytes(data)
    with pytest.raises(InputError, match=r"such as cobasin-1\.safetensors, cobasin-2\.safetensors there$"):
        Element.load(out.parent)


@pytest.mark.parametrize("verb", ["match", "merge"])
def test_an_output_folder_that_is_not_empty(folders, verb):
    out = folders[0].with_name("out")
    out.mkdir()
    (out / "mine.txt").write_text("x")
    line = refused(out.parent, verb, *folders, "--out", out)
    assert f"{out}: is not empty; choose another folder, or replace it with --overwrite" in line
    assert run(verb, *folders, "--out", out, "--overwrite").code == 0
    assert not (out / "mine.txt").exists()
    assert sorted(path.name for path in out.parent.iterdir()) == ["anchor", "out", "source"]
    assert run("inspect", out).code == 0


@pytest.mark.parametrize("verb", ["match", "merge"])
@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("source", "lies in the input folder"),
        ("anchor/deeper/out", "lies in the input folder"),
        (".", "holds the input folder"),
        ("anchor/../source", "lies in the input folder"),
        ("link", "lies in the input folder"),
        ("file", "is a file; give a folder for the output"),
        ("file/out", "is a file; choose another folder"),
        ("loop", "has a link in it that leads back to itself"),
        ("loop/out", "has a link in it that leads back to itself"),
    ],
)
def test_an_output_folder_in_the_way(folders, verb, where, text):
    root = folders[0].parent
    (root / "link").symlink_to(folders[0])
    (root / "loop").symlink_to("loop")
    (root / "file").write_text("x")
    assert text in refused(root, verb, *folders, "--out", root / where, "--overwrite")


@pytest.mark.parametrize(("place", "out"), [("work", "."), ("work", "../work"), ("work/deeper", "../../work")])
def test_the_working_directory_is_not_replaced(folders, monkeypatch, place, out):
    """It may hold anything, and the shell would go on in a folder that is no longer there."""
    root = folders[0].parent
    (root / "work" / "deeper").mkdir(parents=True)
    (root / "work" / "thesis.tex").write_text("x")
    monkeypatch.chdir(root / place)
    assert "is the working directory, or holds it" in refused(root, "match", *folders, "--out", out, "--overwrite")


def test_home_folders_are_found_behind_an_equals_sign(folders, monkeypatch):
    """A shell leaves the tilde of --out=~/x alone."""
    monkeypatch.setenv("HOME", str(folders[0].parent))
    assert run("match", *folders, "--out=~/matched").code == 0
    assert (folders[0].parent / "matched" / "config.json").exists()
    assert "~nobody-here/x: no such user" in refused(folders[0].parent, "merge", *folders, "--out", "~nobody-here/x")
