"""Every format gives the same rows, lazily, and says where a bad one is."""

from __future__ import annotations

import json
import pickle
import sys

import numpy as np
import pytest
from data_models import jsonl, refusal
from PIL import Image
from pydantic import ValidationError

from cobasin.data import DataConfig, rows_of
from cobasin.data.rows import Numeral

ROWS = [
    {"text": "a, tiny\tone", "label": "0"},
    {"text": 'ünï\u2028code "quoted"', "label": "1"},
    {"text": "three", "label": "0"},
]


def rows(path, **options):
    return rows_of(DataConfig(path=str(path), **options))


def test_a_long_text_in_a_table(tmp_path):
    found = rows(write(tmp_path / "a.csv", "text,label\n" + "word " * 50_000 + ",1\n"))
    assert len(found[0]["text"]) == 250_000


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_jsonl_json_and_csv_hold_the_same_rows(tmp_path):
    jsonl(tmp_path / "a.jsonl", *ROWS)
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    write(tmp_path / "a.csv", '\ufefftext,label\r\n"a, tiny\tone",0\r\n\r\n"ünï\u2028code ""quoted""",1\r\nthree,0')
    found = [rows(tmp_path / name) for name in ("a.jsonl", "a.json", "a.csv")]
    for one in found:
        assert list(one) == ROWS
        assert len(one) == 3
        assert one.digest == found[0].digest
    jsonl(tmp_path / "b.jsonl", *ROWS[:2], {**ROWS[2], "label": "1"})
    assert rows(tmp_path / "b.jsonl").digest != found[0].digest
    with pytest.raises(IndexError):
        found[0][3]


