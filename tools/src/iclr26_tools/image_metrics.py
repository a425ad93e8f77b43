"""Distances between sets of images (KID, Fréchet, precision and recall, spectra), a score of one set (Inception score),
and distances between pairs (PSNR, SSIM, LPIPS).

Set distances take features, (N, dim), from `features.extract`; those of spectra take images. The headline is the kernel
distance, which is unbiased at any sample size; a Fréchet distance of few samples in many dimensions says more about the
number of samples.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from iclr26_tools.statistics import Interval, check_level, t_interval

CHUNK = 1024  # rows of a kernel or distance matrix held at a time


def _features(features: Tensor | np.ndarray, name: str, least: int = 2) -> Tensor:
    features = torch.as_tensor(features)
    if features.ndim != 2 or len(features) < least:
        raise ValueError(f"{name}: expected features (N >= {least}, dim), got shape {tuple(features.shape)}")
    if not features.isfinite().all():
        raise ValueError(f"{name}: expected finite features")
    return features.double()  # kernels of degree three cancel badly in float32


def _pair(a, b, names: tuple[str, str], least: int = 2) -> tuple[Tensor, Tensor]:
    a, b = _features(a, names[0], least), _features(b, names[1], least)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"{names[0]}, {names[1]}: expected the same dimension, got {a.shape[1]} and {b.shape[1]}")
    return a, b


# Kernel distance


def kernel_distance(a: Tensor, b: Tensor, level: float = 0.95) -> Interval:
    """KID: the unbiased squared MMD with the kernel (x·y / dim + 1)^3 (Bińkowski et al. 2018), with an interval.

    The customary mean over random subsets has the same expectation; the spread over overlapping subsets is not the
    error of the whole. Nor is a plain bootstrap: a sample drawn twice puts k(x, x) into the sum that leaves out
    the diagonal. The interval is therefore the delete-one jackknife of the two-sample U-statistic, with a normal
    quantile: consistent where the distributions differ, and too wide, by about the square root of two, where they are
    the same.

    Args:
        a, b: features, (N, dim) and (M, dim); independent samples, N and M at least 3.

    Returns:
        The distance, which may be negative; its `n` is the smaller sample.
    """
    a, b = _pair(a, b, ("a", "b"), 3)
    check_level(level)
    (n, m), dim = (len(a), len(b)), a.shape[1]
    sum_aa, sum_bb, sum_ab, sum_ba = a.new_zeros(n), b.new_zeros(m), a.new_zeros(n), b.new_zeros(m)
    for x, rows_aa, rows_ab in zip(a.split(CHUNK), sum_aa.split(CHUNK), sum_ab.split(CHUNK), strict=True):
        rows_aa += _kernel(x, a, dim).sum(1) - ((x * x).sum(1) / dim + 1) ** 3  # the diagonal is left out
        cross = _kernel(x, b, dim)
        rows_ab += cross.sum(1)
        sum_ba += cross.sum(0)
    for y, rows_bb in zip(b.split(CHUNK), sum_bb.split(CHUNK), strict=True):
        rows_bb += _kernel(y, b, dim).sum(1) - ((y * y).sum(1) / dim + 1) ** 3

    aa, bb, ab = sum_aa.sum(), sum_bb.sum(), sum_ab.sum()
    mean_aa, mean_bb = aa / (n * (n - 1)), bb / (m * (m - 1))
    value = mean_aa + mean_bb - 2 * ab / (n * m)
    without_a = (aa - 2 * sum_aa) / ((n - 1) * (n - 2)) + mean_bb - 2 * (ab - sum_ab) / ((n - 1) * m)
    without_b = mean_aa + (bb - 2 * sum_bb) / ((m - 1) * (m - 2)) - 2 * (ab - sum_ba) / (n * (m - 1))
    variance = (n - 1) * without_a.var(correction=0) + (m - 1) * without_b.var(correction=0)
    half = float(stats.norm.ppf((1 + level) / 2) * variance.sqrt())
    return Interval(float(value), float(value) - half, float(value) + half, min(n, m), level, "jackknife")


def _kernel(x: Tensor, y: Tensor, dim: int) -> Tensor:
    return (x @ y.T / dim + 1) ** 3


# Fréchet distance


@dataclass(frozen=True)
class Pca:
    """Projection to the leading principal components of training features; `name` goes into reports."""

    mean: Tensor  # (dim,)
    components: Tensor  # (dimensions, dim)
    samples: int

    @property
    def name(self) -> str:
        return f"PCA to {len(self.components)} dimensions of {self.samples} training samples"

    def __call__(self, features: Tensor) -> Tensor:
        return (torch.as_tensor(features).double() - self.mean) @ self.components.T


def fit_pca(training_features: Tensor, dimensions: int = 64) -> Pca:
    """Fit the projection for Fréchet distances, once, on training data that is neither side of a comparison."""
    features = _features(training_features, "training_features")
    if not 1 <= dimensions <= features.shape[1] or len(features) <= dimensions:
        raise ValueError(
            f"dimensions: expected at most the feature dimension, {features.shape[1]}, and fewer than the "
            f"{len(features)} training samples, got {dimensions}"
        )
    mean = features.mean(0)
    _, vectors = torch.linalg.eigh(torch.cov(features.T).reshape(len(mean), len(mean)))  # ascending
    return Pca(mean, vectors.T.flip(0)[:dimensions], len(features))


def pca_if_few(training_features: Tensor, samples: int, dimensions: int = 64) -> Pca | None:
    """None where `samples` a side suffice for the Fréchet distance of whole features, five a dimension; else a PCA."""
    return None if samples >= 5 * training_features.shape[1] else fit_pca(training_features, dimensions)


def frechet_distance(
    a: Tensor | tuple[np.ndarray, np.ndarray], b: Tensor | tuple[np.ndarray, np.ndarray], pca: Pca | None = None
) -> float:
    """Squared Fréchet distance |mu_a - mu_b|² + tr(S_a + S_b - 2 (S_a S_b)^½) (Heusel et al. 2017).

    Args:
        a, b: features (N, dim), or both (mean, covariance), (dim,) and (dim, dim).
        pca: project features first.

    Raises:
        ValueError: fewer than five samples per dimension on a side: sampling noise would dominate (with 1,280
            features, real against real is 140 at 450 images a side).
    """
    if isinstance(a, tuple) != isinstance(b, tuple):
        raise ValueError("a, b: expected two feature sets or two (mean, covariance), got one of each")
    if isinstance(a, tuple):
        if pca:
            raise ValueError("pca: expected None with (mean, covariance), which cannot be projected as features are")
        return _frechet(*_moments_given(a, "a"), *_moments_given(b, "b"))
    a, b = _pair(a, b, ("a", "b"))
    a, b = (pca(a), pca(b)) if pca else (a, b)
    for name, side in (("a", a), ("b", b)):
        if len(side) < 5 * side.shape[1]:
            raise ValueError(
                f"{name}: expected at least 5 samples per dimension ({5 * side.shape[1]}) for a Fréchet distance, got "
                f"{len(side)}: sampling noise would dominate; use kernel_distance or pca=fit_pca(training_features, 64)"
            )
    return _frechet(*_moments(a), *_moments(b))


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    return features.mean(0), torch.cov(features.T).reshape(features.shape[1], features.shape[1])


def _moments_given(moments: tuple, name: str) -> tuple[Tensor, Tensor]:
    mean, cov = (torch.as_tensor(x, dtype=torch.float64) for x in moments)
    if mean.ndim != 1 or cov.shape != (len(mean), len(mean)):
        raise ValueError(f"{name}: expected (dim,) and (dim, dim), got {tuple(mean.shape)} and {tuple(cov.shape)}")
    if not torch.allclose(cov, cov.T):
        raise ValueError(f"{name}: expected a symmetric covariance")
    return mean, cov


def _frechet(mean_a: Tensor, cov_a: Tensor, mean_b: Tensor, cov_b: Tensor) -> float:
    if len(mean_a) != len(mean_b):
        raise ValueError(f"a, b: expected the same dimension, got {len(mean_a)} and {len(mean_b)}")
    values, vectors = torch.linalg.eigh(cov_a)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    # tr (S_a S_b)^½ = tr (S_a^½ S_b S_a^½)^½, and the latter is symmetric
    cross = torch.linalg.eigvalsh(root @ cov_b @ root).clamp(min=0).sqrt().sum()
    return float((mean_a - mean_b).square().sum() + cov_a.trace() + cov_b.trace() - 2 * cross)


# Reports: a distance beside the same distance between real sets


def kernel_distance_report(
    fake: Tensor, real: Tensor, floor: Tensor | None = None, network: str = "", level: float = 0.95, seed: int = 0
) -> dict:
    """KID of `fake` and, as the floor, of other real samples, to the same `real`; plain data for JSON.

    Args:
        fake, real: features, (N, dim), (M, dim).
        floor: features of real samples that are not in `real`; None: half of `real`, at random, which then leaves it.
            The larger of `fake` and `floor` is thinned at random to the size of the other.
        network: `extractor.name`.
    """
    fake, real, floor = _equal_sides(fake, real, floor, seed)
    distances = {key: kernel_distance(x, real, level).as_dict() for key, x in (("distance", fake), ("floor", floor))}
    return {"metric": "KID", "network": network, "samples": len(fake), "reference_samples": len(real)} | distances


def frechet_distance_report(
    fake: Tensor, real: Tensor, floor: Tensor | None = None, network: str = "", pca: Pca | None = None, seed: int = 0
) -> dict:
    """Like `kernel_distance_report`, for the Fréchet distance; no intervals, since resampling adds to its bias."""
    fake, real, floor = _equal_sides(fake, real, floor, seed)
    name = f"Fréchet distance, {pca.name}" if pca else "Fréchet distance"
    distances = {key: {"value": frechet_distance(x, real, pca)} for key, x in (("distance", fake), ("floor", floor))}
    return {"metric": name, "network": network, "samples": len(fake), "reference_samples": len(real)} | distances


def _equal_sides(fake: Tensor, real: Tensor, floor: Tensor | None, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    fake, real = _pair(fake, real, ("fake", "real"))
    generator = torch.Generator().manual_seed(seed)
    if floor is None:
        floor, real = real[torch.randperm(len(real), generator=generator)].tensor_split(2)
    else:
        _, floor = _pair(fake, floor, ("fake", "floor"))
    size = min(len(fake), len(floor))
    fake, floor = (x[torch.randperm(len(x), generator=generator)[:size]] for x in (fake, floor))
    return fake, real, floor


# Inception score


def inception_score(logits: Tensor, splits: int = 10, level: float = 0.95) -> Interval:
    """exp of the mean KL(p(y|x) || p(y)) (Salimans et al. 2016), from 1 to the number of classes.

    The score of each split is computed by itself, p(y) being the mean over that split, and they are averaged. Few
    samples a split make it too low: compare equal splits only (50,000 samples in 10 splits of 5,000 are the ADM
    evaluator's). The interval is Student's over splits; a bootstrap would lower the score by the samples drawn twice.

    Args:
        logits: (N, classes), of independent samples in random order, N at least 2 a split: rows in the order of their
            classes would make every split poorer than the whole.
        splits: at least 2.

    Returns:
        The score; its `n` is the number of splits.
    """
    if splits < 2:
        raise ValueError(f"splits: expected at least 2, got {splits}")
    logits = _features(logits, "logits", 2 * splits)
    scores = []
    for of_split in logits.log_softmax(1).tensor_split(splits):
        marginal = of_split.logsumexp(0) - math.log(len(of_split))  # log p(y)
        scores.append(float((of_split.exp() * (of_split - marginal)).sum(1).mean().exp()))
    return replace(t_interval(scores, level), method=f"t over {splits} splits")


def inception_score_report(fake: Tensor, real: Tensor, network: str, splits: int = 10, seed: int = 0) -> dict:
    """The score of `fake` and of `real` samples, as many, in random order; plain data for JSON.

    Args:
        fake, real: logits, (N, classes), (M, classes); the larger set is thinned at random to the size of the other.
        network: `extractor.name`; the score is called Inception's only if it is "inception".
    """
    fake, real = _pair(fake, real, ("fake", "real"), 2 * splits)
    generator, size = torch.Generator().manual_seed(seed), min(len(fake), len(real))
    fake, real = (x[torch.randperm(len(x), generator=generator)[:size]] for x in (fake, real))
    kind = "Inception score" if network == "inception" else "classifier score"
    scores = {key: inception_score(x, splits).as_dict() for key, x in (("score", fake), ("real", real))}
    name = f"{kind}, {splits} splits of {size // splits}"
    return {"metric": name, "network": network, "samples": size} | scores


# Precision and recall


class PrecisionRecall(NamedTuple):
    precision: float
    recall: float


def precision_recall(fake: Tensor, real: Tensor, k: int = 3) -> PrecisionRecall:
    """Improved precision and recall (Kynkäänniemi et al. 2019), with k = 3 as in the ADM evaluator.

    Precision is the share of `fake` inside the union of balls around each of `real` that reach its k-th nearest
    other of `real`; recall is the same with the sides exchanged. Both depend on the sample sizes: compare equal ones.
    """
    if k < 1:
        raise ValueError(f"k: expected at least 1, got {k}")
    fake, real = _pair(fake, real, ("fake", "real"), k + 1)
    return PrecisionRecall(_covered(fake, real, k), _covered(real, fake, k))


def _covered(points: Tensor, centres: Tensor, k: int) -> float:
    # exact differences, not the |x|² + |y|² - 2 x·y form, whose error would leave identical points apart
    def distances(x):
        return torch.cdist(x, centres, compute_mode="donot_use_mm_for_euclid_dist")

    radii = torch.cat([distances(x).kthvalue(k + 1).values for x in centres.split(CHUNK)])  # the nearest is itself
    return float(torch.cat([(distances(x) <= radii).any(1) for x in points.split(CHUNK)]).double().mean())


# Power spectra


def radial_power(images: Tensor) -> Tensor:
    """Mean power at 1, 2, …, side // 2 cycles an image, (side // 2,) float64.

    |F|² / pixels, F the discrete Fourier transform of a channel, so that white noise of variance v has power v
    everywhere; averaged over images, channels, and the frequencies whose radius rounds to the same number. The mean
    brightness and the corners beyond side // 2 are left out.

    Args:
        images: uint8, or floats in [0, 1], (N, channels, side, side).
    """
    images, _ = _images(images, images)
    side = images.shape[-1]
    if images.shape[-2] != side or side < 2:
        raise ValueError(f"images: expected squares of at least 2 x 2 pixels, got {tuple(images.shape[-2:])}")
    power = torch.fft.fft2(images.double(), norm="ortho").abs().square().mean((0, 1))  # (side, side)
    frequencies = torch.fft.fftfreq(side, 1 / side, dtype=torch.float64)
    radius = torch.hypot(frequencies[:, None], frequencies).round().long().flatten()
    return (torch.bincount(radius, power.flatten()) / torch.bincount(radius))[1 : side // 2 + 1]


def spectrum_distance(a: Tensor, b: Tensor) -> float:
    """Root mean square, over the frequencies of `radial_power`, of the difference of the log power of two sets.

    In nats: 0.69 means that powers are off by a factor of two. Infinite where one set alone has no power at a frequency
    (flat images). Arguments as there, of one size.
    """
    powers = [radial_power(images).cpu() for images in (a, b)]
    if len(powers[0]) != len(powers[1]):
        raise ValueError(f"a, b: expected images of one size, got {tuple(a.shape[-2:])} and {tuple(b.shape[-2:])}")
    difference = torch.where(powers[0] == powers[1], 0.0, powers[0].log() - powers[1].log())
    return float(difference.square().mean().sqrt())


# Pairs of images


def _images(images: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Both in [0, 1]."""
    if images.shape != reference.shape or images.ndim != 4 or 0 in images.shape:
        shapes = f"{tuple(images.shape)} and {tuple(reference.shape)}"
        raise ValueError(f"images, reference: expected the same shape (N, channels, height, width), got {shapes}")
    if images.dtype != reference.dtype:
        raise ValueError(f"images, reference: expected the same dtype, got {images.dtype} and {reference.dtype}")
    if images.dtype == torch.uint8:
        return images.float() / 255, reference.float() / 255
    for name, x in (("images", images), ("reference", reference)):
        if not x.is_floating_point() or not bool(((x >= 0) & (x <= 1)).all()):  # NaN fails too
            raise ValueError(f"{name}: expected uint8, or floats in [0, 1]")
    return images, reference


def luma(images: Tensor) -> Tensor:
    """Y of YCbCr (BT.601, range 16..235 of 255, as is usual in super-resolution), (N, 1, height, width) in [0, 1]."""
    images, _ = _images(images, images)
    if images.shape[1] != 3:
        raise ValueError(f"images: expected three channels, got {images.shape[1]}")
    weights = images.new_tensor([65.481, 128.553, 24.966]).view(1, 3, 1, 1)
    return ((images * weights).sum(1, keepdim=True) + 16) / 255


def psnr(images: Tensor, reference: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, (N,); infinite for equal images.

    Args:
        images, reference: uint8, or floats in [0, 1], (N, channels, height, width).
    """
    from torchmetrics.functional.image import peak_signal_noise_ratio

    images, reference = _images(images, reference)
    return peak_signal_noise_ratio(images, reference, data_range=1.0, reduction="none", dim=(1, 2, 3))


def ssim(images: Tensor, reference: Tensor) -> Tensor:
    """Structural similarity of each image, (N,), with a Gaussian window of 11 pixels; arguments as in `psnr`."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    images, reference = _images(images, reference)
    if min(images.shape[-2:]) < 11:
        raise ValueError(f"images: expected at least 11 x 11 pixels, got {tuple(images.shape[-2:])}")
    images, reference = images.double(), reference.double()  # in float32 flat images are off in the fourth digit
    return structural_similarity_index_measure(images, reference, data_range=1.0, reduction="none").reshape(-1)


def lpips(images: Tensor, reference: Tensor, network: str = "alex") -> Tensor:
    """Learned perceptual similarity (Zhang et al. 2018) of each image, (N,); arguments as in `psnr`.

    Needs the extra `lpips`; the weights of `network` ("alex", "vgg" or "squeeze") are downloaded at the first call.
    """
    images, reference = _images(images, reference)
    try:
        import torchvision  # noqa: F401
        from torchmetrics.functional.image import learned_perceptual_image_patch_similarity
    except ImportError as error:
        raise ValueError(
            f"lpips: expected the packages torchmetrics and torchvision ({error}); run `pip install "
            '"torchmetrics[image]" torchvision`'
        ) from error
    return learned_perceptual_image_patch_similarity(images, reference, network, "none", normalize=True).reshape(-1)
