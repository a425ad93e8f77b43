"""The command `iclr26-tools`."""

import sys
import warnings
from pathlib import Path

import jsonargparse
from torch import Tensor

from iclr26_tools import image_metrics, results
from iclr26_tools.features import Extractor, class_logits, extract, load_extractor
from iclr26_tools.images import image_files, load_images
from iclr26_tools.jsonio import write_json
from iclr26_tools.statistics import bootstrap_interval

DESCRIPTION = "Image metrics and results tables. Errors are one line; --debug shows the traceback."
EXTRACTOR = "efficientnet-lite0"


def kid(
    fake: str,
    real: str,
    floor: str | None = None,
    extractor: str = EXTRACTOR,
    size: int | None = None,
    json: str | None = None,
    device: str = "cpu",
) -> None:
    """Kernel distance (KID) of two sets of images, beside the same distance between real and other real images.

    Args:
        fake: folder of pictures, or .npz of the ADM evaluator.
        real: the same, of real images.
        floor: more real images, none of them in `real`; without it, `real` is halved at random.
        extractor: efficientnet-lite0[@SIDE], inception[:WEIGHTS], or a transformers model.
        size: side in pixels to resize all images to first.
        json: file to write the numbers to.
        device: of the extractor.
    """
    network = load_extractor(extractor, device)
    report = image_metrics.kernel_distance_report(*_sets(network, size, fake, real, floor), network.name)
    _show(report, json)


def fid(
    fake: str,
    real: str,
    floor: str | None = None,
    pca: str | None = None,
    extractor: str = EXTRACTOR,
    size: int | None = None,
    json: str | None = None,
    device: str = "cpu",
) -> None:
    """Fréchet distance of two sets of images, beside that of real and other real images; refused for small samples.

    Args:
        fake: folder of pictures, or .npz of the ADM evaluator.
        real: the same, of real images.
        floor: more real images, none of them in `real`; without it, `real` is halved at random.
        pca: training images, none of them in the other sets, on which a projection to 64 dimensions is fitted.
        extractor: efficientnet-lite0[@SIDE], inception[:WEIGHTS], inception-spatial[:WEIGHTS] for sFID, or
             a transformers model.
        size: side in pixels to resize all images to first.
        json: file to write the numbers to.
        device: of the extractor.
    """
    network = load_extractor(extractor, device)
    sets = _sets(network, size, fake, real, floor)
    projection = image_metrics.fit_pca(_sets(network, size, pca)[0]) if pca else None
    _show(image_metrics.frechet_distance_report(*sets, network.name, projection), json)


def pr(
    fake: str,
    real: str,
    k: int = 3,
    extractor: str = EXTRACTOR,
    size: int | None = None,
    json: str | None = None,
    device: str = "cpu",
) -> None:
    """Improved precision and recall of two sets of images.

    Args:
        fake: folder of pictures, or .npz of the ADM evaluator.
        real: the same, of real images.
        k: neighbours that define the manifold.
        extractor: efficientnet-lite0[@SIDE], inception[:WEIGHTS], or a transformers model.
        size: side in pixels to resize all images to first.
        json: file to write the numbers to.
        device: of the extractor.
    """
    network = load_extractor(extractor, device)
    a, b = _sets(network, size, fake, real)
    precision, recall = image_metrics.precision_recall(a, b, k)
    head = {"metric": "precision and recall", "network": network.name, "samples": len(a), "reference_samples": len(b)}
    _show(head | {"k": k, "precision": precision, "recall": recall}, json)