def test_csv_fields_hold_line_breaks_and_lines_are_counted_through_them(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"one\ntwo",1\nthree,2\n')
    found = rows(path)
    assert list(found) == [{"text": "one\ntwo", "label": "1"}, {"text": "three", "label": "2"}]
    assert [found.where(i) for i in range(2)] == [f"{path}: line 2", f"{path}: line 4"]


def test_tabs_separate_without_quoting(tmp_path):
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"open, quote\t1\nplain\t0\n')
    assert list(rows(path)) == [{"text": '"open, quote', "label": "1"}, {"text": "plain", "label": "0"}]
    assert list(rows(write(tmp_path / "b.csv", "text\tlabel\na,b\t1\n"))) == [{"text": "a,b", "label": "1"}]


def test_columns_name_roles(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", {"sentence": "x", "label": 1, "idx": 0}, {"label": 1})
    found = rows(path, columns={"text": "sentence", "label": None})
    assert found[0] == {"text": "x"}
    message = refusal(lambda: found[1])
    assert "line 2" in message
    assert "'sentence' (there are: label)" in message
    assert rows(path)[0] == {"label": 1}


def test_only_the_line_asked_for_is_parsed(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n\n{"text": \n[1]\n')
    found = rows(path)
    assert len(found) == 3
    assert found[0] == {"text": "x"}
    assert "line 3: is not JSON" in refusal(lambda: found[1])
    assert "line 4: is [1]; expected a JSON object" in refusal(lambda: found[2])


CONLL = """-DOCSTART- -X- O
# a comment of many words
EU NNP B-ORG
# NN O
call NN O

-DOCSTART- -X- O

Peter NNP B-PER
"""


def test_conll_of_blanks_with_comments_and_documents(tmp_path):
    path = write(tmp_path / "a.conll", CONLL)
    found = rows(path)
    assert list(found) == [
        {"tokens": ["EU", "#", "call"], "tags": ["B-ORG", "O", "O"]},
        {"tokens": ["Peter"], "tags": ["B-PER"]},
    ]
    assert found.where(1) == f"{path}: line 9"
    for place in (1, -2):
        assert rows(path, columns={"tags": place})[1] == {"tokens": ["Peter"], "tags": ["NNP"]}
    assert "no column 3 (there are: 0, 1, 2)" in refusal(lambda: rows(path, columns={"tags": 3})[0])


def test_conll_2003_of_four_columns_and_ontonotes_with_the_domain_last(tmp_path):
    path = write(tmp_path / "eng.train", "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n")
    assert list(rows(path, format="conll")) == [{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}]
    path = write(tmp_path / "onto.train.bc.ner", "Paris\tB-GPE\tbc\n,\tO\tbc\n\nYes\tO\tbc\n")
    found = rows(path, format="conll", columns={"tags": 1})
    assert list(found) == [{"tokens": ["Paris", ","], "tags": ["B-GPE", "O"]}, {"tokens": ["Yes"], "tags": ["O"]}]


BRACKETS = """#begin document (bc/x_0000); part 000
bc/x 0 0 Mary NNP (TOP* - - - A (PERSON* (12
bc/x 0 1 Ann NNP * - - - A *) 12)
bc/x 0 2 saw VBD * see 01 - A * (V*) -
bc/x 0 3 Rome NNP * - - - A (GPE) -

bc/x 0 0 Well UH (TOP*) - - - B * (ARG0*) (V*) -
#end document
"""


def test_conll_2012_with_tags_in_brackets_and_columns_of_any_number(tmp_path):
    text = BRACKETS.replace("A (PERSON* (12", "A (PERSON* * (12").replace("*) 12)", "*) * 12)")
    text = text.replace("(GPE) -", "(GPE) * -")
    path = write(tmp_path / "x.v4_gold_conll", text)
    found = rows(path, format="conll", columns={"tokens": 3, "tags": 10})
    assert list(found) == [
        {"tokens": ["Mary", "Ann", "saw", "Rome"], "tags": ["B-PERSON", "I-PERSON", "O", "B-GPE"]},
        {"tokens": ["Well"], "tags": ["O"]},
    ]
    assert "line 7 has 14 columns, expected 13" in refusal(rows, path, format="conll", columns={"tokens": 3})
    older = write(tmp_path / "older", "1 Rome (GPE*)\n2 # *\n\n1 x * more\n")
    found = rows(older, format="conll", columns={"tokens": 1, "tags": 2})
    assert list(found) == [{"tokens": ["Rome", "#"], "tags": ["B-GPE", "O"]}, {"tokens": ["x"], "tags": ["O"]}]
    first = write(tmp_path / "first", "x O\n\n# O more\n")  # where tokens are first, this may be one
    assert len(rows(first, format="conll", columns={"tokens": 0, "tags": 1})) == 1
    short = write(tmp_path / "short", BRACKETS)
    line = refusal(rows, short, format="conll", columns={"tokens": 3, "tags": 10})
    assert "line 4 has 13 columns, expected 12" in line


def test_csv_without_a_header_has_columns_by_place(tmp_path):
    path = write(tmp_path / "cola.tsv", 'gj04\t1\t\tOur friends won\'t "buy" this.\ngj04\t0\t*\tThey drank the pub.\n')
    found = rows(path, columns={"text": 3, "label": 1})
    assert list(found) == [
        {"text": 'Our friends won\'t "buy" this.', "label": "1"},
        {"text": "They drank the pub.", "label": "0"},
    ]
    assert found.where(0) == f"{path}: line 1"
    assert "no column 4 (there are: 0, 1, 2, 3)" in refusal(lambda: rows(path, columns={"text": 4})[0])
    assert list(rows(path, columns={"text": 3, "label": None})) == [{"text": row["text"]} for row in found]
    assert list(rows(path, columns={"text": 3}, where={1: 0, 2: "*"})) == [{"text": "They drank the pub."}]
    assert "no column 4 (there are: 0, 1, 2, 3)" in refusal(rows, path, columns={"text": 3}, where={4: "x"})


def test_only_the_rows_that_have_a_value(tmp_path):
    """As of a corpus in the unified file of corpora, or of a data set in one table."""
    records = [
        {"source": "isear", "split": "train", "text": "one", "emotions": {"joy": 1, "noemo": None}},
        {"source": "tec", "split": "train", "text": "two", "emotions": {"joy": 0, "noemo": None}},
        {"source": "isear", "split": "test", "text": "three", "emotions": {"joy": 0, "noemo": None}},
    ]
    path = jsonl(tmp_path / "unified.jsonl", *records)
    options = {"columns": {"labels": "emotions"}, "where": {"source": "isear", "split": "test"}}
    found = rows(path, **options)
    assert list(found) == [{"text": "three", "labels": {"joy": 0, "noemo": None}}]
    assert found.where(0) == f"{path}: line 3"
    assert found.digest != rows(path, columns={"labels": "emotions"}).digest
    assert "no column 'corpus' (there are: source, " in refusal(rows, path, where={"corpus": "isear"})
    table = write(tmp_path / "a.csv", "text,year\nx,1996\ny,1997\n")
    assert list(rows(table, where={"year": 1997})) == [{"text": "y"}]
    assert refusal(rows, table, where={"year": 1998}) == f"{table}: none of its 2 rows has year = 1998; see 'where'"
    typed = jsonl(
        tmp_path / "typed.jsonl", {"text": "x", "dev": True, "part": 1.5}, {"text": "y", "dev": False, "part": 2}
    )
    assert list(rows(typed, where={"dev": True, "part": 1.5})) == [{"text": "x"}]
    for same in (2, 2.0, "2"):
        assert list(rows(typed, where={"part": same})) == [{"text": "y"}]
    assert list(rows(typed, where={"dev": 0})) == [{"text": "y"}]


def test_conll_of_tabs_keeps_tokens_of_any_character(tmp_path):
    path = write(tmp_path / "a.conll", "# id 7\n#\tO\r\n\xa0x\u2028y\tB-LOC\r\n\r\nz\tO")
    assert list(rows(path)) == [
        {"tokens": ["#", "\xa0x\u2028y"], "tags": ["O", "B-LOC"]},
        {"tokens": ["z"], "tags": ["O"]},
    ]
    assert list(rows(write(tmp_path / "b.conll", "one\ntwo\n"))) == [{"tokens": ["one", "two"]}]


def test_text_is_lines_or_one_document(tmp_path):
    path = write(tmp_path / "a.txt", "one\r\n\ntwo\n")
    found = rows(path)
    assert list(found) == [{"text": "one"}, {"text": "two"}]
    assert found.where(1) == f"{path}: line 3"
    assert list(found.documents()) == [{"text": "one\r\n\ntwo\n"}]
    assert not len(rows(write(tmp_path / "b.txt", " \n")).documents())


def test_npz(tmp_path):
    images = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    np.savez(tmp_path / "a.npz", x=images, label=[1, 2, 0], classes=["a", "b"])
    found = rows(tmp_path / "a.npz", columns={"image": "x"})
    assert len(found) == 3
    assert found[2]["label"] == 0
    assert (found[1]["image"] == images[1]).all()
    assert "different lengths: x 3, label 3, classes 2" in refusal(
        rows, tmp_path / "a.npz", columns={"image": "x", "text": "classes"}
    )
    np.savez(tmp_path / "one.npz", text=np.array("good"), label=np.array(1))
    assert "text is a single value; expected arrays whose first axis runs over the rows" in refusal(
        rows, tmp_path / "one.npz"
    )
    message = refusal(rows, tmp_path / "a.npz", columns={"label": "y"})
    assert "none of its arrays (x, label, classes)" in message
    assert "no column 'z' (there are: x, label, classes)" in refusal(
        lambda: rows(tmp_path / "a.npz", columns={"image": "z"})[0]
    )


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (sys.exit, ("unpickled",))

    np.savez(tmp_path / "a.npz", label=np.array([Trap()], dtype=object))
    message = refusal(rows, tmp_path / "a.npz")
    assert "cannot be read as npz" in message
    assert message.endswith("; save texts as an array of dtype str")
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Trap()))
    assert "cannot be read as npz" in refusal(rows, tmp_path / "b.npz")


def test_a_damaged_and_an_encrypted_npz(tmp_path):
    np.savez_compressed(tmp_path / "whole.npz", label=np.arange(9))
    whole = (tmp_path / "whole.npz").read_bytes()
    name, extra = (int.from_bytes(whole[at : at + 2], "little") for at in (26, 28))
    damaged, encrypted = bytearray(whole), bytearray(whole)
    damaged[30 + name + extra] = 7  # no kind of block that deflate has
    encrypted[whole.rfind(b"PK\x01\x02") + 8] |= 1
    for content, said in ((damaged, "invalid block type"), (encrypted, "is encrypted")):
        message = refusal(rows, write(tmp_path / "a.npz", bytes(content)))
        assert message.startswith(f"{tmp_path / 'a.npz'}: cannot be read as npz: ")
        assert said in message


def picture(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 4, 3), value, np.uint8)).save(path)


