"""Write `vectors/t3_2layers.safetensors` and `full_size/t3_30layers.safetensors` with the published package.

It is chatterbox-tts 0.1.7 (MIT); run this in its environment:

    make reference && .reference/bin/python tests/reference/make_t3.py

T3 is filled from a seed by `scripts.dev.random_weights`, so that only inputs and outputs are
stored; they are short, to keep the file small. Losses are next-token losses of the logits.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from chatterbox.models.t3 import T3
from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
from chatterbox.models.t3.modules.cond_enc import T3Cond
from chatterbox.models.t3.modules.t3_config import T3Config
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import fill

SEED = 5
TEXT, SPEECH, PROMPT, SPOKEN = 9, 5, 37, 12  # ids in each part


@torch.inference_mode()
def main(layers: int, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    LLAMA_CONFIGS["Llama_520M"]["num_hidden_layers"] = layers
    sizes = T3Config.multilingual()
    model = T3(sizes).eval()
    fill(model, SEED)
    noise = torch.Generator().manual_seed(SEED)

    def ids(most: int, count: int) -> torch.Tensor:
        return torch.randint(1, most, (1, count), generator=noise)

    text = torch.cat([torch.tensor([[255]]), ids(2454, TEXT - 2), torch.tensor([[0]])], 1)
    speech = torch.cat([torch.tensor([[6561]]), ids(6561, SPEECH - 1)], 1)
    voice = T3Cond(F.normalize(torch.randn(1, 256, generator=noise).abs(), dim=-1),
                   cond_prompt_speech_tokens=ids(6561, PROMPT), emotion_adv=torch.full((1, 1, 1), 0.7))
    whole = model(t3_cond=voice, text_tokens=text, text_token_lens=torch.tensor([TEXT]), speech_tokens=speech,
                  speech_token_lens=torch.tensor([SPEECH]), training=True)
    given = {"speaker_emb": voice.speaker_emb, "prompt_speech_tokens": voice.cond_prompt_speech_tokens,
             "emotion_adv": voice.emotion_adv, "text_tokens": text, "speech_tokens": speech}
    conditioning = model.prepare_conditioning(voice)
    sizes.text_tokens_dict_size = 0  # the package takes 2454 as a sign to watch heads that two layers do not have
    spoken = model.inference(t3_cond=voice, text_tokens=torch.cat([text, text]), max_new_tokens=SPOKEN, top_p=1e-6,
                             temperature=0.8, min_p=0.05, repetition_penalty=1.2, cfg_weight=0.5)
    save_file({name: value.contiguous().clone() for name, value in {
        **given, "cond_emb": conditioning, "text_logits": whole.text_logits, "speech_logits": whole.speech_logits,
        "text_loss": F.cross_entropy(whole.text_logits[0, :-1], text[0, 1:])[None],
        "speech_loss": F.cross_entropy(whole.speech_logits[0, :-1], speech[0, 1:])[None], "greedy_tokens": spoken,
    }.items()}, str(target), {"seed": str(SEED), "layers": str(layers)})


if __name__ == "__main__":
    here = Path(__file__).parent
    main(2, here / "vectors" / "t3_2layers.safetensors")
    main(30, here / "full_size" / "t3_30layers.safetensors")
