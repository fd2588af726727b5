"""IndexTTS2's vocoder: semantic codes and the GPT's hidden states to a waveform, in the timbre of a voice."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from config.errors import UserError
from models.base import VocoderOptions, VocoderStream, Voice
from models.indextts2 import bigvgan
from models.indextts2.bigvgan import BigVGAN
from models.indextts2.s2mel import S2Mel, S2MelPrompt

FRAME_RATE = bigvgan.SAMPLE_RATE / 256  # mel frames a second
FLOW_STEPS, FLOW_PROMPT_S = 25, 15.0  # the published values, unless the options say otherwise
_DIMENSIONS = {"codes": "(U,)", "states": "(T, 1024)", "mel": "(P, 80)", "style": "(192,)"}
"""The shapes of a voice's arrays."""
_AGAIN = "Make the voice again from its recording, with this model."


class IndexTTS2Vocoder:
    """S2Mel and BigVGAN. A sentence is decoded as a whole, so a text is streamed sentence by sentence."""

    sample_rate = bigvgan.SAMPLE_RATE

    def __init__(self, s2mel: S2Mel, vocoder: BigVGAN, embed_codes: Callable[[torch.Tensor], torch.Tensor],
                 prompt: str = "codes") -> None:
        """`embed_codes` is the semantic codec's: codes (1, U) to embeddings (1, U, 1024).

        `prompt` names the array of a voice that S2Mel continues: `codes`, or in 2.5 w2v-bert's `states`.
        """
        self._s2mel, self._bigvgan, self._embed_codes, self._of_clip = s2mel, vocoder, embed_codes, prompt
        self._prepared: tuple[Mapping[str, np.ndarray], S2MelPrompt] | None = None  # prompt of the last voice

    @torch.inference_mode()
    def decode(self, codes: np.ndarray, voice: Voice, options: VocoderOptions | None = None,
               hidden_states: torch.Tensor | None = None) -> torch.Tensor:
        """Waveform (256 F,) of codes (U,) in `voice`, F = int(1.72 U) frames.

        In 2.5 F is int(3.44 U), or the frames of the requested duration. `hidden_states` (U, 1280) are those of the GPT
        that predicted the codes; without them the codes alone speak.
        """
        options = options or VocoderOptions()
        device = self._s2mel.estimator.conv2.weight.device
        prompt = self._prompt(voice.timbre, device).last(
            max(1, round((options.flow_prompt_s or FLOW_PROMPT_S) * FRAME_RATE)))
        if not len(codes):
            return torch.zeros(0)
        if hidden_states is not None and hidden_states.shape != (len(codes), self._s2mel.config.latent[0]):
            raise UserError(f"The hidden states have the shape {tuple(hidden_states.shape)}; "
                            f"{(len(codes), self._s2mel.config.latent[0])} is wanted.",
                            "Synthesize the codes with the model that belongs to the vocoder.")

        # The flow makes mel from codes and hidden states, and the vocoder sound from mel.
        embedded = self._embed_codes(torch.as_tensor(codes, dtype=torch.long, device=device)[None])
        latents = None if hidden_states is None else hidden_states.to(device, torch.float32)[None]
        frames = round(options.duration_s * FRAME_RATE) if self._of_clip == "states" else 0
        content = self._s2mel.content(embedded, latents, frames or None)
        mel = self._s2mel.mel(content, prompt, steps=options.flow_steps or FLOW_STEPS,
                              generator=torch.Generator().manual_seed(options.seed))
        return self._bigvgan.waveform(mel)[0].cpu()

    def stream(self, voice: Voice, options: VocoderOptions | None = None) -> VocoderStream | None:
        """None: see the class."""
        return None

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert S2Mel's estimator alone; regulator and waveform stay float32."""
        self._s2mel.estimator.cast_(dtype)

    def free_buffers(self) -> None:
        """See `models.base.Vocoder`."""
        self._s2mel.graphs.clear()

    def _prompt(self, timbre: Mapping[str, np.ndarray], device: torch.device) -> S2MelPrompt:
        """The whole clip of a voice: codes or states, mel and style, stored until another voice comes."""
        if self._prepared is None or self._prepared[0] is not timbre:
            names = (self._of_clip, "mel", "style")
            wrong = [name for name in names if name not in timbre or not timbre[name].size
                     or timbre[name].ndim != 1 + (name in ("states", "mel"))]
            if wrong:
                shapes = ", ".join(f"{name} {value.shape}" for name, value in timbre.items()) or "nothing"
                first_expected, *later_expected = (f"{name} {_DIMENSIONS[name]}" for name in names)
                expected = f"{first_expected}, {' and '.join(later_expected)}"
                raise UserError(f"The voice's arrays are {shapes}; {expected} are wanted.", _AGAIN)
            content, mel, style = (torch.from_numpy(timbre[name])[None].to(device) for name in names)
            embedded = self._embed_codes(content.long()) if self._of_clip == "codes" else content.float()
            self._prepared = timbre, self._s2mel.prompt(embedded, mel.float(), style.float())
        return self._prepared[1]