def test_image_folder(tmp_path):
    for split in ("train", "test"):
        for number, name in enumerate(("dog", "cat")):
            picture(tmp_path / split / name / f"{number}.png", number)
    (tmp_path / "train" / "notes.txt").write_text("no image")
    (tmp_path / "train" / "cat" / "._1.png").write_text("as a Mac puts beside each")
    picture(tmp_path / "train" / ".thumbnails" / "1.png", 1)
    found = rows(tmp_path / "train")
    assert [row["label"] for row in found] == ["cat", "dog"]
    assert found.where(0) == str(tmp_path / "train" / "cat" / "1.png")
    split = rows(tmp_path, split="train")
    assert split.digest == found.digest  # of the files, wherever they are
    picture(tmp_path / "train" / "cat" / "1.png", 9)
    assert rows(tmp_path / "train").digest != found.digest
    assert [list(row) for row in rows(tmp_path / "train" / "cat", format="images")] == [["image"]]
    assert "no images" in refusal(rows, tmp_path / "train", format="images", split="val")
    assert refusal(rows, tmp_path, format="images").endswith("a class; or say 'split', one of test, train")


def test_a_folder_of_files_is_told_apart_by_split(tmp_path):
    jsonl(tmp_path / "train.jsonl", *ROWS)
    jsonl(tmp_path / "dev.jsonl", *ROWS[:1])
    (tmp_path / "README.md").write_text("no data")
    (tmp_path / "._dev.jsonl").write_text("no data, either")
    assert len(rows(tmp_path, split="dev")) == 1
    assert "Say 'split', one of dev, train" in refusal(rows, tmp_path)
    assert "0 files of the split 'test'" in refusal(rows, tmp_path, split="test")
    assert refusal(rows, tmp_path, split="dev[1:]").endswith("slices such as train[10:] are for data sets of the hub")
    (tmp_path / "dev.csv").write_text("text\nx\n")
    assert "2 files of the split 'dev'" in refusal(rows, tmp_path, split="dev")


