import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch
from torchmetrics.image.fid import _compute_fid
from torchmetrics.image.kid import poly_mmd

from iclr26_tools import image_metrics as im


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_kernel_distance_is_the_double_loop():
    a, b = normal(7, 5).double(), normal(9, 5, seed=1).double() + 0.5

    def k(x, y):
        return (float(x @ y) / 5 + 1) ** 3

    aa = np.mean([k(x, y) for x, y in itertools.permutations(a, 2)])
    bb = np.mean([k(x, y) for x, y in itertools.permutations(b, 2)])
    ab = np.mean([k(x, y) for x in a for y in b])
    assert im.kernel_distance(a, b).value == pytest.approx(aa + bb - 2 * ab, rel=1e-10)


def test_kernel_distance_interval_is_the_jackknife_by_leaving_out_one_sample_at_a_time():
    a, b = normal(6, 4), normal(8, 4, seed=1) + 0.3
    interval = im.kernel_distance(a, b)
    less_a = [im.kernel_distance(torch.cat([a[:i], a[i + 1 :]]), b).value for i in range(6)]
    less_b = [im.kernel_distance(a, torch.cat([b[:i], b[i + 1 :]])).value for i in range(8)]
    variance = 5 * np.var(less_a) + 7 * np.var(less_b)
    assert interval.high - interval.value == pytest.approx(1.959964 * math.sqrt(variance), rel=1e-5)


def test_kernel_distance_agrees_with_torchmetrics():
    a, b = normal(40, 6).double(), normal(40, 6, seed=1).double() * 1.2
    assert im.kernel_distance(a, b).value == pytest.approx(float(poly_mmd(a, b)), rel=1e-9)


def test_kernel_distance_in_chunks_is_the_same(monkeypatch):
    a, b = normal(50, 6), normal(33, 6, seed=1)
    whole = im.kernel_distance(a, b)
    monkeypatch.setattr(im, "CHUNK", 7)
    parts = im.kernel_distance(a, b)
    assert parts.value == pytest.approx(whole.value, rel=1e-9) and parts.low == pytest.approx(whole.low, rel=1e-9)


def test_kernel_distance_of_one_distribution_is_zero_on_average_and_its_interval_covers_zero():
    draws = [im.kernel_distance(normal(50, 8, seed=2 * i), normal(50, 8, seed=2 * i + 1)) for i in range(400)]
    values = np.array([d.value for d in draws])
    assert abs(values.mean()) < 4 * values.std() / 20
    # the biased estimate, with the diagonal, would be about 2 * ((1 + 1)^3 - 1) / 50 = 0.28 here
    assert abs(values.mean()) < 0.05
    assert np.mean([d.low <= 0 <= d.high for d in draws]) >= 0.93


def test_kernel_distance_covers_the_known_distance_of_two_gaussians():
    # In one dimension k(x, y) = (xy + 1)^3 = sum of C(3, j) x^j y^j: MMD² = sum C(3, j) (E x^j - E y^j)²
    # x: N(0, 1), moments 0, 1, 0; y: N(1, 1), moments 1, 2, 4
    truth = 3 * 1**2 + 3 * 1**2 + 1 * 4**2
    hits = 0
    for i in range(300):
        interval = im.kernel_distance(normal(200, 1, seed=2 * i), 1 + normal(200, 1, seed=2 * i + 1))
        hits += interval.low <= truth <= interval.high
    assert 0.90 <= hits / 300 <= 0.985


def test_frechet_distance_of_gaussians_with_commuting_covariances():
    # diagonal: |mu|² + sum (sqrt a - sqrt b)²; a rotation of both changes nothing
    a, b, mu = np.array([1.0, 4.0, 9.0]), np.array([4.0, 1.0, 0.0]), np.array([1.0, -2.0, 0.5])
    rotation = scipy.linalg.expm(np.array([[0, 1, 2], [-1, 0, 3], [-2, -3, 0]]))
    expected = mu @ mu + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    sides = [(rotation @ m, rotation @ np.diag(s) @ rotation.T) for m, s in ((np.zeros(3), a), (mu, b))]
    assert im.frechet_distance(*sides) == pytest.approx(expected, abs=1e-6)
    assert im.frechet_distance(sides[1], sides[0]) == pytest.approx(expected, abs=1e-6)


