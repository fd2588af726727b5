"""Speech codes to mel, by conditional flow matching (Lipman et al. 2023, arXiv:2210.02747).

The codes of a prompt and of the utterance are encoded together; from noise, a few Euler steps on a cosine schedule
follow the estimated velocity to the mel of both, conditioned on the prompt's mel and the speaker. Then the prompt's
frames are cut off. Classifier-free guidance (Ho and Salimans 2022) adds an unconditional row per utterance. Layout and
state-dict keys of `flow.*` in resemble-ai/chatterbox (MIT).

Shapes: B rows, U codes, P codes of the prompt, F = 2 * (P + U) frames at 50 a second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn

from models.chatterbox.flow_encoder import MEL_FRAMES_PER_CODE, FlowEncoder, FlowEncoderConfig
from models.chatterbox.flow_estimator import FlowEstimator, FlowEstimatorConfig
from models.cuda_graph_decode import GraphCache
from models.matmul_backends import Linear

FLOW_STEPS, FLOW_GUIDANCE = 10, 0.7  # the published values
# On CUDA codes are padded to a multiple, because each length needs its own graphs: with a prompt of 10 s, 25 lengths
# reach a minute of speech, and 384 codes on average become a twelfth more. Those used last are kept.
_CODES_UNIT, _KEPT_LENGTHS = 64, 24


@dataclass(frozen=True)
class FlowConfig:
    """Sizes of the flow; the defaults are the published ones."""

    n_codes: int = 6561
    speaker_embedding_size: int = 192
    encoder: FlowEncoderConfig = field(default_factory=FlowEncoderConfig)
    estimator: FlowEstimatorConfig = field(default_factory=FlowEstimatorConfig)


@dataclass(frozen=True)
class FlowPrompt:
    """The reference clip; a single row serves a batch of any size."""

    codes: torch.Tensor  # (B or 1, P) int64
    mel: torch.Tensor  # (B or 1, 2P, n_mels) log-mel of the same clip
    speaker: torch.Tensor  # (B or 1, 192), normalised before use

    def last(self, codes: int) -> FlowPrompt:
        """The last `codes` codes of the prompt: shorter is faster and a little less similar to the speaker."""
        start = max(0, self.codes.shape[1] - codes)
        frames = self.mel.shape[1] // max(1, self.codes.shape[1])
        return FlowPrompt(self.codes[:, start:], self.mel[:, frames * start :], self.speaker)


def start_noise(frames: int, n_mels: int, generator: torch.Generator | None) -> torch.Tensor:
    """Normal noise (1, n_mels, frames), drawn frame by frame: on a CPU the first frames do not depend on `frames`."""
    device = None if generator is None else generator.device
    return torch.randn(frames, n_mels, generator=generator, device=device).t()[None]


def schedule(steps: int, device: torch.device) -> torch.Tensor:
    """Times (steps + 1,) from 0 to 1 on a cosine schedule, dense at the noisy end."""
    return 1 - torch.cos(torch.linspace(0, 1, steps + 1, device=device) * (0.5 * math.pi))


class FlowDecoder(nn.Module):
    """The estimator under its published name."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        self.estimator = FlowEstimator(config)