def test_datasets_saved_parquet_and_folders(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["neg", "pos"]),
            "tags": datasets.List(datasets.ClassLabel(names=["O", "B"])),
            "image": datasets.Image(),
            "idx": datasets.Value("int32"),
        }
    )
    picture(tmp_path / "p.png", 3)
    content = {
        "text": ["a", "b"],
        "label": [1, -1],
        "tags": [[0, 1], []],
        "image": [str(tmp_path / "p.png")] * 2,
        "idx": [0, 1],
    }
    dataset = datasets.Dataset.from_dict(content, features=features)
    both = datasets.DatasetDict({"train": dataset, "test": dataset.select([1])})
    dataset.save_to_disk(tmp_path / "one")
    both.save_to_disk(tmp_path / "both")
    dataset.to_parquet(tmp_path / "a.parquet")
    for path in ("one", "both", "a.parquet"):
        found = rows(tmp_path / path)
        assert [row["label"] for row in found] == ["pos", None]
        assert found[0]["tags"] == ["O", "B"]
        assert set(found[0]) == {"text", "label", "tags", "image"}
        assert "idx" in found.names(0)
        image = found[0]["image"]
        assert (image if isinstance(image, bytes) else image.read_bytes()) == (tmp_path / "p.png").read_bytes()
    assert len(rows(tmp_path / "both", split="test")) == 1
    dataset.select_columns(["idx"]).save_to_disk(tmp_path / "other")
    other = rows(tmp_path / "other", columns={"text": "sentence"})
    assert len(other) == 2
    assert "no column 'sentence' (there are: idx); say which one it is under 'columns'" in refusal(lambda: other[0])
    hint = "slices such as train[10:] are for data sets of the hub"
    for path in ("one", "both", "a.parquet"):
        assert refusal(rows, tmp_path / path, split="train[1:]").endswith(hint)
    assert "no split 'dev' (there are: train, test)" in refusal(rows, tmp_path / "both", split="dev")
    assert "leave out 'split'" in refusal(rows, tmp_path / "one", split="dev")
    (tmp_path / "folder").mkdir()
    jsonl(tmp_path / "folder" / "train.jsonl", *ROWS)
    assert list(rows(tmp_path / "folder", format="datasets")) == list(rows(tmp_path / "folder"))
    jsonl(tmp_path / "folder" / "test.jsonl", *ROWS)
    assert len(rows(tmp_path / "folder", format="datasets", split="all")) == 2 * len(ROWS)


