// SPDX-License-Identifier: Apache-2.0
// Every family in every way that a model is spread: data parallelism, ZeRO, tensor parallelism (1d,
// its sequence parallelism, and a grid), context parallelism, pipelines, recomputation, bf16 and
// fp16 with fp32 master weights, and rows of several documents that do not see each other. Each
// cell equals one rank, to the bit or up to rounding, or the plan refuses it.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "equivalence/covering.h"
#include "equivalence/within_rounding.h"
#include "support/source_dir.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/json.h"
#include "tessera/engine/verify.h"
#include "tessera/models/family.h"

namespace tessera::test {

/// A tiny model of a family, and the layouts that the plan refuses for it.
struct FamilyRow {
  std::string name;  ///< name of the row: the family, or a model that `compose` makes
  std::string family;
  std::string model = "{}";  ///< keys of the section `model` in addition to those of every row
  std::string task = "pretrain";
  std::set<std::string> refused = {};  ///< a subset of "grid", "sequence", "context", "ulysses"
  /// The blocks are those of other rows, and so the row is only in the exhaustive test.
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
  static const std::vector<FamilyRow> rows = {
      {.name = "gpt2", .family = "gpt2", .model = dropout},
      {.name = "llama", .family = "llama", .model = shared},
      {.name = "mistral", .family = "mistral", .model = windowed},
      {.name = "qwen2", .family = "qwen2", .model = shared},
      {.name = "qwen3", .family = "qwen3", .model = shared},
      {.name = "phi3", .family = "phi3", .model = shared},
      {.name = "gemma", .family = "gemma", .model = shared},
      {.name = "gemma2", .family = "gemma2", .model = windowed},
      {.name = "gemma3_text", .family = "gemma3_text", .model = windowed},
      {.name = "olmo2", .family = "olmo2", .model = plain},
      {.name = "smollm3", .family = "smollm3", .model = shared},
      {.name = "glm", .family = "glm", .model = shared},
      {.name = "glm4", .family = "glm4", .model = shared},
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
                    "feed_forward": "gated", "bias": false, "lm_bias": true})"},
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
  const auto path = test::source_dir() / "tests/data/reference_pillow.json";
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

/// A row in a layout.
struct FamilyCell {
  /// Row, tensor, context, pipeline, data ranks, ZeRO, recompute, numbers or packed rows.
  static constexpr std::size_t kDimensions = 8;
  static constexpr std::array kTensor = {"none", "1d", "1d of 4", "sequence", "2d"};
  static constexpr std::array kContext = {"none", "ring", "ulysses"};
  static constexpr std::array kPipelines = {
      "", R"({"size": 2})", R"({"size": 2, "schedule": "interleaved", "chunks": 2})"};
  static constexpr std::array kRecompute = {"none", "full", "selective"};
  static constexpr std::array kKinds = {"fp32", "bf16", "fp16", "packed"};
  static constexpr int kMostRanks = 8;
  /// Micro-batches of a global batch, however many ranks share them.
  static constexpr std::int64_t kMicros = 4;

  /// The index of the value in each dimension.
  std::array<std::size_t, kDimensions> index{};
  /// An adapter of all linear layers is trained instead of the layers.
  bool adapted = false;

