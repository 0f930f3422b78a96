"""Images are normalised as the model's folder or the data's config says."""

from __future__ import annotations

import copy
import struct

import numpy as np
import pytest
import torch
import transformers as T
from data_models import SMALL, refusal, vit
from PIL import Image, ImageOps
from test_data_text import first, forward

import tiny_models
from cobasin.checkpoints.checkpoint import load
from cobasin.data import DataConfig, batches, rows_of

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 10, 12, 3), dtype=np.uint8)


def npz(folder, images=PIXELS, **arrays):
    np.savez(folder / "a.npz", image=images, label=np.arange(len(images)), **arrays)
    return str(folder / "a.npz")


def test_pixels_are_cropped_and_normalised(tmp_path):
    data = DataConfig(path=npz(tmp_path), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), crop=8)
    batch = first(vit(), data)
    middle = PIXELS[:, 1:9, 2:10].transpose(0, 3, 1, 2) / 255
    expected = (middle - np.reshape([0.5, 0.4, 0.3], (3, 1, 1))) / np.reshape([0.2, 0.3, 0.4], (3, 1, 1))
    assert np.allclose(batch.inputs["pixel_values"], expected, atol=1e-6)
    assert batch.inputs["pixel_values"].dtype == torch.float32
    assert batch.labels.tolist() == [0, 1, 2]
    forward(vit(), batch)


def test_floats_are_taken_as_they_are(tmp_path):
    images = PIXELS[:, :8, :8].astype(np.float32)
    made = first(vit(), DataConfig(path=npz(tmp_path, images)))
    assert np.array_equal(made.inputs["pixel_values"], images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("dtype", [">f4", np.longdouble, np.float32, np.uint8])
def test_arrays_that_torch_does_not_take_as_they_are(tmp_path, dtype):
    """Of another byte order, wider than float64, or views that are turned round, as from BGR to RGB."""
    model = vit()
    if dtype == np.uint8:
        T.ViTImageProcessorPil(size={"height": 8, "width": 8}, do_normalize=False).save_pretrained(tmp_path)
        model = vit(tmp_path)
    images = PIXELS[:, :8, :8] if dtype == np.uint8 else (PIXELS[:, :8, :8] / 255).astype(dtype)
    made = first(model, [{"image": one[::-1, :, ::-1]} for one in images]).inputs["pixel_values"]
    assert np.allclose(made, PIXELS[:, 7::-1, :8, ::-1].transpose(0, 3, 1, 2) / 255, atol=1e-6)


@pytest.mark.parametrize("images", [PIXELS.astype(np.float32), PIXELS / 127.5 - 1])
def test_floats_that_are_not_from_0_to_1_are_not_normalised(tmp_path, images):
    path = npz(tmp_path, images[:, :8, :8])
    said = f"a.npz[0]: image has pixels from {images[0, :8, :8].min():.4g} to {images[0, :8, :8].max():.4g}; expected "
    said += "floats from 0 to 1, or whole numbers (uint8) from 0 to 255, as they are normalised; of "
    said += "pixels that are normalised already, say mean: [0] and std: [1]"
    assert said in refusal(first, vit(), DataConfig(path=path, mean=[0.5], std=[0.5]))
    T.ViTImageProcessorPil(size={"height": 8, "width": 8}, do_normalize=False).save_pretrained(tmp_path)
    assert said in refusal(first, vit(tmp_path), DataConfig(path=path))
    made = first(vit(tmp_path), DataConfig(path=path, mean=[0], std=[1])).inputs["pixel_values"]
    assert np.allclose(made, images[:, :8, :8].transpose(0, 3, 1, 2))


def test_integers_need_to_be_normalised(tmp_path):
    message = refusal(first, vit(), DataConfig(path=npz(tmp_path), crop=8))
    assert "has no preprocessor_config.json; say how its pixels were normalised under 'mean' and 'std'" in message
    assert "2 values for 3 channels" in refusal(first, vit(), DataConfig(path=npz(tmp_path), mean=(0, 0), std=(1, 1)))


def test_the_processor_of_the_folder(tmp_path):
    processor = T.ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.5] * 3, image_std=[0.25] * 3)
    processor.save_pretrained(tmp_path)
    data = DataConfig(path=npz(tmp_path))
    found = first(vit(tmp_path), data).inputs["pixel_values"]
    assert torch.equal(found, processor(list(PIXELS), return_tensors="pt")["pixel_values"])
    floats = DataConfig(path=npz(tmp_path, PIXELS[:, :8, :8] / 255))
    rescaled = first(vit(tmp_path), floats).inputs["pixel_values"]
    own = DataConfig(path=npz(tmp_path, PIXELS[:, :8, :8]), mean=[0.5], std=[0.25])
    assert torch.allclose(rescaled, first(vit(tmp_path), own).inputs["pixel_values"], atol=1e-6)
    assert "image is 8x8, the model reads 16x16" in refusal(first, vit(tmp_path, image_size=16), data)
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert "preprocessor_config.json: cannot be used" in refusal(first, vit(tmp_path), data)


