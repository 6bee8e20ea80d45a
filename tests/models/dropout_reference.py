#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records where models of transformers apply dropout in a training step, for dropout_test.cpp.

  python3 -m venv v && v/bin/pip install torch==2.11.0 transformers==5.24.0
  v/bin/python tests/models/dropout_reference.py > tests/models/dropout_places.json

Each probability of a configuration has a value of its own, so that it identifies its key. A place is the probability and the kind of
tensor: "attention" for [B, H, T, S], "ffn" for the hidden layer of an FFN, "stream" for another one.
"""
import json

import torch
import transformers


VOCAB, HIDDEN, HEADS, LAYERS, FFN, TOKENS = 64, 32, 4, 2, 96, 8

DECODER = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "intermediate_size": FFN,
           "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
GROUPED = {**DECODER, "num_key_value_heads": 2, "head_dim": 8, "attention_dropout": 0.11}
ENCODER = {**DECODER, "hidden_dropout_prob": 0.12, "attention_probs_dropout_prob": 0.11}
NO_EOS = {key: value for key, value in ENCODER.items() if key not in ("bos_token_id", "eos_token_id")}
MODELS = {
    "GPT2LMHeadModel": {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "n_inner": FFN, "n_positions": 32,
                        "attn_pdrop": 0.11, "embd_pdrop": 0.12, "resid_pdrop": 0.13},
    "GPTNeoXForCausalLM": {**DECODER, "attention_dropout": 0.11, "hidden_dropout": 0.12, "use_parallel_residual": True},
    "OPTForCausalLM": {**DECODER, "ffn_dim": FFN, "word_embed_proj_dim": HIDDEN, "attention_dropout": 0.11, "dropout": 0.12},
    "BloomForCausalLM": {"vocab_size": VOCAB, "hidden_size": HIDDEN, "n_head": HEADS, "n_layer": LAYERS, "attention_dropout": 0.11,
                         "hidden_dropout": 0.12},
    # transformers documents embd_pdrop and does not apply it.
    "Phi3ForCausalLM": {**GROUPED, "resid_pdrop": 0.13, "embd_pdrop": 0.12},
    "LlamaForCausalLM": GROUPED, "MistralForCausalLM": GROUPED, "Qwen2ForCausalLM": GROUPED, "Qwen3ForCausalLM": GROUPED,
    "GemmaForCausalLM": GROUPED,
    "Gemma2ForCausalLM": {**GROUPED, "query_pre_attn_scalar": 8}, "Gemma3ForCausalLM": {**GROUPED, "query_pre_attn_scalar": 8},
    "Olmo2ForCausalLM": GROUPED, "SmolLM3ForCausalLM": GROUPED, "GlmForCausalLM": GROUPED, "Glm4ForCausalLM": GROUPED,
    "BertForMaskedLM": NO_EOS, "BertForSequenceClassification": {**NO_EOS, "classifier_dropout": 0.14},
    "BertForTokenClassification": {**NO_EOS, "classifier_dropout": 0.14},
    "MegatronBertForMaskedLM": NO_EOS, "MegatronBertForSequenceClassification": NO_EOS,
    "RobertaForMaskedLM": ENCODER, "RobertaForSequenceClassification": {**ENCODER, "classifier_dropout": 0.14},
    "RobertaForTokenClassification": {**ENCODER, "classifier_dropout": 0.14},
    "XLMRobertaForMaskedLM": ENCODER,
    "DistilBertForMaskedLM": {"vocab_size": VOCAB, "dim": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "hidden_dim": FFN,
                              "max_position_embeddings": 32, "dropout": 0.12, "attention_dropout": 0.11},
    "ModernBertForMaskedLM": {**DECODER, "cls_token_id": 1, "sep_token_id": 2, "attention_dropout": 0.11, "embedding_dropout": 0.12,
                              "mlp_dropout": 0.13, "classifier_dropout": 0.14},
    "ViTForImageClassification": {"hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS,
                                  "intermediate_size": FFN, "image_size": 8, "patch_size": 4, "num_labels": 2,
                                  "hidden_dropout_prob": 0.12, "attention_probs_dropout_prob": 0.11},
    "T5ForConditionalGeneration": {"vocab_size": VOCAB, "d_model": HIDDEN, "d_kv": 8, "num_heads": HEADS, "num_layers": LAYERS,
                                   "num_decoder_layers": LAYERS, "d_ff": FFN, "dropout_rate": 0.12, "decoder_start_token_id": 0},
}
MODELS["LlamaForTokenClassification"] = {**GROUPED, "classifier_dropout": 0.14}
MODELS["GPTNeoXForTokenClassification"] = {**MODELS["GPTNeoXForCausalLM"], "classifier_dropout": 0.14}
MODELS["GPT2ForTokenClassification"] = {**MODELS["GPT2LMHeadModel"], "classifier_dropout": 0.14}
# Without classifier_dropout the probability is hidden_dropout, or 0.1 in a family that has no such key.
MODELS["BloomForTokenClassification"] = MODELS["BloomForCausalLM"]
MODELS["Qwen2ForTokenClassification"] = GROUPED
MODELS["DistilBertForSequenceClassification"] = {**MODELS["DistilBertForMaskedLM"], "seq_classif_dropout": 0.14}
MODELS["ModernBertForSequenceClassification"] = MODELS["ModernBertForMaskedLM"]
MODELS["MT5ForConditionalGeneration"] = {**MODELS["T5ForConditionalGeneration"], "feed_forward_proj": "gated-gelu"}


def kind_of(tensor, hidden_ffn):
    if tensor.dim() == 4:
        return "attention"
    return "ffn" if tensor.shape[-1] == hidden_ffn else "stream"


def places_of(name, values):
    kind = getattr(transformers, name)
    config = kind.config_class(**values, architectures=[name])
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = kind(config).train()
    places, plain = [], torch.nn.functional.dropout

    def recorded(tensor, p=0.5, training=True, inplace=False):
        if training and p > 0:
            places.append([kind_of(tensor, FFN), p])
        return plain(tensor, p, training, inplace)

    torch.nn.functional.dropout = recorded
    try:
        ids = torch.randint(3, VOCAB, (2, TOKENS))
        if "ViT" in name:
            model(pixel_values=torch.randn(2, 3, 8, 8))
        elif config.is_encoder_decoder:
            model(input_ids=ids, decoder_input_ids=ids, use_cache=False)
        else:
            model(input_ids=ids)
    finally:
        torch.nn.functional.dropout = plain
    return {"config": json.loads(config.to_json_string()), "places": places}


def main():
    out = {name: places_of(name, values) for name, values in MODELS.items()}
    print("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in out.items()) + "\n}")


if __name__ == "__main__":
    main()
