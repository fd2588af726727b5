"""Logits and ids of an export of IndexTTS 2.5 by the published package.

For `tests/unit/models/indextts2/test_model_folder_indextts25.py`:

    .reference/bin/python tests/reference/indextts25_logits.py EXPORT CONFIG LANGUAGE INPUTS.safetensors \
        OUTPUTS.safetensors

The export's own script tells the package of the new languages; the package loads the GPT by the export's settings.
"""

import sys
from pathlib import Path

import torch
from indextts25.gpt.model_v2 import UnifiedVoice
from indextts25.utils.checkpoint import load_checkpoint
from indextts25.utils.tokenizer import lang_to_token
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

folder, config, language, inputs, outputs = sys.argv[1:]
sys.path.insert(0, folder)
import load_with_indextts25 as script  # noqa: E402

encoding = script.teach(language)("multilingual_zh_ja_yue_char_del", model_dir=folder)
settings = OmegaConf.load(Path(folder) / config)
model = UnifiedVoice(**settings.gpt)
load_checkpoint(model, str(Path(folder) / settings.gpt_checkpoint))
model.eval()
given = load_file(inputs)
text = bytes(given["text"].tolist()).decode()
ids = torch.tensor([encoding.encode(f"<|{language}|> {text}", allowed_special="all")])
with torch.inference_mode():
    emotion = model.get_emovec(given["features"], torch.tensor([given["features"].shape[1]]))
    latent = model.spk_emb_proj(given["style"])[:, None] + emotion[:, None]
    conditioning = torch.cat([latent, latent.new_zeros(1, 2, latent.shape[2])], 1)
    _, rows, _ = model.prepare_gpt_inputs(conditioning, ids, torch.tensor([lang_to_token(language)]))
    codes = given["codes"]
    speech = model.mel_embedding(codes) + model.mel_pos_embedding(codes)
    states = model.final_norm(model.gpt(inputs_embeds=torch.cat([rows, speech], 1)).last_hidden_state)
    save_file({"ids": ids, "mel_logits": model.mel_head(states[:, -codes.shape[1]:]).contiguous()}, outputs)
