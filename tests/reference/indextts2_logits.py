"""Logits of an export of IndexTTS2 by the published package, for `tests/unit/models/indextts2/test_model_folder.py`.

    .reference/bin/python tests/reference/indextts2_logits.py EXPORT CONFIG INPUTS.safetensors OUTPUTS.safetensors

The package loads the GPT strictly, by the export's own settings, and reads the tokenizer.
"""

import sys
from pathlib import Path

import torch
from indextts.gpt.model_v2 import UnifiedVoice
from indextts.utils.checkpoint import load_checkpoint
from indextts.utils.front import TextTokenizer
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

folder, config, inputs, outputs = sys.argv[1:]
settings = OmegaConf.load(Path(folder) / config)
model = UnifiedVoice(**settings.gpt)
load_checkpoint(model, str(Path(folder) / settings.gpt_checkpoint))
model.eval()
tokenizer = TextTokenizer(str(Path(folder) / settings.dataset["bpe_model"]))
given = load_file(inputs)
with torch.inference_mode():
    features = given["features"].transpose(1, 2)
    lengths = torch.tensor([features.shape[2]])
    emotion = model.emo_layer(model.emovec_layer(model.get_emo_conditioning(features, lengths)))
    latents = model.get_conditioning(features, lengths) + emotion[:, None]
    conditioning = torch.cat([latents, model.speed_emb.weight[1][None, None], model.speed_emb.weight[0][None, None]], 1)
    text, codes = given["text_ids"], given["codes"]
    text_logits, mel_logits = model.get_logits(
        conditioning, model.text_embedding(text) + model.text_pos_embedding(text), model.text_head,
        model.mel_embedding(codes) + model.mel_pos_embedding(codes), model.mel_head)
save_file({"text_logits": text_logits.transpose(1, 2).contiguous(),
           "mel_logits": mel_logits.transpose(1, 2).contiguous(),
           "pieces": torch.tensor([tokenizer.vocab_size, *tokenizer.sp_model.encode("ሀለ THE CAT")])}, outputs)