def isc(
    fake: str,
    real: str,
    splits: int = 10,
    extractor: str = EXTRACTOR,
    size: int | None = None,
    json: str | None = None,
    device: str = "cpu",
) -> None:
    """Inception score, or the same score by another classifier, beside that of real images.

    Args:
        fake: folder of pictures, or .npz of the ADM evaluator.
        real: the same, of real images; the larger set is thinned to the size of the other.
        splits: parts that are scored by themselves.
        extractor: efficientnet-lite0[@SIDE], or inception[:WEIGHTS].
        size: side in pixels to resize all images to first.
        json: file to write the numbers to.
        device: of the extractor.
    """
    network = load_extractor(extractor, device)
    fake_logits, real_logits = (class_logits(network, x) for x in _sets(network, size, fake, real))
    _show(image_metrics.inception_score_report(fake_logits, real_logits, network.name, splits), json)


def psnr(images: str, reference: str, json: str | None = None) -> None:
    """Peak signal-to-noise ratio of pairs of images in dB: mean over images.

    Args:
        images: folder of pictures, or .npz of the ADM evaluator.
        reference: the same; folders must hold pictures of the same names.
        json: file to write the numbers to.
    """
    _show_pairs("PSNR (dB)", image_metrics.psnr, images, reference, json)


def ssim(images: str, reference: str, json: str | None = None) -> None:
    """Structural similarity of pairs of images: mean over images.

    Args:
        images: folder of pictures, or .npz of the ADM evaluator.
        reference: the same; folders must hold pictures of the same names.
        json: file to write the numbers to.
    """
    _show_pairs("SSIM", image_metrics.ssim, images, reference, json)


def render(project: str) -> None:
    """Fill the results blocks of a project's README from its results files.

    Args:
        project: folder with README.md and results.
    """
    print(f"{project}/README.md: {'filled' if results.render(project) else 'up to date'}")


def check(project: str) -> None:
    """Fail if the README of a project differs from its results files; warn of results older than the code.

    Args:
        project: folder with README.md and results.
    """
    for message in results.stale(project):
        print(f"warning: {message}", file=sys.stderr)
    if messages := results.check(project):
        raise ValueError("; ".join(messages))
    print(f"{project}/README.md: agrees with the results")


COMMANDS = {
    "kid": kid,
    "fid": fid,
    "pr": pr,
    "isc": isc,
    "psnr": psnr,
    "ssim": ssim,
    "results": {"_help": "The tables of a project's README.", "render": render, "check": check},
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; wrong input is one line on stderr and exit status 2, `--debug` shows the traceback."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            options = [a for a in arguments if a != "--debug"]
            jsonargparse.auto_cli(COMMANDS, args=options, prog="iclr26-tools", description=DESCRIPTION)
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"iclr26-tools: {error}", file=sys.stderr)
        sys.exit(2)


def _sets(network: Extractor, size: int | None, *sources: str | None) -> list[Tensor | None]:
    return [None if source is None else extract(network, load_images(source, size)) for source in sources]


def _show_pairs(name: str, metric, images: str, reference: str, json: str | None) -> None:
    if Path(images).is_dir() and Path(reference).is_dir():
        names = [{p.relative_to(f).with_suffix("") for p in image_files(f)} for f in (images, reference)]
        if alone := sorted(names[0] ^ names[1]):
            raise ValueError(
                f"reference: expected pictures of the same names in both folders, {alone[0]} has no partner"
            )
    values = metric(load_images(images), load_images(reference)).double()
    if not values.isfinite().all():
        raise ValueError(
            f"{name} of {int((~values.isfinite()).sum())} of {len(values)} pairs is infinite: they are equal"
        )
    mean = float(values.mean()) if len(values) == 1 else bootstrap_interval(values).as_dict()
    _show({"metric": name, "samples": len(values), "mean": mean}, json)


def _show(report: dict, json: str | None) -> None:
    for key, value in report.items():
        if isinstance(value, dict):
            interval = f" [{value['low']:.5g}, {value['high']:.5g}]" if "low" in value else ""
            value = f"{value['value']:.5g}{interval}"
        print(f"{key:18} {value:.5g}" if isinstance(value, float) else f"{key:18} {value}")
    if json:
        write_json(json, report)
        print(f"written to {json}")


if __name__ == "__main__":
    main()
