// SPDX-License-Identifier: Apache-2.0
// A tiny model of each family, and data of each task for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include "support/train_runs.h"
#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::test {

/// A tiny model of a family, and the layouts that the plan refuses for it.
struct FamilyRow {
  std::string name;  ///< name of the row: the family, or a model that `compose` makes
  std::string family;
  std::string model = "{}";  ///< keys of the section `model` in addition to those of every row
  std::string task = "pretrain";
  std::set<std::string> refused = {};  ///< a subset of "grid", "sequence", "context", "ulysses"
  /// The blocks are those of other rows, and so the row is only in the larger selections.
  bool repeats = false;
  /// True if a sample can have several documents that do not see each other.
  [[nodiscard]] bool packs() const {
    return task == "pretrain" || task == "masked_lm" || task == "prefix_lm";
  }
};

/// Keys of the section `model` with which the special features of a family matter in 2 layers and
/// 16 tokens: windows shorter than the text, heads that share keys and values, another bias.
inline const std::vector<FamilyRow>& family_rows() {
  static const std::string windowed =
      R"({"attention_dropout": 0.1, "sliding_window": 5, "num_kv_heads": 2})";
  static const std::string shared = R"({"attention_dropout": 0.1, "num_kv_heads": 2})";
  static const std::string plain = R"({"attention_dropout": 0.1})";
  static const std::string dropout = R"({"dropout": 0.1})";
  static const std::string experts =
      R"({"attention_dropout": 0.1, "num_kv_heads": 2,
          "moe": {"num_experts": 4, "ffn_hidden_size": 12}})";
  static const std::vector<FamilyRow> rows = {
      {.name = "gpt2", .family = "gpt2", .model = dropout},
      {.name = "gpt2_head_norms",
       .family = "gpt2",
       .model = R"({"dropout": 0.1, "qk_norm": true})"},
      {.name = "llama",
       .family = "llama",
       .model = R"({"attention_dropout": 0.1, "num_kv_heads": 2, "rope_scaling": "llama3",
                    "rope_factor": 4, "rope_original_positions": 8})"},
      {.name = "mistral", .family = "mistral", .model = windowed, .repeats = true},
      {.name = "qwen2", .family = "qwen2", .model = shared, .repeats = true},
      {.name = "qwen3", .family = "qwen3", .model = shared},
      {.name = "phi3", .family = "phi3", .model = shared, .repeats = true},
      {.name = "gemma", .family = "gemma", .model = shared},
      {.name = "gemma2", .family = "gemma2", .model = windowed},
      {.name = "gemma3_text", .family = "gemma3_text", .model = windowed},
      {.name = "olmo2", .family = "olmo2", .model = plain},
      {.name = "smollm3", .family = "smollm3", .model = shared, .repeats = true},
      {.name = "glm", .family = "glm", .model = shared, .repeats = true},
      {.name = "glm4", .family = "glm4", .model = shared},
      {.name = "mixtral",
       .family = "mixtral",
       .model = experts,
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "qwen2_moe",
       .family = "qwen2_moe",
       .model = R"({"attention_dropout": 0.1, "moe": {"num_experts": 4, "ffn_hidden_size": 12,
                    "shared_ffn_hidden_size": 20, "every": 2}})",
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "qwen3_moe",
       .family = "qwen3_moe",
       .model = experts,
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "olmoe",
       .family = "olmoe",
       .model = R"({"attention_dropout": 0.1, "qkv_clip": 0.5,
                    "moe": {"num_experts": 4, "ffn_hidden_size": 12}})",
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "deepseek_v2",
       .family = "deepseek_v2",
       .model = R"({"attention_dropout": 0.1, "kv_lora_rank": 12, "qk_nope_head_dim": 6,
                    "qk_rope_head_dim": 4, "v_head_dim": 12,
                    "moe": {"num_experts": 4, "ffn_hidden_size": 12, "first_dense": 1}})",
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "deepseek_v3",
       .family = "deepseek_v3",
       .model = R"({"attention_dropout": 0.1, "q_lora_rank": 14, "kv_lora_rank": 12,
                    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8,
                    "moe": {"num_experts": 4, "ffn_hidden_size": 12, "first_dense": 1}})",
       .refused = {"grid", "sequence"}},
      {.name = "gpt_oss",
       .family = "gpt_oss",
       .model = R"({"attention_dropout": 0.1, "sliding_window": 5, "num_kv_heads": 2,
                    "moe": {"num_experts": 4, "top_k": 2, "ffn_hidden_size": 12}})",
       .refused = {"grid", "sequence", "context"}},
      {.name = "phimoe",
       .family = "phimoe",
       .model = experts,
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "dbrx",
       .family = "dbrx",
       .model = experts,
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "granitemoe",
       .family = "granitemoe",
       .model = R"({"attention_dropout": 0.1, "residual_multiplier": 0.5, "logits_scaling": 2,
                    "moe": {"num_experts": 4, "ffn_hidden_size": 12}})",
       .refused = {"grid", "sequence"},
       .repeats = true},
      {.name = "jetmoe",
       .family = "jetmoe",
       .model = R"({"attention_dropout": 0.1, "num_kv_heads": 2, "num_heads": 4,
                    "moe": {"num_experts": 4, "ffn_hidden_size": 12}})",
       .refused = {"grid", "sequence"}},
      {.name = "llama4_text",
       .family = "llama4_text",
       .model = R"({"attention_dropout": 0.1, "attention_chunk": 5, "no_rope_interval": 2,
                    "temperature_scale": 0.5, "temperature_floor": 3, "num_kv_heads": 2,
                    "moe": {"num_experts": 4, "ffn_hidden_size": 12}})",
       .refused = {"grid", "sequence"}},
      {.name = "opt", .family = "opt", .model = plain},
      {.name = "opt_narrow",
       .family = "opt",
       .model = R"({"attention_dropout": 0.1, "pre_norm": false, "embedding_size": 24})",
       .refused = {"grid"}},
      {.name = "gpt_neox", .family = "gpt_neox", .model = plain},
      {.name = "bloom", .family = "bloom", .model = plain},
      {.name = "gpt2_prefix", .family = "gpt2", .model = dropout, .task = "prefix_lm"},
      {.name = "gpt2_reward", .family = "gpt2", .model = dropout, .task = "reward"},
      {.name = "llama_prefer", .family = "llama", .model = shared, .task = "prefer"},
      {.name = "gpt2_orpo", .family = "gpt2", .model = dropout, .task = "orpo"},
      {.name = "gpt2_kto", .family = "gpt2", .model = dropout, .task = "kto", .repeats = true},
      {.name = "bert", .family = "bert", .model = dropout, .task = "masked_lm"},
      {.name = "megatron_bert", .family = "megatron-bert", .model = dropout, .task = "masked_lm"},
      {.name = "bert_pairs", .family = "bert", .model = dropout, .task = "sentence_pairs"},
      {.name = "roberta", .family = "roberta", .model = dropout, .task = "masked_lm"},
      {.name = "xlm_roberta",
       .family = "xlm-roberta",
       .model = dropout,
       .task = "masked_lm",
       .repeats = true},
      {.name = "distilbert", .family = "distilbert", .model = dropout, .task = "masked_lm"},
      {.name = "modernbert",
       .family = "modernbert",
       .model = R"({"attention_dropout": 0.1, "local_attention": 6})",
       .task = "masked_lm"},
      {.name = "vit",
       .family = "vit",
       .model = R"({"image_size": 8, "patch_size": 4, "dropout": 0.1})",
       .task = "image_classify"},
      {.name = "t5",
       .family = "t5",
       .model = R"({"head_dim": 8, "dropout": 0.1, "position_buckets": 8,
                    "position_max_distance": 12})",
       .task = "seq2seq"},
      {.name = "mt5",
       .family = "mt5",
       .model = R"({"head_dim": 8, "dropout": 0.1, "position_buckets": 8,
                    "position_max_distance": 12})",
       .task = "seq2seq",
       .repeats = true},
      {.name = "switch_transformers",
       .family = "switch_transformers",
       .model = R"({"head_dim": 8, "dropout": 0.1, "position_buckets": 8,
                    "position_max_distance": 12,
                    "moe": {"num_experts": 4, "expert_capacity": 5,
                            "router": {"jitter": 0.1}}})",
       .task = "seq2seq",
       .refused = {"grid", "sequence", "context", "ulysses"}},
      {.name = "cpm1",
       .family = "cpm1",
       .model = R"({"dropout": 0.1, "attention_dropout": 0.1, "position_buckets": 8,
                    "position_max_distance": 12, "length_scale": true})"},
      {.name = "cpm2",
       .family = "cpm2",
       .model = R"({"head_dim": 8, "dropout": 0.1, "position_buckets": 8,
                    "position_max_distance": 12})",
       .task = "seq2seq"},
      {.name = "llama_classify", .family = "llama", .model = shared, .task = "classify"},
      {.name = "bert_classify", .family = "bert", .model = dropout, .task = "classify"},
      {.name = "modernbert_classify",
       .family = "modernbert",
       .model = R"({"attention_dropout": 0.1, "classifier_pooling": "mean",
                    "classifier_dropout": 0.1, "mlp_dropout": 0.1})",
       .task = "classify"},
      {.name = "bert_heads", .family = "bert", .model = dropout, .task = "heads"},
      {.name = "bert_tag", .family = "bert", .model = dropout, .task = "tag"},
      {.name = "roberta_tag",
       .family = "roberta",
       .model = dropout,
       .task = "tag",
       .repeats = true},
      {.name = "compose", .family = "compose", .model = dropout},
      {.name = "compose_rotary",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word"], "position": "rotary", "norm": "rms",
                    "feed_forward": "gated", "bias": false, "lm_bias": true, "qk_norm": true})"},
      {.name = "compose_masked",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word", "pos", "seg"], "mask": "fully_visible",
                    "norm_position": "post", "target": ["mlm"], "position": "relative"})",
       .task = "masked_lm"},
      {.name = "compose_pairs",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word", "pos", "seg"], "mask": "fully_visible",
                    "norm_position": "post", "target": ["mlm", "sp"]})",
       .task = "sentence_pairs"},
      {.name = "compose_prefix",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word", "seg"], "position": "relative",
                    "mask": "causal_with_prefix"})",
       .task = "prefix_lm",
       .refused = {"grid", "sequence", "context"}},
      {.name = "compose_answers",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word"], "mask": "fully_visible", "bias": true,
                    "position": "relative", "decoder": "transformer", "position_buckets": 8,
                    "position_max_distance": 12})",
       .task = "seq2seq"},
      {.name = "compose_answers_by_position",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word", "pos", "seg"], "mask": "fully_visible",
                    "norm_position": "post", "decoder": "transformer", "position_offset": 2,
                    "lm_bias": true})",
       .task = "seq2seq"},
      {.name = "compose_answers_of_megatron",
       .family = "compose",
       .model = R"({"dropout": 0.1, "embedding": ["word", "pos"], "mask": "fully_visible",
                    "embedding_norm": false, "decoder": "transformer", "shared_positions": true,
                    "qk_norm": true, "lm_bias": true})",
       .task = "seq2seq"},
      {.name = "compose_images",
       .family = "compose",
       .model = R"({"image_size": 8, "patch_size": 4, "dropout": 0.1,
                    "embedding": ["patch", "pos"], "mask": "fully_visible", "target": ["cls"],
                    "position": "relative", "position_buckets": 8,
                    "position_max_distance": 12})",
       .task = "image_classify"},
  };
  return rows;
}

