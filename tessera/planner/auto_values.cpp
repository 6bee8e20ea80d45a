// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/auto_values.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "tessera/config/overrides.h"

namespace tessera::planner {
namespace {

// Hugging Face's default of a flag, for flags whose default disables something or is universal.
struct Neutral {
  std::string_view path, value, how;
};
constexpr std::array<Neutral, 6> kNeutral = {{
    {"gradient_clipping", "1.0", "Hugging Face's default of --max_grad_norm"},
    {"optimizer.params.betas", "[0.9, 0.999]", "Hugging Face's default of --adam_beta1 and 2"},
    {"optimizer.params.eps", "1e-8", "Hugging Face's default of --adam_epsilon"},
    {"optimizer.params.weight_decay", "0.0", "Hugging Face's default of --weight_decay"},
    {"scheduler.params.warmup_min_lr", "0.0", "Hugging Face's value"},
    {"scheduler.params.warmup_num_steps", "0", "Hugging Face's default of --warmup_steps"},
}};

// Flags without which there is nothing to train with.
struct Needed {
  std::string_view path, flag;
};
constexpr std::array<Needed, 1> kNeeded = {{
    {"optimizer.params.lr", "--learning_rate 5e-5"},
}};
constexpr std::array<std::string_view, 3> kBatch = {
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
constexpr std::string_view kTopRate = "scheduler.params.warmup_max_lr";
// On several hosts, `tessera train` replaces the "auto" of these keys by a number before the plan
// is made; here they are those of one host.
constexpr std::string_view kSecondary = "zero_optimization.zero_hpz_partition_size",
                           kSubGroup = "zero_optimization.mics_shard_size";
constexpr std::string_view kTotal = "scheduler.params.total_num_steps";

// Values derived from the hidden size h.
struct Size {
  std::string_view path, how;
  std::int64_t (*of)(std::int64_t h);
};
const std::array<Size, 3> kSizes = {{
    {"zero_optimization.reduce_bucket_size",
     "hidden_size squared",
     [](std::int64_t h) { return h * h; }},
    {"zero_optimization.stage3_prefetch_bucket_size",
     "0.9 x hidden_size squared",
     [](std::int64_t h) { return h * h * 9 / 10; }},
    {"zero_optimization.stage3_param_persistence_threshold",
     "10 x hidden_size",
     [](std::int64_t h) { return 10 * h; }},
}};

bool is_batch(std::string_view path) {
  return std::find(kBatch.begin(), kBatch.end(), path) != kBatch.end();
}
const Size* find_size(std::string_view path) {
  const auto it = std::find_if(
      kSizes.begin(), kSizes.end(), [&](const Size& size) { return size.path == path; });
  return it == kSizes.end() ? nullptr : &*it;
}

void put(json::Value& source, const config::TakenKey& key, json::Value value) {
  config::set_key(source, key.path, std::move(value), key.value.place);
}

// The learning rate of the optimizer, if it is a number.
const json::Value* learning_rate(const json::Value& source) {
  const json::Value* at = &source;
  for (const char* step : {"optimizer", "params", "lr"}) {
    at = at->is_object() ? at->find(step) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return at->is_number() ? at : nullptr;
}

AutoValue resolve(const config::TakenKey& key, json::Value& source) {
  AutoValue out{key.path, key.value.place, false, "", ""};
  const auto known = [&](std::string_view how) {
    out.resolved = true;
    out.how = how;
    return out;
  };
  for (const Neutral& neutral : kNeutral) {
    if (neutral.path != key.path) continue;
    put(source, key, json::parse(neutral.value, std::string(key.path)));
    return known(neutral.how);
  }
  for (const Needed& needed : kNeeded) {
    if (needed.path == key.path) out.needed = needed.flag;
  }
  if (!out.needed.empty() || is_batch(key.path) || find_size(key.path) != nullptr) return out;
  if (key.path == kTopRate) {
    const json::Value* rate = learning_rate(source);
    if (rate == nullptr) return out;
    put(source, key, *rate);
    return known("optimizer.params.lr");
  }
  if (key.path == kTotal) return known("the steps of the run");
  if (key.path == kSecondary || key.path == kSubGroup)
    return known("the ranks of a host; on one host, not given");
  if (key.path == "fp16.enabled" || key.path == "bf16.enabled")
    return known("the flag is not given");
  return known("not given");
}

}  // namespace

std::vector<AutoValue> resolve_auto(const std::vector<config::TakenKey>& found,
                                    json::Value& source) {
  std::vector<AutoValue> out;
  for (const config::TakenKey& key : found)
    out.push_back(resolve(key, source));
  return out;
}

void resolve_auto_sizes(std::int64_t hidden_size,
                        std::vector<AutoValue>& values,
                        parallel::ZeroOptions& options) {
  for (AutoValue& value : values) {
    const Size* const size = find_size(value.path);
    if (size == nullptr) continue;
    const std::int64_t elements = size->of(hidden_size);
    if (size == &kSizes[0]) options.reduce_bucket_size = elements;
    if (size == &kSizes[1]) options.stage3_prefetch_bucket_size = elements;
    if (size == &kSizes[2]) options.stage3_param_persistence_threshold = elements;
    value.resolved = true;
    value.how = fmt::format("{}, which is {}", size->how, hidden_size);
  }
}

void resolve_auto_batch(std::vector<AutoValue>& values) {
  for (AutoValue& value : values) {
    if (!is_batch(value.path)) continue;
    value.resolved = true;
    value.how = "the other two and the ranks";
  }
}

bool has_auto_batch(const std::vector<AutoValue>& values) {
  return std::any_of(
      values.begin(), values.end(), [](const AutoValue& value) { return is_batch(value.path); });
}

void check_auto(const std::vector<AutoValue>& values, config::Problems& problems) {
  // One flag defines the batch: it is reported once, at the key that it sets if that is also
  // "auto".
  const AutoValue* batch = nullptr;
  for (const AutoValue& value : values) {
    if (is_batch(value.path) && (batch == nullptr || value.path == kBatch[1])) batch = &value;
  }
  for (const AutoValue& value : values) {
    const std::string flag = &value == batch ? "--per_device_train_batch_size 8" : value.needed;
    if (value.resolved || flag.empty()) continue;
    problems.add(value.place,
                 value.path,
                 "is \"auto\", and nothing on the command line says it",
                 fmt::format("{} as for Hugging Face's Trainer, or a number in the file", flag),
                 config::Problems::Kind::Missing);
  }
}

}  // namespace tessera::planner