  [[nodiscard]] const FamilyRow& row() const { return family_rows()[index[0]]; }
  [[nodiscard]] std::string tensor() const { return kTensor[index[1]]; }
  [[nodiscard]] std::string context() const { return kContext[index[2]]; }
  [[nodiscard]] std::string pipeline() const { return kPipelines[index[3]]; }
  [[nodiscard]] int data() const { return 1 << index[4]; }
  [[nodiscard]] int zero() const { return static_cast<int>(index[5]); }
  [[nodiscard]] std::string recompute() const { return kRecompute[index[6]]; }
  [[nodiscard]] std::string kind() const { return kKinds[index[7]]; }
  [[nodiscard]] bool narrow() const { return kind() == "bf16" || kind() == "fp16"; }
  [[nodiscard]] int tensor_ranks() const {
    return tensor() == "none" ? 1 : tensor() == "2d" || tensor() == "1d of 4" ? 4 : 2;
  }
  [[nodiscard]] int context_ranks() const { return context() == "none" ? 1 : 2; }
  [[nodiscard]] int ranks() const {
    return tensor_ranks() * context_ranks() * (pipeline().empty() ? 1 : 2) * data();
  }
  [[nodiscard]] bool makes_sense() const {
    return ranks() > 1 && ranks() <= kMostRanks &&
           // Rows that are texts of their own are not packed.
           !(kind() == "packed" && !row().packs()) &&
           // A grid cuts samples and channels, not tokens.
           !(tensor() == "2d" && context() != "none") &&
           // Every rank needs at least one head of its own.
           !(tensor() == "1d of 4" && context() == "ulysses") &&
           // Interleaving takes micro-batches in rounds of as many as there are stages.
           !(index[3] == 2 && data() == 4);
  }
  /// The features of the cell that the plan refuses.
  [[nodiscard]] std::vector<std::string> refused() const {
    std::vector<std::string> out;
    const auto add = [&](const std::string& what) {
      if (row().refused.contains(what)) out.push_back(what);
    };
    if (tensor() == "2d") add("grid");
    if (tensor() == "sequence") add("sequence");
    if (context() != "none") add("context");
    if (context() == "ulysses") add("ulysses");
    return out;
  }
  /// Sums are split differently only where ranks share a layer or the tokens of a sample.
  [[nodiscard]] bool same_bits() const { return tensor_ranks() == 1 && context_ranks() == 1; }
  [[nodiscard]] Layout layout() const {
    return {.ranks = ranks(),
            .accumulation = kMicros / data(),
            .micro_batch = 2,
            .stage = zero(),
            .pipeline = pipeline(),
            .tensor = tensor_ranks(),
            .sequence = tensor() == "sequence",
            .mode = tensor() == "2d" ? "2d" : "1d",
            .context = context_ranks(),
            .context_mode = context() == "none" ? "ring" : context()};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format(
        "{}: tensor {}, context {}, pipeline {}, {} data ranks, ZeRO {}, recompute "
        "{}, {}{}",
        row().name,
        tensor(),
        context(),
        pipeline().empty() ? "none" : pipeline(),
        data(),
        zero(),
        recompute(),
        kind(),
        adapted ? ", with an adapter" : "");
  }
  [[nodiscard]] TinyRun reference_run() const {
    TinyRun run = run_of(row());
    if (adapted) {
      run.set("adapter", R"({"type": "lora", "r": 2, "alpha": 8, "targets": "all-linear"})");
    }
    if (kind() == "packed") run.use_separate_documents();
    if (kind() == "bf16") run.set("bf16.enabled", "true");
    if (kind() == "fp16") run.set("fp16", R"({"enabled": true, "loss_scale": 256})");
    return run;
  }
  [[nodiscard]] TinyRun run() const {
    TinyRun run = reference_run();
    if (recompute() != "none")
      run.set("activation_checkpointing.granularity", '"' + recompute() + '"');
    return run;
  }
};

inline std::vector<FamilyCell> all_family_cells() {
  const std::array<std::size_t, FamilyCell::kDimensions> sizes = {family_rows().size(),
                                                                  FamilyCell::kTensor.size(),
                                                                  FamilyCell::kContext.size(),
                                                                  FamilyCell::kPipelines.size(),
                                                                  3,
                                                                  4,
                                                                  FamilyCell::kRecompute.size(),
                                                                  FamilyCell::kKinds.size()};
  std::vector<FamilyCell> out;
  FamilyCell next;
  while (true) {
    if (next.makes_sense()) out.push_back(next);
    std::size_t d = 0;
    while (d < sizes.size() && ++next.index[d] == sizes[d])
      next.index[d++] = 0;
    if (d == sizes.size()) return out;
  }
}

/// Cells that contain every pair of a family with a value of another dimension, and every pair of
/// these values: pairs that can be trained in a cell that trains.
inline std::vector<FamilyCell> family_selection() {
  std::array<std::vector<FamilyCell>, 2> kinds;
  for (const FamilyCell& cell : all_family_cells()) {
    if (!cell.row().repeats) kinds[cell.refused().empty() ? 0U : 1U].push_back(cell);
  }
  std::vector<FamilyCell> out = covering(kinds[0]);
  std::set<std::pair<std::size_t, std::vector<std::string>>> refused;
  for (const FamilyCell& cell : kinds[1]) {
    if (refused.insert({cell.index[0], cell.refused()}).second) out.push_back(cell);
  }
  // Sorted by row, so that reference runs are made once and then released.
  std::ranges::sort(out, {}, &FamilyCell::index);
  return out;
}

/// Trains the cells of one row, and once each run that they are compared with.
class FamilyCells {
 public:
  /// Returns what is not as promised; empty if all is.
  std::string train(const FamilyCell& cell) {
    const std::vector<std::string> refused = cell.refused();
    try {
      (void)cell.run().plan(cell.layout());
    } catch (const Error& error) {
      if (refused.empty()) return fmt::format("is refused: {}", error.what());
      return exit_code(error.kind()) == exit_code(Error::Kind::Config)
                 ? ""
                 : fmt::format("is refused as another thing: {}", error.what());
    }
    if (!refused.empty()) return "was not refused";
    return cell.same_bits() ? compare_bits(cell) : compare_rounding(cell);
  }

