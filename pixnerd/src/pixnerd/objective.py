"""What is minimised: the flow-matching loss, and on request the losses on features, of one batch."""

from torch import Tensor, nn

from .alignment import dispersive_loss, repa_loss
from .flow import LOSS_WEIGHTS, interpolate, velocity_loss


class Objective(nn.Module):
    """Network and projector as one module, so that replicas and shards wrap all that is trained.

    Args:
        transformer: a `PixNerdTransformer2DModel` or `PixNerdTextTransformer2DModel`.
        projector: from the network's width to the teacher's, or None without REPA.
        prediction_type: `"velocity"` or `"sample"`.
        loss_weight: a key of `flow.LOSS_WEIGHTS`.
        feature_layer: block whose output the feature losses see, from 1 (paper: 8).
        repa_weight: weight of the alignment loss (paper: 0.5).
        dispersive_weight: weight of the dispersive loss (official code: 0.5 where used; not in the paper's recipe).
    """

    def __init__(
        self,
        transformer: nn.Module,
        projector: nn.Module | None = None,
        *,
        prediction_type: str = "velocity",
        loss_weight: str = "constant",
        feature_layer: int = 8,
        repa_weight: float = 0.5,
        dispersive_weight: float = 0.0,
    ) -> None:
        super().__init__()
        if loss_weight not in LOSS_WEIGHTS:
            raise ValueError(f"loss_weight: expected one of {', '.join(LOSS_WEIGHTS)}, got {loss_weight!r}")
        self.transformer, self.projector = transformer, projector
        self.prediction_type, self.loss_weight = prediction_type, loss_weight
        self.repa_weight, self.dispersive_weight = repa_weight, dispersive_weight
        self.feature_layer = feature_layer if projector is not None or dispersive_weight else None

    def forward(
        self, x: Tensor, condition: Tensor, t: Tensor, noise: Tensor, teacher: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Args: x clean images in [-1, 1]; labels or text features, after the drop; t after the shift; noise like x;
        teacher's tokens.

        Returns:
            `loss`, what is minimised, and its parts `velocity`, `repa`, `dispersive` where they are asked for; scalars.
        """
        x_t = interpolate(x, noise, t)
        prediction = self.transformer(x_t, t, condition, feature_layer=self.feature_layer)
        velocity = velocity_loss(prediction.sample.to(x.dtype), x, noise, t, self.prediction_type)
        losses = {"velocity": (LOSS_WEIGHTS[self.loss_weight](t) * velocity).mean()}
        loss = losses["velocity"]
        if self.projector is not None:
            losses["repa"] = repa_loss(self.projector(prediction.features).to(x.dtype), teacher).mean()
            loss = loss + self.repa_weight * losses["repa"]
        if self.dispersive_weight:
            losses["dispersive"] = dispersive_loss(prediction.features.to(x.dtype))
            loss = loss + self.dispersive_weight * losses["dispersive"]
        return {"loss": loss, **losses}