def test_frechet_distance_agrees_with_torchmetrics_where_covariances_do_not_commute():
    a, b = normal(60, 5).double(), (normal(60, 5, seed=1) @ normal(5, 5, seed=2) + 1).double()
    expected = _compute_fid(a.mean(0), a.T.cov(), b.mean(0), b.T.cov())
    assert im.frechet_distance(a, b) == pytest.approx(float(expected), rel=1e-6)


def test_frechet_distance_refuses_small_samples_and_takes_them_after_pca():
    a, b = normal(99, 20), normal(99, 20, seed=1)
    with pytest.raises(ValueError, match=r"a: expected at least 5 samples per dimension \(100\).* 99"):
        im.frechet_distance(a, b)
    assert im.frechet_distance(a, b, im.fit_pca(normal(200, 20, seed=2), 4)) >= 0
    with pytest.raises(ValueError, match="b: expected at least 5"):
        im.frechet_distance(normal(100, 20), b)


def test_pca_finds_the_plane_of_the_data_and_keeps_distances_in_it():
    basis = torch.linalg.qr(normal(10, 2).double()).Q
    points = normal(300, 2, seed=1).double() * torch.tensor([3.0, 1.0]) @ basis.T + 5
    pca = im.fit_pca(points, 2)
    assert torch.allclose(torch.pdist(pca(points[:20])), torch.pdist(points[:20]))
    assert pca(points)[:, 0].var() > pca(points)[:, 1].var()
    assert "2 dimensions of 300" in pca.name


def test_reports_put_the_floor_of_the_same_size_beside_the_distance():
    real, fake = normal(200, 4), normal(70, 4, seed=1) + 3
    report = im.kernel_distance_report(fake, real, network="net")
    assert report["network"] == "net" and report["samples"] == 70 and report["reference_samples"] == 100
    assert report["floor"]["low"] < 0 < report["floor"]["high"] and report["distance"]["low"] > 0
    report = im.frechet_distance_report(fake, real, normal(50, 4, seed=2))
    assert report["samples"] == 50 and report["reference_samples"] == 200
    assert report["distance"]["value"] > 30 and report["floor"]["value"] < 1  # the means are 36 apart
    pca = im.fit_pca(normal(100, 4, seed=3), 2)
    assert "PCA to 2 dimensions of 100" in im.frechet_distance_report(fake, real, pca=pca)["metric"]


def test_a_pca_is_fitted_only_below_five_samples_a_dimension():
    training = normal(30, 4)
    assert im.pca_if_few(training, 20, 2) is None
    assert im.pca_if_few(training, 19, 2).components.shape == (2, 4)


def test_the_inception_score_of_certain_and_balanced_classes_is_their_number_and_of_equal_logits_one():
    certain = 1e4 * torch.eye(7).repeat(6, 1)
    score = im.inception_score(certain, splits=3)
    assert score.value == pytest.approx(7) and score.low == pytest.approx(7) and score.n == 3
    assert im.inception_score(certain[:, :, None].expand(-1, -1, 2).flatten(1), 3).value == pytest.approx(7)
    assert im.inception_score(normal(1, 7).expand(20, 7)).value == pytest.approx(1)
    assert im.inception_score(certain[:, :1].expand(-1, 7) + 1e4 * torch.eye(7)[3]).value == pytest.approx(1)


def test_the_inception_score_is_the_exponential_of_the_mutual_information():
    # p(y|x) is (1 - e, e) or (e, 1 - e), half each: I = log 2 - H(e)
    e = 0.1
    logits = torch.tensor([[1 - e, e], [e, 1 - e]]).log().repeat(8, 1)
    entropy = -(e * math.log(e) + (1 - e) * math.log(1 - e))
    assert im.inception_score(logits, 2).value == pytest.approx(2 * math.exp(-entropy))
    assert im.inception_score(logits + normal(16, 1), 2).value == pytest.approx(2 * math.exp(-entropy), rel=1e-5)


def test_the_inception_score_of_splits_that_differ_is_their_mean_with_students_interval():
    certain = 1e4 * torch.eye(4)
    score = im.inception_score(torch.cat([certain, certain[:2].repeat(2, 1)]), splits=2)  # scores 4 and 2
    assert score.value == pytest.approx(3) and score.high - 3 == pytest.approx(12.7062 * 1, rel=1e-4)