 private:
  static constexpr std::int64_t kSteps = 4;
  struct Reference {
    Trace trace;
    // Only for cells that are compared up to rounding.
    Gradient gradient;
    Gradient wide;  ///< for cells in 16 bits: the gradient in fp32
  };

  static Gradient gradient_of(TinyRun run, const Layout& layout) {
    run.set("gradient_clipping", "0");  // gradients are read from moments
    return run.first_gradient(layout);
  }
  const Reference& reference_of(const FamilyCell& cell) {
    const std::pair key(cell.index[0], cell.kind());
    if (!references_.empty() && references_.begin()->first.first != cell.index[0])
      references_.clear();
    Reference& out = references_[key];
    const TinyRun run = cell.reference_run();
    const Layout one{.ranks = 1, .accumulation = FamilyCell::kMicros, .stage = 0};
    if (out.trace.losses.empty()) out.trace = run.train(one, kSteps);
    if (!cell.same_bits() && out.gradient.empty()) {
      out.gradient = gradient_of(run, one);
      if (cell.narrow()) out.wide = gradient_of(run_of(cell.row()), one);
    }
    return out;
  }
  std::string compare_bits(const FamilyCell& cell) {
    const Trace& one = reference_of(cell).trace;
    const Trace other = cell.run().train(cell.layout(), kSteps);
    if (one.losses.size() != static_cast<std::size_t>(kSteps)) return "did not train";
    if (one.losses != other.losses || one.grad_norms != other.grad_norms)
      return "losses or norms differ";
    if (one.eval_losses != other.eval_losses) return "the evaluation differs";
    return one.digest == other.digest ? "" : "weights or moments differ";
  }
  std::string compare_rounding(const FamilyCell& cell) {
    const double loss_bound = cell.narrow() ? kNarrowLoss : kLoss;
    const Reference& one = reference_of(cell);
    const Gradient gradient = gradient_of(cell.run(), cell.layout());
    const Trace spread = cell.run().train(cell.layout(), kSteps);
    double whole = 0;
    for (const auto& [name, values] : one.gradient)
      whole += norm(values) * norm(values);
    if (whole == 0 || gradient.size() != one.gradient.size() ||
        spread.losses.size() != one.trace.losses.size())
      return "did not train";
    const double floor = 1e-3 * std::sqrt(whole);
    for (std::size_t t = 0; t < gradient.size(); ++t) {
      if (gradient[t].first != one.gradient[t].first) return "other tensors";
      const double off = engine::deviation_of(one.gradient[t].second, gradient[t].second, floor);
      // With 32 channels rounding averages out little: two results differ by what bf16 changes in
      // each, and layouts that share layers and tokens also round partial sums.
      const double bound =
          cell.narrow() ? std::max(kNarrowGradient,
                                   3 * engine::deviation_of(
                                           one.wide[t].second, one.gradient[t].second, floor))
                        : 2 * kGradient;
      if (!(off <= bound))
        return fmt::format("the gradient of {} is off by {:.1e}", gradient[t].first, off);
    }
    for (std::size_t s = 0; s < spread.losses.size(); ++s) {
      const double loss = one.trace.losses[s];
      if (!(std::abs(spread.losses[s] - loss) <= loss_bound * loss))
        return fmt::format("loss {} instead of {} in step {}", spread.losses[s], loss, s);
    }
    return "";
  }

  std::map<std::pair<std::size_t, std::string>, Reference> references_;  // of one row
};

inline void expect_family_cells(const std::vector<FamilyCell>& cells) {
  FamilyCells trained;
  for (const FamilyCell& cell : cells)
    EXPECT_EQ(trained.train(cell), "") << cell.text();
}

}  // namespace tessera::test
