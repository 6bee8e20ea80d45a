// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/monitors/scalars.h"

#include <array>
#include <string_view>
#include <utility>

namespace tessera::report {
namespace {

constexpr std::string_view kEval = "eval_", kTest = "test_", kTerms = "terms", kExperts = "experts";
constexpr std::string_view kDeepSpeed = "Train/Samples/";

/// Names in metrics.jsonl for which DeepSpeed and Hugging Face have other names.
struct Names {
  std::string_view ours, deepspeed, huggingface;
};
constexpr auto kNames = std::to_array<Names>({
    {"loss", "train_loss", "loss"},
    {"lr", "lr", "learning_rate"},
    {"forward_ms", "elapsed_time_ms_forward", "forward_ms"},
    {"backward_ms", "elapsed_time_ms_backward_inner", "backward_ms"},
    {"reduce_ms", "elapsed_time_ms_backward_allreduce", "reduce_ms"},
    {"optimizer_ms", "elapsed_time_ms_step", "optimizer_ms"},
});

std::string_view renamed(std::string_view ours, TagStyle style) {
  for (const Names& names : kNames) {
    if (names.ours == ours)
      return style == TagStyle::DeepSpeed ? names.deepspeed : names.huggingface;
  }
  return ours;
}

/// `split`: the prefix of the line's names: "", "eval_" or "test_".
std::string tag_of(std::string_view split, std::string_view name, TagStyle style) {
  if (style == TagStyle::DeepSpeed) {
    std::string out(kDeepSpeed);
    out += split;
    out += split.empty() ? renamed(name, style) : name;
    return out;
  }
  std::string out = split == kEval ? "eval/" : (split == kTest ? "test/" : "train/");
  out += split.empty() ? renamed(name, style) : name;
  return out;
}

/// Splits off the prefix of an evaluation.
std::pair<std::string_view, std::string_view> split_of(std::string_view key) {
  for (const std::string_view split : {kEval, kTest}) {
    if (key.starts_with(split)) return {split, key.substr(split.size())};
  }
  return {"", key};
}

void collect(const std::string& path, const json::Value& value, std::vector<Hyperparameter>& out) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.members())
      collect(json::join_path(path, key), member, out);
  } else if (value.is_array()) {
    if (!value.items().empty()) out.push_back({path, json::Value::string(value.dump())});
  } else if (value.is_string() ? !value.as_string().empty() : !value.is_null()) {
    out.push_back({path, value});
  }
}

}  // namespace

void describe_tags(config::Fields& fields, TagStyle& tags) {
  fields.choice(
      "tags",
      tags,
      kTagStyles,
      {.text = "Names of the metrics: deepspeed (Train/Samples/train_loss, over samples) or "
               "huggingface (train/loss, over steps)."});
}

std::int64_t axis_of(const Reading& reading, TagStyle style) {
  return style == TagStyle::DeepSpeed ? reading.samples : reading.step;
}

std::vector<Scalar> scalars_of(const Reading& reading, TagStyle style) {
  std::vector<Scalar> out;
  double backward = 0.0;
  bool has_backward = false;
  for (const auto& [key, value] : reading.values.members()) {
    if (key == "step" || key == "samples" || key == "time") continue;  // x axes, not metrics
    const auto [split, name] = split_of(key);
    if (value.is_number()) {
      out.push_back({tag_of(split, name, style), value.as_double()});
    } else if (value.is_object() && name == kExperts) {
      for (const auto& [layer, mean] : value.members()) {
        if (mean.is_number())
          out.push_back({tag_of(split, "experts." + layer, style), mean.as_double()});
      }
    } else if (value.is_object() && name == kTerms) {
      for (const auto& [term, mean] : value.members()) {
        if (mean.is_number()) out.push_back({tag_of(split, term, style), mean.as_double()});
      }
    }
    if ((key == "backward_ms" || key == "reduce_ms") && value.is_number()) {
      backward += value.as_double();
      has_backward = true;
    }
  }
  // DeepSpeed's backward time includes the reduction.
  if (has_backward && style == TagStyle::DeepSpeed)
    out.push_back({tag_of("", "elapsed_time_ms_backward", style), backward});
  return out;
}

std::vector<Hyperparameter> hyperparameters(const json::Value& resolved) {
  std::vector<Hyperparameter> out;
  collect("", resolved, out);
  return out;
}

}  // namespace tessera::report