def test_the_report_of_the_score_shuffles_and_names_the_classifier():
    in_order = (1e4 * torch.eye(4)).repeat_interleave(100, dim=0)
    assert im.inception_score(in_order, 4).value == pytest.approx(1)  # every split has one class
    report = im.inception_score_report(in_order, in_order.repeat(2, 1), "net", splits=4)
    assert 3.5 < report["score"]["value"] <= 4 and 3.5 < report["real"]["value"] <= 4
    assert report["metric"] == "classifier score, 4 splits of 100" and report["network"] == "net"
    assert im.inception_score_report(in_order, in_order, "inception")["metric"].startswith("Inception score, 10")


def test_precision_and_recall_of_a_constructed_example():
    real = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0], [101.0], [102.0], [103.0]])
    # with k = 3 every real ball has radius 2 or 3: the balls cover [-3, 6] and [97, 106]
    fake = torch.tensor([[0.5], [1.5], [-2.9], [50.0], [51.0], [52.0], [53.0], [54.0]])
    precision, recall = im.precision_recall(fake, real)
    assert precision == 3 / 8
    # fake: the third nearest of 0.5, 1.5 and -2.9 is 50, so their balls end there; those of 50..54 have radius 2 or 3:
    # real 0..3 are covered, 100..103 are not
    assert recall == 1 / 2
    assert im.precision_recall(real, real) == (1.0, 1.0)
    assert im.precision_recall(real + 1000, real) == (0.0, 0.0)


def test_power_of_white_noise_is_its_variance_at_every_frequency():
    power = im.radial_power(0.5 + 0.1 * normal(400, 3, 16, 16).clamp(-4, 4))
    assert power.shape == (8,)
    assert torch.allclose(power, torch.full((8,), 0.01, dtype=torch.float64), rtol=0.02)


@pytest.mark.parametrize(("row", "column", "radius"), [(0, 3, 3), (3, 0, 3), (3, 4, 5), (1, 1, 1), (5, 5, 7)])
def test_power_of_a_wave_is_all_in_the_ring_of_its_frequency(row, column, radius):
    side, amplitude = 16, 0.3
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    wave = 0.5 + amplitude * torch.cos(2 * torch.pi * (row * y + column * x) / side).expand(2, 3, side, side).double()
    frequencies = torch.fft.fftfreq(side, 1 / side)
    ring = (torch.hypot(frequencies[:, None], frequencies).round() == radius).sum()
    expected = torch.zeros(8, dtype=torch.float64)
    expected[radius - 1] = amplitude**2 / 2 * side**2 / ring  # Parseval
    assert torch.allclose(im.radial_power(wave), expected, atol=1e-12)


def test_spectrum_distance_of_contrast_is_its_log_and_the_order_of_images_and_a_shift_do_not_matter():
    images = torch.rand(6, 3, 12, 12, generator=torch.Generator().manual_seed(0)).double()
    assert im.spectrum_distance(images / 3, images) == pytest.approx(2 * math.log(3), rel=1e-9)
    moved = images.flip(0).roll((2, 5), (2, 3)) * 0.5 + 0.5
    assert im.spectrum_distance(moved, images) == pytest.approx(2 * math.log(2), rel=1e-9)
    half = torch.fft.fft2(images)
    frequencies = torch.fft.fftfreq(12, 1 / 12)
    half[..., torch.hypot(frequencies[:, None], frequencies) > 3.4] *= 0.1  # rings 4, 5 and 6 of six
    softer = torch.fft.ifft2(half).real
    assert softer.min() >= 0 and softer.max() <= 1
    assert im.spectrum_distance(softer, images) == pytest.approx(2 * math.log(10) * math.sqrt(3 / 6), rel=1e-9)
    flat = torch.zeros(1, 3, 12, 12).double()
    assert im.spectrum_distance(flat, images) == math.inf and im.spectrum_distance(flat, flat) == 0