def test_a_crop_alone_goes_before_the_processor(tmp_path):
    T.ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0.5] * 3, image_std=[0.25] * 3).save_pretrained(
        tmp_path
    )
    path = npz(tmp_path)
    own = DataConfig(path=path, mean=[0.5], std=[0.25], crop=8)
    found = batches(vit(tmp_path), DataConfig(path=path, crop=8), samples=None, batch_size=9, seed=0)
    assert torch.allclose(next(iter(found)).inputs["pixel_values"], first(vit(), own).inputs["pixel_values"], atol=1e-6)
    assert found.digest != batches(vit(tmp_path), DataConfig(path=path), samples=None, batch_size=9, seed=0).digest


def test_pixels_that_the_processor_cannot_take(tmp_path):
    """It is made for three channels."""
    T.ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    grey = [{"image": PIXELS[0, :8, :8, :1]}]
    line = refusal(first, vit(tmp_path, num_channels=1), grey)
    assert line.startswith(f"rows[0]: image cannot be used as {tmp_path / 'preprocessor_config.json'} says: ")


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB")])
def test_files_are_converted_to_the_models_channels(tmp_path, channels, mode):
    (tmp_path / "images" / "0").mkdir(parents=True)
    picture = Image.fromarray(PIXELS[0, :8, :8])
    picture.convert("P").save(tmp_path / "images" / "0" / "x.png")
    data = DataConfig(path=str(tmp_path / "images"), mean=[0], std=[1])
    batch = first(vit(num_channels=channels), data)
    expected = np.asarray(picture.convert("P").convert(mode)).reshape(8, 8, channels).transpose(2, 0, 1)
    assert np.allclose(batch.inputs["pixel_values"][0] * 255, expected, atol=1e-4)
    assert batch.labels.tolist() == [0]
    floats = vit(num_channels=channels)
    memory = first(floats, [{"image": np.asarray(picture.convert(mode)) / 255}]).inputs["pixel_values"]
    assert memory.shape == (1, channels, 8, 8)


def test_pictures_in_memory_are_converted_too(tmp_path):
    T.ViTImageProcessorPil(size={"height": 8, "width": 8}).save_pretrained(tmp_path)
    picture = Image.fromarray(PIXELS[0]).convert("P")
    one, other = (
        first(vit(tmp_path), [{"image": p}]).inputs["pixel_values"] for p in (picture, picture.convert("RGB"))
    )
    assert torch.equal(one, other)


@pytest.mark.parametrize("orientation", range(10))
def test_a_picture_is_turned_as_the_camera_was_held(tmp_path, orientation):
    (tmp_path / "0").mkdir()
    picture, exif = Image.fromarray(PIXELS[0, :8, :8]), Image.Exif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "0" / "x.png", exif=exif)
    found = first(vit(), DataConfig(path=str(tmp_path), mean=[0], std=[1])).inputs["pixel_values"][0]
    expected = np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "0" / "x.png")))
    assert np.allclose(found, expected.transpose(2, 0, 1) / 255, atol=1e-6)
    assert np.array_equal(expected, PIXELS[0, :8, :8]) == (orientation in (0, 1, 9))
    memory = Image.open(tmp_path / "0" / "x.png")
    T.ViTImageProcessorPil(size={"height": 8, "width": 8}, image_mean=[0] * 3, image_std=[1] * 3).save_pretrained(
        tmp_path
    )
    assert torch.allclose(first(vit(tmp_path), [{"image": memory}]).inputs["pixel_values"][0], found, atol=1e-6)