/// Images of two classes: the files of the reader's tests, each four times.
inline void write_class_pictures(const std::filesystem::path& folder) {
  const auto path = source_dir() / "tests/data/reference_pillow.json";
  const json::Value reference = json::parse_strict(files::read(path), path.string());
  int number = 0;
  for (int round = 0; round < 4; ++round) {
    for (const json::Value& one : reference.find("files")->items()) {
      const auto to = folder / (number % 3 == 0 ? "one" : "two") / fmt::format("{}.png", number);
      std::filesystem::create_directories(to.parent_path());
      const std::string hex = one.find("file")->as_string();
      std::ofstream file(to, std::ios::binary);
      for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
        file.put(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
      ++number;
    }
  }
}

/// Texts of several lengths and their reverse, as lines {"source", "target"}.
inline void write_reversed_pairs(const std::filesystem::path& path) {
  std::string lines;
  for (int i = 0; i < 48; ++i) {
    std::string text;
    for (int t = 0; t < 4 + 3 * i % 11; ++t)
      text += static_cast<char>('a' + (7 * i + 5 * t * t) % 26);
    const std::string source = text;
    std::ranges::reverse(text);
    lines += R"({"source": ")" + source + R"(", "target": ")" + text + "\"}\n";
  }
  files::write_atomic(path, lines);
}

