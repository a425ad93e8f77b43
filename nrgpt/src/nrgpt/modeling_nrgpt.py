"""NRGPT as a causal language model of transformers: T steps on the energy, then a norm and a linear head."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import ModelOutput

from .blocks import EnergyBlock, GPTBlock, Visible
from .configuration_nrgpt import NRGPTConfig
from .energy import AttentionEnergy, causal_mask
from .inference_rate import InferenceRate


@dataclass
class NRGPTOutput(ModelOutput):
    """What a forward pass returns; what was not asked for is None. T is the number of steps.

    Args:
        loss: mean cross-entropy in nats of the labels, shifted by one place.
        logits: (batch, length, vocab_size).
        last_hidden_state: after the last norm, (batch, length, hidden_size).
        cache: keys of all tokens so far, step by step.
        hidden_states: states x^(0) to x^(T), each (batch, length, hidden_size).
        attention_energy, feed_forward_energy: of each token at x^(0) to x^(T), (batch, T + 1, length); their sum is
            what a step descends.
        gradient_norm: length of the energy's gradient there, (batch, T + 1, length).
        update_norm: length of x^(t+1) - x^(t), (batch, T, length).
        steps: how many steps each token took, (batch, length).
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    last_hidden_state: Tensor | None = None
    cache: DynamicCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attention_energy: Tensor | None = None
    feed_forward_energy: Tensor | None = None
    gradient_norm: Tensor | None = None
    update_norm: Tensor | None = None
    steps: Tensor | None = None


class NRGPTPreTrainedModel(PreTrainedModel):
    config_class = NRGPTConfig
    config: NRGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["EnergyBlock", "GPTBlock"]
    _supports_sdpa = True

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        loaded = super().from_pretrained(*args, **kwargs)
        for module in (loaded[0] if isinstance(loaded, tuple) else loaded).modules():
            if isinstance(module, EnergyBlock):
                module.hold_gain()  # what transformers loads is trainable
        return loaded

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """N(0, 0.02) for every matrix, zero for biases, one for gains (official code)."""
        std = self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, std=std)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            init.ones_(module.weight)
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, EnergyBlock):
            init.ones_(module.feed_forward_scale)
        elif isinstance(module, AttentionEnergy):
            for name, parameter in module.named_parameters(recurse=False):
                if name == "raw_alpha":
                    init.constant_(parameter, 0.5413248546129181)  # softplus of it is 1
                else:
                    init.normal_(parameter, std=std)
        elif isinstance(module, InferenceRate):
            for name, parameter in module.named_parameters(recurse=False):
                if name == "a":
                    init.ones_(parameter)
                elif name == "L":
                    init.copy_(parameter, torch.eye(module.dim).expand_as(parameter))
                else:
                    init.normal_(parameter, std=std)


