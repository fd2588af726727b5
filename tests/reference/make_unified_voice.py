"""Write `indextts2/unified_voice.safetensors` with the published code of IndexTTS2, at a small size.

It is indextts2-inference 2.1.1 (the code of index-tts/index-tts); run this in its environment:

    make reference && .reference/bin/python tests/reference/make_unified_voice.py

The model is filled from a seed by `scripts.dev.random_weights`, so that only inputs and outputs are stored. The
published loop decodes greedily by `inference_speech`. Aligned decoding, where code k has position k, is computed from
whole rows without a cache.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from indextts.gpt.model_v2 import UnifiedVoice
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.dev.random_weights import fill, tensor

SEED, FAVOURED = 12, 0.8  # a bias that lets code 1 win, which the penalty counts from the first step
TEXT_ROWS, CODES, START, STOP, WIDTH = 41, 70, 68, 69, 128
TARGET = Path(__file__).parent / "indextts2" / "unified_voice.safetensors"


def empty() -> UnifiedVoice:
    """The package's model at a small size."""
    stack = {"output_size": 16, "linear_units": 24, "attention_heads": 2, "num_blocks": 2, "input_layer": "conv2d2",
             "perceiver_mult": 1}
    return UnifiedVoice(
        layers=2, model_dim=WIDTH, heads=2, max_text_tokens=30, max_mel_tokens=60, number_text_tokens=TEXT_ROWS - 1,
        number_mel_codes=CODES, start_mel_token=START, stop_mel_token=STOP, condition_num_latent=4, checkpointing=False,
        condition_type="conformer_perceiver", condition_module=stack, emo_condition_module=stack | {"num_blocks": 1},
    )


@torch.inference_mode()
def main() -> None:
    model = empty().eval()
    fixed = [name for name in model.state_dict() if name.endswith(".pe")]
    fill(model, SEED, skip=tuple(fixed))
    model.mel_head.bias[1] += FAVOURED
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.post_init_gpt2_config(kv_cache=True)

    prompt, emotion = (torch.from_numpy(tensor(name, (1, frames, 1024), SEED))
                       for name, frames in (("prompt", 27), ("emotion", 20)))
    lengths = torch.tensor([1024])  # as the package passes it: the width
    latents = model.get_conditioning(prompt.transpose(1, 2), lengths)
    vector, own = model.get_emovec(emotion, lengths), model.get_emovec(prompt, lengths)
    mixed = model.merge_emovec(prompt, emotion, lengths, lengths, alpha=0.6)

    ids = torch.arange(12)[None] * 7 % 38 + 2
    codes = torch.arange(9)[None] * 5 % 60 + 3
    conditioning = torch.cat([latents + mixed[:, None], model.speed_emb.weight[[1, 0]][None]], 1)
    text = F.pad(F.pad(ids, (1, 0), value=0), (0, 1), value=1)
    text_rows = model.text_embedding(text) + model.text_pos_embedding(text)

    def logits(speech: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = model.mel_embedding(speech) + model.mel_pos_embedding(speech)
        text_logits, speech_logits = model.get_logits(conditioning, text_rows, model.text_head, rows, model.mel_head)
        return text_logits.transpose(1, 2), speech_logits.transpose(1, 2)

    speech = F.pad(codes, (1, 0), value=START)
    text_logits, speech_logits = logits(speech)
    states = model(latents, ids, torch.tensor([12]), codes, torch.tensor([9]), emotion, emo_vec=mixed,
                   use_speed=torch.zeros(1, dtype=torch.long))
    outputs = {
        "latents": latents, "emotion_vector": vector, "emotion_vector_of_prompt": own, "emotion_vector_mixed": mixed,
        "conditioning": conditioning, "text_ids": text, "codes": codes, "text_logits": text_logits,
        "speech_logits": speech_logits, "states": states,
        "text_loss": F.cross_entropy(text_logits[0, :-1], text[0, 1:], reduction="sum")[None],
        "speech_loss": F.cross_entropy(speech_logits[0], F.pad(codes[0], (0, 1), value=STOP), reduction="sum")[None],
    }
    for name, penalty in (("", 1.0), ("_penalty_10", 10.0)):
        outputs["published" + name], _ = model.inference_speech(
            prompt, ids, emotion, emo_vec=mixed, do_sample=False, num_beams=1, max_generate_length=40,
            repetition_penalty=penalty)
        row = speech[:, :1]
        for _ in range(40):
            scores = logits(row)[1][:, -1]
            used = torch.zeros_like(scores).scatter(1, row, 1.0).bool()
            penalised = torch.where(scores > 0, scores / penalty, scores * penalty)
            best = torch.where(used, penalised, scores).argmax(-1, keepdim=True)
            row = torch.cat([row, best], 1)
            if best.item() == STOP:
                break
        outputs["aligned" + name] = row[:, 1:]
        print(name, outputs["published" + name].tolist(), row.tolist(), sep="\n")
    TARGET.parent.mkdir(exist_ok=True)
    save_file({name: value.contiguous().clone() for name, value in outputs.items()}, str(TARGET), {"seed": str(SEED)})
    print(len(shapes), TARGET.stat().st_size)


if __name__ == "__main__":
    main()