def test_a_picture_whose_tags_are_damaged_is_taken_as_it_lies(monkeypatch, tmp_path):
    (tmp_path / "0").mkdir()
    Image.fromarray(PIXELS[0, :8, :8]).save(tmp_path / "0" / "x.png")

    def damaged(_):
        raise struct.error("unpack requires a buffer of 4 bytes")

    monkeypatch.setattr(Image.Image, "getexif", damaged)
    found = first(vit(), DataConfig(path=str(tmp_path), mean=[0], std=[1])).inputs["pixel_values"][0]
    assert np.allclose(found, PIXELS[0, :8, :8].transpose(2, 0, 1) / 255, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_a_picture_of_more_than_8_bits_is_refused(tmp_path, dtype):
    (tmp_path / "0").mkdir()
    picture = Image.fromarray(PIXELS[0, :8, :8, 0].astype(dtype))
    picture.save(tmp_path / "0" / "x.tiff")
    line = refusal(first, vit(), DataConfig(path=str(tmp_path), mean=[0], std=[1]))
    assert line.startswith(f"{tmp_path / '0' / 'x.tiff'}: the image has more than 8 bits a channel (mode ")


def test_an_unreadable_picture_is_named_when_it_is_reached(tmp_path):
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        Image.fromarray(PIXELS[0, :8, :8]).save(tmp_path / str(number) / "x.png")
    (tmp_path / "1" / "x.png").write_bytes(b"no picture")
    made = iter(batches(vit(), DataConfig(path=str(tmp_path), mean=[0], std=[1]), samples=None, batch_size=1, seed=0))
    next(made)
    assert f"{tmp_path / '1' / 'x.png'}: the image cannot be read" in refusal(next, made)
    assert "have 1, 3 or 4 channels" in refusal(
        first, vit(num_channels=2), DataConfig(path=str(tmp_path), mean=[0], std=[1])
    )


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("nowhere.png"), lambda path: path.mkdir()])
def test_a_picture_that_is_no_file_is_named(tmp_path, make):
    (tmp_path / "0").mkdir()
    make(tmp_path / "0" / "x.png")
    data = DataConfig(path=str(tmp_path), mean=[0], std=[1])
    for read in (lambda: first(vit(), data), lambda: rows_of(data).digest):
        assert refusal(read).startswith(f"{tmp_path / '0' / 'x.png'}: cannot be read: ")


def test_images_that_have_a_value_in_another_array(tmp_path):
    path = npz(tmp_path, split=["train", "test", "train"], fold=[0, 1, 1])
    chosen = rows_of(DataConfig(path=path, where={"split": "train", "fold": 1}))
    assert [row["label"] for row in chosen] == [2]
    message = refusal(rows_of, DataConfig(path=path, where={"corpus": "x"}))
    assert "no column 'corpus' (there are: image, label, split, fold)" in message
    message = refusal(rows_of, DataConfig(path=path, where={"image": 3}))
    assert "'where' names image of shape [3, 10, 12, 3]; expected an array of a value a row" in message
    np.savez(tmp_path / "b.npz", split=["train"])
    message = refusal(rows_of, DataConfig(path=str(tmp_path / "b.npz"), where={"split": "train"}))
    assert "none of its arrays (split) has a role's name (" in message


def test_a_wrong_size_names_the_image():
    rows = [{"image": np.zeros((8, 8, 3))}, {"image": np.zeros((8, 9, 3))}]
    assert "rows[1]: image is 8x9, the model reads 8x8; say the size to cut out under 'crop'" in refusal(
        first, vit(), rows
    )


def test_a_crop_larger_than_the_image(tmp_path):
    message = refusal(first, vit(), DataConfig(path=npz(tmp_path), crop=11, mean=[0], std=[1]))
    assert "a.npz[0]: image is 10x12, smaller than the crop of 11" in message


def test_positions_that_are_interpolated_take_any_size():
    torch.manual_seed(0)
    size = {key: value for key, value in SMALL.items() if key != "intermediate_size"}
    model = load(T.Dinov2ForImageClassification(T.Dinov2Config(**size, image_size=8, patch_size=4)))
    batch = first(model, [{"image": np.zeros((12, 16, 3))}])
    assert forward(model, batch).logits.shape == (1, 2)
    rows = [{"image": np.zeros((12, 16, 3))}, {"image": np.zeros((12, 12, 3))}]
    assert refusal(first, model, rows) == (
        "rows[1]: image is 12x12, the first of its batch 12x16; say the size to cut out under 'crop', or resize the "
        "images"
    )
    assert first(model, rows, batch_size=1).inputs["pixel_values"].shape == (1, 3, 12, 16)


