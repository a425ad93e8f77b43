"""What shapes a model: the energy, the inference rate, the recurrence; the baselines are other blocks in its frame."""

from transformers import PreTrainedConfig

from .energy import FEED_FORWARD, MASKS
from .inference_rate import RATES

BLOCKS = ("energy", "parallel", "sequential")
NORMS = ("layernorm", "rmsnorm", "none")


class NRGPTConfig(PreTrainedConfig):
    """Configuration of NRGPT and of the GPTs that it is compared with.

    `block="energy"`, `share_blocks=True` is NRGPT. The paper's GPT_Rec_parallel is `"parallel"` and shared, GPT_Rec
    `"sequential"` and shared, GPT `"sequential"` and not shared. See `nrgpt.presets` for the paper's models.

    Args:
        vocab_size: number of tokens.
        hidden_size: width d.
        num_hidden_layers: number of steps T, that is of applications of a block.
        num_attention_heads: heads h.
        intermediate_size: width of the feed-forward term; 4 d by default.
        max_position_embeddings: context; positions are learned.
        block: energy, parallel or sequential.
        share_blocks: one block for all steps, or one each.
        energy: the feed-forward energy, ff1, ff2 or ff2w.
        mask: strict (B < A, as the paper's formula; the official ListOps models) or inclusive (B <= A; the official
            language models).
        exact_self: with the inclusive mask, differentiate through a token's own key too (the official code does not).
        rank: of J_h; None for full matrices (the official code), `hidden_size // num_attention_heads` for the paper's
            formula at the usual cost.
        beta: inverse temperature of the attention energy.
        learn_alpha: learn the weight of each head in the energy; 1 otherwise.
        eta: full, identity, pos_scalar, diag_pos, psd, psd_skew or dual.
        eta_per_step: an own eta for each step.
        norm: of the energy block: layernorm, rmsnorm or none.
        norm_gain: learn the gain of that norm; the official code holds it at 1.
        stop_tol: a token rests once a step changes it by less than this share of its length; None never.
        activation: of the baselines' feed-forward layers, relu (official code) or gelu.
        dropout: of attention weights and outputs, and of the baselines' feed-forward layers.
        layer_norm_eps, initializer_range, tie_word_embeddings, use_cache: as elsewhere in transformers.

    Raises:
        ValueError: a value outside these.
    """

    model_type = "nrgpt"
    keys_to_ignore_at_inference = ["cache"]

    vocab_size: int = 50304
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int | None = None
    max_position_embeddings: int = 1024
    block: str = "energy"
    share_blocks: bool = True
    energy: str = "ff2w"
    mask: str = "inclusive"
    exact_self: bool = False
    rank: int | None = None
    beta: float = 1.0
    learn_alpha: bool = False
    eta: str = "full"
    eta_per_step: bool = False
    norm: str = "layernorm"
    norm_gain: bool = False
    stop_tol: float | None = None
    activation: str = "relu"
    dropout: float = 0.0
    layer_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs) -> None:
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        super().__post_init__(**kwargs)
        self._check()

    def _check(self) -> None:
        among = dict(block=BLOCKS, energy=tuple(FEED_FORWARD), mask=MASKS, eta=RATES, norm=NORMS)
        among |= dict(activation=("relu", "gelu"))
        for name, allowed in among.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        sizes = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"]
        for name in [*sizes, "max_position_embeddings", "rank"]:
            value = getattr(self, name)
            if not (value is None and name == "rank") and value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if self.block != "energy" and self.hidden_size < self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads: expected at most {self.hidden_size}, got {self.num_attention_heads}"
            )
        for name in ("beta", "stop_tol"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: expected a positive number, got {value}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected 0 <= value < 1, got {self.dropout}")
        if self.eta == "diag_pos" and (self.norm == "none" or not self.norm_gain):
            raise ValueError("eta: diag_pos is a^2 diag(gain of the norm); expected norm_gain=True and a norm")
        if self.exact_self and self.mask == "strict":
            raise ValueError("exact_self: expected False with the strict mask, in which a token does not see itself")
        if self.stop_tol is not None and not self.share_blocks:
            raise ValueError("stop_tol: expected None with share_blocks=False, where every block has its turn")