def test_psnr_of_known_noise():
    zero = torch.zeros(2, 3, 16, 16, dtype=torch.uint8)
    other = zero.clone()
    other[0] += 5
    other[1, :, ::2] += 10  # half of the pixels
    expected = [20 * math.log10(255 / 5), 10 * math.log10(255**2 / 50)]
    assert im.psnr(other, zero).tolist() == pytest.approx(expected, rel=1e-5)
    assert math.isinf(float(im.psnr(zero, zero)[0]))
    assert im.psnr(other / 255, zero / 255).tolist() == pytest.approx(expected, rel=1e-5)


def test_ssim_is_one_for_equal_images_and_known_for_constant_ones():
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert im.ssim(images, images).tolist() == pytest.approx([1, 1, 1], abs=1e-5)
    assert im.ssim(images[:1], images[:1]).shape == (1,)
    a, b = (torch.full((1, 1, 16, 16), x, dtype=torch.float64) for x in (0.2, 0.6))  # no variance: luminance is left
    assert float(im.ssim(a, b)) == pytest.approx((2 * 0.2 * 0.6 + 1e-4) / (0.04 + 0.36 + 1e-4), rel=1e-6)


def test_luma_of_black_and_white():
    images = torch.stack([torch.zeros(3, 2, 2), torch.ones(3, 2, 2)])
    assert torch.allclose(im.luma(images)[:, 0, 0, 0] * 255, torch.tensor([16.0, 235.0]))


def test_lpips_without_torchvision_says_what_to_install():
    pytest.importorskip("torchmetrics")
    try:
        import torchvision  # noqa: F401
    except ImportError:
        images = torch.zeros(1, 3, 64, 64)
        with pytest.raises(ValueError, match="pip install .*torchvision"):
            im.lpips(images, images)
    else:
        pytest.skip("torchvision is installed")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: im.kernel_distance(normal(2, 4), normal(9, 4)), "a: expected features"),
        (lambda: im.kernel_distance(normal(9, 4), normal(9, 5)), "same dimension, got 4 and 5"),
        (lambda: im.kernel_distance(normal(9, 4) / 0, normal(9, 4)), "a: expected finite"),
        (lambda: im.kernel_distance(normal(9, 4), normal(9, 4), level=95), "level: expected"),
        (lambda: im.fit_pca(normal(9, 4), 5), "dimensions: expected"),
        (lambda: im.frechet_distance(normal(9, 1), (0, 0)), "one of each"),
        (lambda: im.frechet_distance((np.zeros(2), np.eye(3)), (np.zeros(2), np.eye(2))), "a: expected"),
        (lambda: im.frechet_distance((np.zeros(2), np.tri(2)), (np.zeros(2), np.eye(2))), "symmetric"),
        (lambda: im.frechet_distance((np.zeros(2), np.eye(2)), (np.zeros(3), np.eye(3))), "same dimension"),
        (lambda: im.inception_score(normal(19, 4)), "logits: expected features .N >= 20"),
        (lambda: im.inception_score(normal(19, 4), 1), "splits: expected at least 2, got 1"),
        (lambda: im.inception_score_report(normal(40, 4), normal(40, 5), "net"), "same dimension, got 4 and 5"),
        (lambda: im.precision_recall(normal(3, 2), normal(9, 2)), "fake: expected features"),
        (lambda: im.precision_recall(normal(9, 2), normal(9, 2), 0), "k: expected"),
        (lambda: im.psnr(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 4, 5)), "same shape"),
        (lambda: im.psnr(torch.ones(1, 3, 4, 4) * 2, torch.ones(1, 3, 4, 4)), "images: expected uint8"),
        (lambda: im.psnr(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 4, 4) * torch.nan), "reference: expected uint8"),
        (lambda: im.psnr(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 4, 4, dtype=torch.uint8)), "same dtype"),
        (lambda: im.ssim(torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8)), "at least 11 x 11"),
        (lambda: im.luma(torch.ones(1, 1, 8, 8)), "three channels"),
        (lambda: im.radial_power(torch.ones(1, 3, 4, 5)), "expected squares"),
        (lambda: im.radial_power(torch.ones(1, 3, 4, 4) * 2), "images: expected uint8"),
        (lambda: im.spectrum_distance(torch.rand(1, 3, 4, 4), torch.rand(1, 3, 6, 6)), "of one size"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