class NRGPTModel(NRGPTPreTrainedModel):
    """Embeddings, the steps, and the last norm."""

    def __init__(self, config: NRGPTConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        kind = EnergyBlock if config.block == "energy" else GPTBlock
        self.blocks = nn.ModuleList(kind(config) for _ in range(1 if config.share_blocks else config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embed_tokens = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        num_steps: int | None = None,
        stop_tol: float | None = None,
        output_energies: bool = False,
        output_hidden_states: bool | None = None,
        **kwargs,
    ) -> NRGPTOutput:
        """Run the steps.

        Args:
            input_ids: (batch, length); or inputs_embeds, (batch, length, hidden_size).
            attention_mask: (batch, past + length), 0 for padding, which nobody sees.
            position_ids: (batch, length); counted over what is not padding by default.
            cache: of an earlier call, with the same number of steps.
            num_steps: instead of the configured T; a shared block can go on for as long as one likes.
            stop_tol: instead of the configured one.
            output_energies: also return energies, gradient and update lengths; not with a filled cache.

        Raises:
            ValueError: more tokens than positions, or one of the above does not fit.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids: expected either input_ids or inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        steps = self._check(num_steps, stop_tol, output_energies)
        if cache is None and (self.config.use_cache if use_cache is None else use_cache) and not self.training:
            cache = DynamicCache()
        past = 0 if cache is None else self._prepare(cache, steps)
        if attention_mask is not None and attention_mask.shape != (x.shape[0], past + x.shape[1]):
            expected = (x.shape[0], past + x.shape[1])
            raise ValueError(f"attention_mask: expected shape {expected}, got {tuple(attention_mask.shape)}")
        x = x + self._positions(x, attention_mask, position_ids, past)
        visible = Visible(self._mask(attention_mask, x, past), cache)
        states, taken = self._run(x, visible, steps, self.config.stop_tol if stop_tol is None else stop_tol)
        energies = {}
        if output_energies:
            if past:
                raise ValueError("output_energies: expected an empty cache; pass all tokens at once")
            energies = self._energies(states, visible.mask)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return NRGPTOutput(
            last_hidden_state=self.norm(states[-1]),
            cache=cache,
            hidden_states=tuple(states) if output_hidden_states else None,
            steps=taken,
            **energies,
        )

    def _run(self, x: Tensor, visible: Visible, steps: int, stop_tol: float | None) -> tuple[list[Tensor], Tensor]:
        """States x^(0) to x^(T), and how many steps each token took."""
        states = [x]
        if stop_tol is None:
            for step in range(steps):
                states.append(self._block(step)(states[-1], visible, step))
            return states, torch.full(x.shape[:2], steps, device=x.device)
        moving = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        taken = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        for step in range(steps):
            if moving.any():
                new = torch.where(moving.unsqueeze(-1), self._block(step)(x, visible, step), x)
                taken += moving
                moving &= (new - x).norm(dim=-1) >= stop_tol * x.norm(dim=-1)
                x = new
            elif visible.cache is not None:  # a token to come may take more steps and then sees these
                self._block(step).remember(x, visible, step)
            states.append(x)
        return states, taken

    def _energies(self, states: list[Tensor], mask: Tensor | None) -> dict[str, Tensor]:
        """Energies and gradients at each state, and the lengths of the updates between them."""
        last = len(states) - 1
        found = [self._block(min(t, last - 1)).energies(x, mask) for t, x in enumerate(states)]
        attention, feed_forward, gradient = (torch.stack(parts, 1) for parts in zip(*found, strict=True))
        moves = [(new - old).norm(dim=-1) for old, new in zip(states, states[1:], strict=False)]
        return dict(
            attention_energy=attention,
            feed_forward_energy=feed_forward,
            gradient_norm=gradient,
            update_norm=torch.stack(moves, 1),
        )

    def _block(self, step: int) -> nn.Module:
        return self.blocks[0 if self.config.share_blocks else step]

    def _check(self, num_steps: int | None, stop_tol: float | None, output_energies: bool) -> int:
        """The number of steps, if the arguments fit this model."""
        steps = self.config.num_hidden_layers if num_steps is None else num_steps
        most = None if self.config.share_blocks else self.config.num_hidden_layers
        if steps < 1 or (most is not None and steps > most):
            raise ValueError(f"num_steps: expected 1{f' to {most}' if most else ' or more'}, got {steps}")
        if self.config.block != "energy" and (output_energies or stop_tol is not None):
            raise ValueError(
                f"output_energies, stop_tol: expected only with energy blocks, these are {self.config.block}"
            )
        if stop_tol is not None and not (stop_tol > 0 and self.config.share_blocks):
            raise ValueError(f"stop_tol: expected a positive number and shared blocks, got {stop_tol}")
        return steps

    def _prepare(self, cache: DynamicCache, steps: int) -> int:
        """Make room for the keys of every step; returns how many tokens the cache holds."""
        past = cache.get_seq_length()
        while len(cache.layers) < steps:
            cache.layers.append(DynamicLayer())
        if cache.get_seq_length(steps - 1) != past:
            raise ValueError(f"cache: expected one that was filled with {steps} steps, as num_steps says now")
        return past

    def _positions(self, x: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past: int) -> Tensor:
        length, context = x.shape[1], self.config.max_position_embeddings
        if past + length > context and position_ids is None and attention_mask is None:
            raise ValueError(
                f"input_ids: expected at most {context} tokens (max_position_embeddings), got {past + length}"
            )
        if position_ids is None and attention_mask is None:
            return self.embed_positions.weight[past : past + length]
        if position_ids is None:
            position_ids = (attention_mask.cumsum(1) - 1).clamp_min(0)[:, -length:]
        if not torch.compiler.is_compiling() and position_ids.max() >= context:
            raise ValueError(
                f"position_ids: expected less than {context} (max_position_embeddings), got {int(position_ids.max())}; "
                "generate(..., sliding=True) restarts them at every token"
            )
        return self.embed_positions(position_ids)

    def _mask(self, attention_mask: Tensor | None, x: Tensor, past: int) -> Tensor | None:
        """(batch, 1, length, past + length) where there is padding, else None."""
        if attention_mask is None or (not torch.compiler.is_compiling() and attention_mask.all()):
            return None
        length = x.shape[1]
        strict = self.config.block == "energy" and self.config.mask == "strict"
        seen = causal_mask(length, past + length, strict, x.device) & attention_mask[:, None, None].bool()
        if not strict:  # a token of padding sees itself, so that no row is empty
            seen = seen | torch.eye(past + length, dtype=torch.bool, device=x.device)[-length:]
        return seen


class NRGPTForCausalLM(NRGPTPreTrainedModel, GenerationMixin):
    """NRGPT with its linear head, or one of the GPTs: see `NRGPTConfig`."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: NRGPTConfig) -> None:
        super().__init__(config)
        self.model = NRGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.lm_head = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        num_steps: int | None = None,
        stop_tol: float | None = None,
        output_energies: bool = False,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs,
    ) -> NRGPTOutput:
        """Logits, and the loss where there are labels.

        Args:
            labels: (batch, length), the input ids themselves: they are shifted here; -100 is ignored.
            logits_to_keep: how many of the last positions to give logits for (0: all), or which.
            (the others): see `NRGPTModel.forward`.
        """
        outputs = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            num_steps=num_steps,
            stop_tol=stop_tol,
            output_energies=output_energies,
            output_hidden_states=output_hidden_states,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        outputs.logits = self.lm_head(outputs.last_hidden_state[:, kept])
        if labels is not None:
            outputs.loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return outputs

    def prepare_inputs_for_generation(self, input_ids: Tensor, sliding: bool = False, **kwargs) -> dict:
        """`generate(..., sliding=True)` recomputes the last `max_position_embeddings` tokens for each new one.

        So does the official code. Positions restart in each window, so that no cache of an earlier one would be exact.
        """
        if not sliding:
            return super().prepare_inputs_for_generation(input_ids, **kwargs)
        context = self.config.max_position_embeddings
        kwargs |= dict(next_sequence_length=None, cache=None, use_cache=False)
        if kwargs.get("attention_mask") is not None:
            kwargs["attention_mask"] = kwargs["attention_mask"][:, -context:]
        kwargs.pop("position_ids", None)
        return super().prepare_inputs_for_generation(input_ids[:, -context:], **kwargs)


AutoConfig.register("nrgpt", NRGPTConfig, exist_ok=True)
AutoModel.register(NRGPTConfig, NRGPTModel, exist_ok=True)
AutoModelForCausalLM.register(NRGPTConfig, NRGPTForCausalLM, exist_ok=True)
NRGPTConfig.register_for_auto_class()
NRGPTModel.register_for_auto_class("AutoModel")
NRGPTForCausalLM.register_for_auto_class("AutoModelForCausalLM")