/// Texts of several lengths whose label is their most frequent letter, as lines {"text", "label"},
/// or {"tokens", "tags"} with a label per word.
inline void write_labelled(const std::filesystem::path& path, bool words) {
  std::string lines;
  for (int i = 0; i < 48; ++i) {
    const int length = 3 + 5 * i % 9;
    std::string text, tokens, tags;
    for (int t = 0; t < length; ++t) {
      const char letter = static_cast<char>('a' + (i + t * t) % 3);
      text += letter;
      tokens += fmt::format(R"({}"{}")", t == 0 ? "" : ", ", letter);
      tags += fmt::format(R"({}"tag {}")", t == 0 ? "" : ", ", letter == 'b' ? 1 : 2);
    }
    lines += words ? fmt::format("{{\"tokens\": [{}], \"tags\": [{}]}}\n", tokens, tags)
                   : fmt::format("{{\"text\": \"{}\", \"label\": \"of {}\"}}\n", text, i % 3);
  }
  files::write_atomic(path, lines);
}

/// Texts with two labels, of which some lack the second, as lines {"text", "letter", "length"}.
inline void write_with_two_labels(const std::filesystem::path& path) {
  std::string lines;
  for (int i = 0; i < 48; ++i) {
    const auto letter = static_cast<char>('a' + i % 3);
    const int length = 3 + 5 * i % 9;
    lines += fmt::format(R"({{"text": "{}", "letter": "{}", "length": {}}})",
                         std::string(static_cast<std::size_t>(length), letter),
                         letter,
                         i % 5 == 0   ? "null"
                         : length > 6 ? "\"long\""
                                      : "\"short\"") +
             "\n";
  }
  files::write_atomic(path, lines);
}