def test_text_and_images_together():
    model = tiny_models.checkpoint("clip/CLIPModel")
    size, channels = model.config.vision_config.image_size, model.config.vision_config.num_channels
    image = np.zeros((size, size, channels))
    batch = first(model, [{"input_ids": [5, 6], "image": image}, {"input_ids": [7], "image": image}])
    assert batch.inputs.keys() == {"input_ids", "attention_mask", "pixel_values"}
    assert forward(model, batch).logits_per_image.shape == (2, 2)
    assert batch.labels is None


@pytest.mark.parametrize("more", [0, 1])
def test_texts_beside_images_are_never_as_long_as_these(more):
    """What is about the positions of pictures would be taken for text, and masked where that is padded."""
    model = tiny_models.checkpoint("clip/CLIPModel")
    vision = model.config.vision_config
    image = np.zeros((vision.image_size, vision.image_size, vision.num_channels))
    patches = (vision.image_size // vision.patch_size) ** 2
    rows = [{"input_ids": [5] * (patches + more), "image": image}, {"input_ids": [7], "image": image}]
    inputs = first(model, rows).inputs
    assert inputs["input_ids"].shape == inputs["attention_mask"].shape == (2, patches + 2)
    assert inputs["attention_mask"].sum(1).tolist() == [patches + more, 1]


def test_images_without_patches_beside_texts():
    model = tiny_models.checkpoint("clip/CLIPModel")
    model.config = copy.deepcopy(model.config)
    vision = model.config.vision_config
    image = np.zeros((vision.image_size, vision.image_size, vision.num_channels))
    vision.patch_size = None  # as of a tower of convolutions
    inputs = first(model, [{"input_ids": [5, 6], "image": image}]).inputs
    assert inputs["input_ids"].shape == (1, 2)


def test_files_of_rows_name_pictures_beside_them(tmp_path):
    (tmp_path / "scans").mkdir()
    Image.fromarray(PIXELS[0, :8, :8]).save(tmp_path / "scans" / "0.png")
    expected = PIXELS[0, :8, :8].transpose(2, 0, 1) / 255
    (tmp_path / "a.jsonl").write_text('{"image": "scans/0.png", "label": 1}\n')
    (tmp_path / "a.json").write_text('[{"image": "scans/0.png", "label": 1}]')
    (tmp_path / "a.csv").write_text("image,label\nscans/0.png,1\n")
    for name in ("a.jsonl", "a.json", "a.csv"):
        for where in ({}, {"label": 1}):
            data = DataConfig(path=str(tmp_path / name), mean=(0,), std=(1,), where=where)
            batch = first(vit(), data)
            assert np.allclose(batch.inputs["pixel_values"][0], expected, atol=1e-6)
            assert batch.labels.tolist() == [1]


def test_arrays_and_tables_name_pictures_beside_them(tmp_path):
    datasets = pytest.importorskip("datasets")
    Image.fromarray(PIXELS[0, :8, :8]).save(tmp_path / "0.png")
    columns = {"image": ["0.png"], "label": [1]}
    np.savez(tmp_path / "a.npz", **{name: np.array(values) for name, values in columns.items()})
    datasets.Dataset.from_dict(columns).to_parquet(tmp_path / "a.parquet")
    for name in ("a.npz", "a.parquet"):
        inputs = first(vit(), DataConfig(path=str(tmp_path / name), mean=(0,), std=(1,))).inputs
        assert np.allclose(inputs["pixel_values"][0], PIXELS[0, :8, :8].transpose(2, 0, 1) / 255, atol=1e-6)


@pytest.mark.parametrize("name", ["", "none.png"])
def test_pictures_are_not_looked_for_where_only_texts_are_read(name):
    model = tiny_models.checkpoint("bert/BertForSequenceClassification")
    assert first(model, [{"input_ids": [5, 6], "image": name, "label": 1}]).inputs["input_ids"].tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("none.png", "none.png: cannot be read: No such file or directory"),
        (".", ".: cannot be read: Is a directory"),
        ("a\0.png", "rows[0]: image 'a\\x00.png': expected a path"),
        ("", "rows[0]: image '': expected a path"),
        ("\ud800.png", "rows[0]: image '\\ud800.png': expected a path, of letters that a file system can name"),
    ],
)
def test_names_of_no_picture(name, line):
    assert refusal(first, vit(), [{"image": name, "label": 1}]) == line