def test_names_of_classes_that_are_numbers_but_not_their_places(tmp_path):
    datasets = pytest.importorskip("datasets")
    for names, expected in ((["1", "2"], Numeral), (["0", "1"], str)):
        features = datasets.Features(
            {"label": datasets.ClassLabel(names=names), "tags": datasets.List(datasets.ClassLabel(names=names))}
        )
        datasets.Dataset.from_dict({"label": [1], "tags": [[0]]}, features).to_parquet(tmp_path / "a.parquet")
        row = rows(tmp_path / "a.parquet")[0]
        assert row == {"label": names[1], "tags": [names[0]]}
        assert [type(row["label"]), type(row["tags"][0])] == [expected, expected]
    for number in range(11):
        picture(tmp_path / "from0" / f"{number}" / "x.png", number)
        picture(tmp_path / "from1" / f"{number + 1:03}" / "x.png", number)
    assert {type(row["label"]) for row in rows(tmp_path / "from0")} == {str}
    assert {type(row["label"]) for row in rows(tmp_path / "from1")} == {Numeral}


def test_no_code_of_a_data_set_is_run(tmp_path):
    pytest.importorskip("datasets")
    folder = tmp_path / "evil"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "datasets cannot load it" in refusal(rows, folder)
    assert not (tmp_path / "ran").exists()