/// Documents of sentences of several lengths, a sentence per line.
inline void write_documents(const std::filesystem::path& path) {
  std::string text;
  for (int d = 0; d < 12; ++d) {
    for (int s = 0; s < 6; ++s) {
      for (int t = 0; t < 2 + (d + 3 * s) % 5; ++t)
        text += static_cast<char>('a' + (2 * d + s + t) % 26);
      text += '\n';
    }
    text += '\n';
  }
  files::write_atomic(path, text);
}

/// Two completions of a prompt, as lines {"prompt", "chosen", "rejected"}, or one that is wanted or
/// not.
inline void write_preferences(const std::filesystem::path& path, bool in_pairs) {
  std::string lines;
  for (int i = 0; i < 48; ++i) {
    const std::string prompt(static_cast<std::size_t>(1 + i % 3), static_cast<char>('a' + i % 7));
    const std::string answer(static_cast<std::size_t>(1 + i % 2), 'y');
    lines +=
        in_pairs
            ? fmt::format(R"({{"prompt": "{}", "chosen": "{}", "rejected": "no"}})", prompt, answer)
            : fmt::format(R"({{"prompt": "{}", "completion": "{}", "label": {}}})",
                          prompt,
                          i % 2 == 0 ? answer : "no",
                          i % 2 == 0);
    lines += '\n';
  }
  files::write_atomic(path, lines);
}

inline TinyRun run_of(const FamilyRow& row) {
  TinyRun run;
  const auto quoted = [](const std::string& text) { return '"' + text + '"'; };
  run.set("model", R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4})")
      .set("model.family", quoted(row.family))
      // With a threshold of 0 every parameter is sharded in stage 3.
      .set("zero_optimization.stage3_param_persistence_threshold", "0");
  if (row.task == "image_classify") {
    write_class_pictures(run.folder() / "pictures");
    run.set("data.train", quoted((run.folder() / "pictures").string()))
        .set("task", quoted(row.task));
  } else if (row.task == "seq2seq") {
    write_reversed_pairs(run.folder() / "pairs.jsonl");
    run.set("data.train", quoted((run.folder() / "pairs.jsonl").string()))
        .set("task", R"({"type": "seq2seq", "params": {"target_length": 16}})");
  } else if (row.task == "classify" || row.task == "tag") {
    write_labelled(run.folder() / "labelled.jsonl", row.task == "tag");
    run.set("data.train", quoted((run.folder() / "labelled.jsonl").string()))
        .set("task", quoted(row.task));
  } else if (row.task == "heads") {
    write_with_two_labels(run.folder() / "labelled.jsonl");
    run.set("data.train", quoted((run.folder() / "labelled.jsonl").string()))
        .set("task",
             R"({"type": "classify", "params": {"heads": {"letter": ["a", "b", "c"],
                 "length": ["long", "short"]}, "head_weights": {"length": 0.5}}})");
  } else if (row.task == "reward" || row.task == "prefer" || row.task == "orpo" ||
             row.task == "kto") {
    write_preferences(run.folder() / "preferences.jsonl", row.task != "kto");
    run.set("data.train", quoted((run.folder() / "preferences.jsonl").string()));
    if (row.task == "reward" || row.task == "prefer")
      run.set("task", quoted(row.task));
    else
      run.set("task",
              fmt::format(R"({{"type": "prefer", "params": {{"method": "{}"}}}})", row.task));
  } else if (row.task == "prefix_lm") {
    run.set("task", quoted(row.task));
  } else if (row.task == "masked_lm") {
    run.set("task", R"({"type": "masked_lm", "params": {"mask_token_id": 7}})");
  } else if (row.task == "sentence_pairs") {
    write_documents(run.folder() / "documents.txt");
    run.set("data.train", quoted((run.folder() / "documents.txt").string()))
        .set("task",
             R"({"type": "masked_lm", "params": {"mask_token_id": 7, "pairs": "nsp",
                 "cls_token_id": 1, "sep_token_id": 2}})");
  }
  if (row.task != "image_classify" && row.task != "seq2seq") run.set("model.max_positions", "16");
  const json::Value keys = json::parse(row.model, row.name);
  for (const auto& [key, value] : keys.members())
    run.set("model." + key, value.dump());
  return run;
}

}  // namespace tessera::test
