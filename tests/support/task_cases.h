// SPDX-License-Identifier: Apache-2.0
// Every task with data of its own, and a family of each kind, small enough to train in
// milliseconds.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/source_dir.h"
#include <fmt/format.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/models/family.h"

namespace tessera::test {

/// A task, its section of the configuration, and a line of its data.
struct TaskCase {
  std::string name, options, record;
};
inline const std::vector<TaskCase>& task_cases() {
  static const std::string messages =
      R"({"messages": [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "c"}]})";
  static const std::vector<TaskCase> cases = {
      {"pretrain", "{}", R"({"text": "the cat sat on the mat and ran"})"},
      {"prefix_lm", "{}", R"({"text": "the cat sat on the mat and ran"})"},
      {"masked_lm", R"({"mask_token_id": 1})", R"({"text": "the cat sat on the mat and ran"})"},
      {"span_corruption",
       R"({"sentinel_id": 31})",
       R"({"text": "the cat sat on the mat and ran"})"},
      {"sft", R"({"chat_template": "chatml"})", messages},
      {"prefer", "{}", R"({"prompt": "a", "chosen": "bc", "rejected": "d"})"},
      {"prefer", R"({"method": "kto"})", R"({"prompt": "a", "completion": "bc", "label": true})"},
      {"prefer", R"({"method": "orpo"})", R"({"prompt": "a", "chosen": "bc", "rejected": "d"})"},
      {"reward", "{}", R"({"prompt": "a", "chosen": "bc", "rejected": "d"})"},
      {"rl",
       R"({"algorithm": "grpo", "samples": 2, "max_new_tokens": 2, "parity": "off",
           "rewards": [{"type": "exact_match"}]})",
       R"({"prompt": "a", "answer": "b"})"},
      {"classify", R"({"labels": ["x", "y"]})", R"({"text": "ab", "label": "x"})"},
      {"classify",
       R"({"labels": ["x", "y"], "class_weights": [1, 2], "focal_gamma": 2})",
       R"({"text": "ab", "label": "x"})"},
      {"classify",
       R"({"labels": ["x", "y"], "multi_label": true})",
       R"({"text": "ab", "label": ["x"]})"},
      {"regression", "{}", R"({"text": "ab", "label": 0.5})"},
      {"tag", R"({"labels": ["x", "y"]})", R"({"tokens": ["a", "b"], "tags": ["x", "y"]})"},
      {"seq2seq", R"({"target_length": 8})", R"({"source": "ab", "target": "c"})"},
      {"image_classify", R"({"labels": ["x", "y"]})", R"({"image": "a.png", "label": "x"})"},
      {"word_span_corruption",
       R"({"sentinel_id": 14, "num_sentinels": 8, "noise_density": 0.5})",
       R"({"text": "the cat\nsat on\nthe mat and ran"})"},
  };
  return cases;
}

inline json::Value model_of_family(const std::string& family) {
  json::Value out = json::Value::object({{"family", json::Value::string(family)}});
  const models::ModelOptions options(family);
  for (const auto& [key, size] : {std::pair("num_layers", 2),
                                  std::pair("hidden_size", 16),
                                  std::pair("num_heads", 2),
                                  std::pair("max_positions", 64),
                                  std::pair("image_size", 8),
                                  std::pair("patch_size", 4)}) {
    if (options.has(key)) out[key] = json::Value::integer(size);
  }
  return out;
}

/// One of the pictures of tests/data/images_test.cpp.
inline std::string png() {
  const std::filesystem::path path =
      tessera::test::source_dir() / "tests/data/reference_pillow.json";
  const json::Value reference = json::parse_strict(files::read(path), path.string());
  const std::string hex = reference.find("files")->items().front().find("file")->as_string();
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return out;
}

/// A family of each kind: decoders with learned and rotary positions, with a bias by distance, with
/// windows and a soft cap, encoders, encoders with a decoder, images, and composed models.
inline std::vector<std::string> kinds_of_families() {
  return {"gpt2", "llama", "bloom", "gemma2", "bert", "modernbert", "t5", "vit", "compose"};
}

/// Tasks that a family is known to train: the table is not one of refusals.
inline std::vector<std::string> certain_tasks(const std::string& family) {
  if (family == "gpt2" || family == "llama")
    return {"pretrain", "prefix_lm", "sft", "prefer", "reward", "rl", "classify", "regression"};
  if (family == "bert") return {"masked_lm", "classify", "regression", "tag"};
  if (family == "vit") return {"image_classify"};
  if (family == "t5") return {"seq2seq", "span_corruption", "word_span_corruption"};
  return {};
}

/// The configuration of a task, of two steps, with its data in `folder`. `members`: further
/// members.
inline json::Value source_of(const std::filesystem::path& folder,
                             const std::string& family,
                             const TaskCase& task,
                             const std::string& members) {
  std::string lines;
  for (int i = 0; i < 12; ++i)
    lines += task.record + "\n";
  // Each class occurs.
  if (task.name == "classify" && task.record.find("[") == std::string::npos)
    lines += R"({"text": "b", "label": "y"})"
             "\n";
  files::write_atomic(folder / "data.jsonl", lines);
  const bool images = task.name == "image_classify";
  if (images) files::write_atomic(folder / "a.png", png());
  json::Value source = json::parse(fmt::format(R"({{"task": {{"type": "{}", "params": {}}},
                      "train_batch_size": 2, "optimizer": {{"params": {{"lr": 1e-3}}}},
                      "trainer": {{"max_steps": 2}}, "run": {{"threads_per_rank": 1}}, {}}})",
                                               task.name,
                                               task.options,
                                               members),
                                   "c.json");
  source["model"] = model_of_family(family);
  source["data"] =
      json::Value::object({{"train", json::Value::string((folder / "data.jsonl").string())},
                           {"validation_fraction", json::Value::number(0.4)}});
  if (!images)
    source["data"]["sequence_length"] = json::Value::integer(task.name == "sft" ? 64 : 16);
  source["run"]["dir"] = json::Value::string((folder / "run").string());
  return source;
}

}  // namespace tessera::test