class Flow(nn.Module):
    """`mel` is the complete computation; `encode` and `estimate` are its two halves."""

    def __init__(self, config: FlowConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or FlowConfig()
        self.input_embedding = nn.Embedding(config.n_codes, config.encoder.width)
        self.spk_embed_affine_layer = nn.Linear(config.speaker_embedding_size, config.estimator.n_mels)
        self.encoder = FlowEncoder(config.encoder)
        self.encoder_proj = Linear(config.encoder.width, config.estimator.n_mels)
        self.decoder = FlowDecoder(config.estimator)
        self.graphs = GraphCache(_KEPT_LENGTHS)

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert the estimator's matrix products to `dtype`; inputs, results and everything else stay float32."""
        self.decoder.estimator.cast_(dtype)

    def encode(self, codes: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Codes (B, L) to encoder states (B, 2L, 512); with `lengths` (B,) in frames, codes after them are padding."""
        return self.encoder(self.input_embedding(codes), lengths)

    def speaker(self, embedding: torch.Tensor) -> torch.Tensor:
        """Speaker embedding (B, 192) to the estimator's input (B, n_mels)."""
        return self.spk_embed_affine_layer(F.normalize(embedding, dim=1))

    def estimate(self, x: torch.Tensor, mu: torch.Tensor, t: torch.Tensor, spk: torch.Tensor,
                 cond: torch.Tensor) -> torch.Tensor:
        """Velocity of x (B, n_mels, F) at times t (B,); mu and cond have the shape of x, spk is (B, n_mels)."""
        inputs = torch.cat([x, mu, spk[..., None].expand_as(x), cond], 1).transpose(1, 2)
        estimator = self.decoder.estimator
        return estimator(inputs, estimator.time_states(t)).transpose(1, 2)

    @torch.inference_mode()
    def mel(self, codes: torch.Tensor, prompt: FlowPrompt, *, steps: int = FLOW_STEPS, guidance: float = FLOW_GUIDANCE,
            noise: torch.Tensor | None = None, generator: torch.Generator | None = None) -> torch.Tensor:
        """Codes (B, U) to log-mel (B, n_mels, 2U).

        The flow starts from `noise` (B, n_mels, F); without it every row starts from the same noise of `generator`,
        so that the mel of a row does not depend on the other rows.
        """
        all_codes = torch.cat([prompt.codes.expand(codes.shape[0], -1), codes], 1)
        if noise is None:
            noise = start_noise(MEL_FRAMES_PER_CODE * all_codes.shape[1], self.config.estimator.n_mels, generator)
        if codes.device.type == "cuda":
            return self._replay(all_codes, prompt, steps, guidance, noise)
        mu = self.encoder_proj(self.encode(all_codes))  # (B, F, n_mels)
        start = noise.to(mu).transpose(1, 2).expand_as(mu)
        mel = self._solve(start, mu, prompt, steps, guidance)
        return mel[:, prompt.mel.shape[1] :].transpose(1, 2)

    def _solve(self, frames: torch.Tensor, mu: torch.Tensor, prompt: FlowPrompt, steps: int,
               guidance: float) -> torch.Tensor:
        """Euler steps from noise (B, F, n_mels) to mel (B, F, n_mels)."""
        inputs = self._inputs(mu, prompt, guided=guidance != 0)
        batch, n_mels = mu.shape[0], mu.shape[2]
        rows = inputs.shape[0] // batch
        times = schedule(steps, mu.device)
        states = self.decoder.estimator.time_states(times[:-1])
        state = states[:1].clone()
        for step, size in enumerate((times[1:] - times[:-1]).unbind()):
            # The conditional and the unconditional row see the same frames.
            inputs.unflatten(0, (rows, batch))[..., :n_mels] = frames
            state.copy_(states[step : step + 1])
            velocity = self.decoder.estimator(inputs, state)
            if rows == 2:
                conditional, unconditional = velocity.chunk(2)
                velocity = (1 + guidance) * conditional - guidance * unconditional
            frames = frames + size * velocity
        return frames

    def _replay(self, codes: torch.Tensor, prompt: FlowPrompt, steps: int, guidance: float,
                noise: torch.Tensor) -> torch.Tensor:
        """`mel` by kept graphs, of the prompt's codes and the utterance's together."""
        if self.graphs.check_weights(self):
            self.decoder.estimator.order_taps_()
            self.graphs.check_weights(self)

        # Lengths are padded to a unit, so that few graphs serve all texts.
        batch, length = codes.shape
        padded = -(-length // _CODES_UNIT) * _CODES_UNIT
        times = self.graphs.get(("times", steps), lambda: self._time_table(steps))
        graphs = self.graphs.get((batch, padded, guidance), lambda: FlowGraphs(self, batch, padded, guidance))
        graphs.start(self, codes, prompt, noise)
        for time in times:
            graphs.step(self, time)

        start, end = prompt.mel.shape[1], MEL_FRAMES_PER_CODE * length
        return graphs.frames[:, start:end].transpose(1, 2).clone()

    def _time_table(self, steps: int) -> torch.Tensor:
        """For each step the estimator's states of its time and, last, its size: (steps, stages * width + 1)."""
        times = schedule(steps, self.encoder_proj.weight.device)
        states = self.decoder.estimator.time_states(times[:-1])
        return torch.cat([states.flatten(1), (times[1:] - times[:-1])[:, None]], 1)

    def _inputs(self, mu: torch.Tensor, prompt: FlowPrompt, guided: bool) -> torch.Tensor:
        """The estimator's inputs (B or 2B, F, 4 * n_mels): noisy frames (zero as yet), mu, speaker, prompt mel.

        With guidance the second half of the rows is unconditional: all zero.
        """
        batch, length, n_mels = mu.shape
        inputs = mu.new_zeros(2 * batch if guided else batch, length, 4 * n_mels)
        _, encoder_mel, speaker, prompt_mel = inputs[:batch].chunk(4, -1)
        encoder_mel.copy_(mu)
        speaker.copy_(self.speaker(prompt.speaker)[:, None].expand(batch, length, -1))
        prompt_mel[:, : prompt.mel.shape[1]] = prompt.mel
        return inputs


class FlowGraphs:
    """`Flow.mel` for one padded number of codes, as two CUDA graphs: what comes before the steps, and a step.

    Padding reaches no frame of an utterance: convolutions are causal but for the encoder's look-ahead, which reads
    zeros there, and the attention does not read it.
    """

    def __init__(self, flow: Flow, batch: int, codes: int, guidance: float) -> None:
        config, device = flow.config.estimator, flow.encoder_proj.weight.device
        self._batch, self._guidance = batch, guidance
        rows, length, stages = 2 * batch if guidance else batch, MEL_FRAMES_PER_CODE * codes, config.mid_blocks + 2
        self.frames = torch.zeros(batch, length, config.n_mels, device=device)
        self._codes = torch.zeros(batch, codes, dtype=torch.long, device=device)
        self._speaker = torch.zeros(batch, flow.config.speaker_embedding_size, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)  # lengths in frames
        self._inputs = torch.zeros(rows, length, 4 * config.n_mels, device=device)  # unconditional rows stay zero
        self._time = torch.zeros(stages * config.width + 1, device=device)  # a row of `Flow._time_table`
        self._encode, self._step = flow.graphs.graph(), flow.graphs.graph()

    def start(self, flow: Flow, codes: torch.Tensor, prompt: FlowPrompt, noise: torch.Tensor) -> None:
        """Prepare the steps for codes (B, L), the prompt's and the utterance's, from noise (B or 1, n_mels, F)."""
        self._codes[:, :codes.shape[1]] = codes
        self._lengths.fill_(MEL_FRAMES_PER_CODE * codes.shape[1])
        self._speaker.copy_(prompt.speaker)
        prompt_mel = self._parts()[3]
        prompt_mel.zero_()
        prompt_mel[:, :prompt.mel.shape[1]] = prompt.mel
        # Noise is drawn in this layout, so that its padding is contiguous and one copy is enough.
        start = noise.transpose(1, 2)
        self.frames.copy_(F.pad(start, (0, 0, 0, self.frames.shape[1] - start.shape[1])))
        self._encode(lambda: self._compute_inputs(flow))

    def step(self, flow: Flow, time: torch.Tensor) -> None:
        """An Euler step of `frames`, by a row of `Flow._time_table`."""
        self._time.copy_(time)
        self._step(lambda: self._compute_step(flow))

    def _parts(self) -> tuple[torch.Tensor, ...]:
        """Noisy frames, encoder's mel, speaker and prompt's mel of the conditional inputs, each (B, F, n_mels)."""
        return self._inputs[:self._batch].chunk(4, -1)

    def _compute_inputs(self, flow: Flow) -> None:
        _, encoder_mel, speaker, _ = self._parts()
        encoder_mel.copy_(flow.encoder_proj(flow.encode(self._codes, self._lengths[:self._batch])))
        speaker.copy_(flow.speaker(self._speaker)[:, None].expand_as(speaker))

    def _compute_step(self, flow: Flow) -> None:
        noisy = self._inputs[..., :self.frames.shape[2]].unflatten(0, (-1, self._batch))
        # The conditional and the unconditional row see the same frames.
        noisy.copy_(self.frames)
        states, size = self._time[:-1].view(1, -1, flow.config.estimator.width), self._time[-1]
        velocity = flow.decoder.estimator(self._inputs, states, self._lengths)
        if self._guidance:
            conditional, unconditional = velocity.chunk(2)
            velocity = torch.lerp(unconditional, conditional, 1 + self._guidance)
        self.frames.addcmul_(velocity, size)