def test_without_datasets_or_network(monkeypatch):
    assert "no such file or folder, and datasets cannot load it" in refusal(rows, "nobody/nothing")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refusal(rows, "nobody/nothing").endswith("pip install 'cobasin[data]'")


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "text,label\nx,1\ny\n", {}, "line 3 has 1 fields, the header 2 (text, label)"),
        ("a.csv", "text,label\nx,1,2\n", {}, "line 2 has 3 fields"),
        ("a.csv", "x,1\ny\n", {"columns": {"text": 0}}, "line 2 has 1 fields, the header 2 (0, 1)"),
        ("a.csv", "text,text\nx,1\n", {}, "the header names a column twice"),
        ("a.csv", 'text\n"x\n', {}, "line 2 cannot be read as CSV"),
        ("a.csv", b"text\n\xff\n", {}, "line 2 is not text in UTF-8"),
        ("a.jsonl", b'{"text": "\xff"}\n', {}, "line 1 is not text in UTF-8"),
        ("a.jsonl", "[" * 100_000, {}, "line 1: is not JSON: maximum recursion depth exceeded"),
        ("a.jsonl", "9" * 5000, {}, "line 1: is not JSON: Exceeds the limit"),
        ("a.jsonl", '{"text": "x"}\n{"x": 0, "x": 1}', {}, "line 2: is not JSON: the key 'x' is given twice"),
        ("a.json", '[{"text": "x", "text": "y"}]', {}, "a.json: is not JSON: the key 'text' is given twice"),
        ("a.json", "[" * 100_000, {}, "a.json: is not JSON: maximum recursion depth exceeded"),
        ("a.json", '{"text": "x"}', {}, "expected a JSON list"),
        ("a.json", '{"text": "x"}\n{"text": "y"}', {}, "say 'format: jsonl'"),
        ("a.json", "[1]", {}, "a.json[0]: is 1; expected a mapping"),
        ("a.conll", "a O\nb\n", {}, "line 2 has 1 columns, expected 2"),
        ("a.npz", "no zip", {}, "a.npz: cannot be read as npz: is no zip file as numpy.savez writes it, or cut off"),
        ("a.data", "x", {}, "say the 'format'"),
        ("a.txt", "x", {"split": "train"}, "is one file, without a split"),
        ("a.txt", "x", {"split": "train[10:]"}, "'train[10:]'; slices such as train[10:] are for data sets of the hub"),
        ("a.jsonl.gz", "x", {}, "a.jsonl.gz: is compressed; decompress it first"),
        ("a.jsonl.gz", "x", {"format": "jsonl"}, "a.jsonl.gz: is compressed; decompress it first"),
        ("a.yml", "path: x", {}, "a.yml: YAML is no data; give the keys that it has (path, columns, ...) in its place"),
        ("a.txt", "x", {"name": "main"}, "'name' is for data sets of the hub"),
        ("a.txt", "x", {"format": "datasets"}, ".parquet or .arrow"),
        ("a.parquet", "x", {}, "datasets cannot load it: Parquet"),
    ],
)
def test_bad_files(tmp_path, name, content, options, message):
    path = write(tmp_path / name, content)
    assert message in refusal(lambda: list(rows(path, **options)))


def test_the_cause_is_named_where_the_library_hides_it(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("an error occurred") from ValueError("Parquet magic bytes not found")

    monkeypatch.setattr("datasets.load_dataset", fails)
    line = refusal(lambda: list(rows(write(tmp_path / "a.parquet", "x"))))
    assert line.endswith("datasets cannot load it: Parquet magic bytes not found")


def test_missing_files(tmp_path):
    assert refusal(rows, tmp_path / "a.jsonl").endswith("a.jsonl: no such file or folder")
    assert refusal(rows, "a.jsonl") == "a.jsonl: no such file or folder"
    assert refusal(rows, "org/name", format="csv") == "org/name: no such file or folder"
    (tmp_path / "empty").mkdir()
    assert "datasets cannot load it" in refusal(rows, tmp_path / "empty")


def test_settings_are_checked():
    for options in (
        {"columns": {"txt": "x"}},
        {"fromat": "csv"},
        {"mean": [0.5]},
        {"mean": [0.5], "std": [0.0]},
        {"mean": [], "std": []},
        {"mean": [125, 122, 113], "std": [63, 62, 66]},
        {"mean": [0.5], "std": [64]},
        {"mean": [-0.1], "std": [0.2]},
        {"block": 1},
        {"threshold": float("nan")},
        {"threshold": True},
        {"crop": True},
        {"mean": [True], "std": [0.5]},
    ):
        with pytest.raises(ValidationError):
            DataConfig(path="x", **options)
