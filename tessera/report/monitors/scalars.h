// SPDX-License-Identifier: Apache-2.0
// The names that other programs' dashboards expect for the numbers of metrics.jsonl.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/choices.h"
#include "tessera/config/fields.h"
#include "tessera/report/monitors/monitor.h"

namespace tessera::report {

/// The names of metrics, and their x axis: "Train/Samples/train_loss" over samples, or "train/loss"
/// over steps.
enum class TagStyle : std::uint8_t { DeepSpeed, HuggingFace };
inline constexpr auto kTagStyles = std::to_array<config::Named<TagStyle>>(
    {{TagStyle::DeepSpeed, "deepspeed"}, {TagStyle::HuggingFace, "huggingface"}});
/// Describes the key "tags" of a section.
void describe_tags(config::Fields& fields, TagStyle& tags);

/// A number of a reading, with the name that a viewer expects.
struct Scalar {
  std::string tag;  ///< "Train/Samples/lr"
  double value = 0.0;
};

/// Returns the numbers of a reading, including terms of losses and metrics, in the order of the
/// line. Values that are not finite numbers are left out. Source of the names: DeepSpeed's engine
/// (train_loss, lr, loss_scale, eval_loss, elapsed_time_ms_forward, ...), Hugging Face's Trainer
/// (train/loss, train/learning_rate, eval/loss); other numbers keep the names of metrics.jsonl.
std::vector<Scalar> scalars_of(const Reading& reading, TagStyle style);

/// Returns the value on the x axis: samples in DeepSpeed's style, steps in Hugging Face's.
std::int64_t axis_of(const Reading& reading, TagStyle style);

/// The scalars of a configuration by path ("optimizer.params.lr"), as hyperparameters.
struct Hyperparameter {
  std::string name;
  json::Value value;  ///< a number, a string or a boolean
};
std::vector<Hyperparameter> hyperparameters(const json::Value& resolved);

}  // namespace tessera::report
